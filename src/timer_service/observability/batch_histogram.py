"""A Prometheus histogram that takes a whole batch of values in one step."""

from collections.abc import Mapping

from prometheus_client import Histogram


class BatchHistogram(Histogram):
    """A histogram without labels; one value at a time, it passes two locks and many bounds for each."""

    def observe_all(self, tally: Mapping[int, int], total: float) -> None:
        """Observe as many values as the tally has in each bucket, which are `total` together.

        Bucket n holds what is above bound n - 1, and not above bound n.
        """
        self._sum.inc(total)
        for bucket, count in tally.items():
            self._buckets[bucket].inc(count)
