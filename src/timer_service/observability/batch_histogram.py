"""A Prometheus histogram that takes a whole batch of values in one step."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

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

    def observe_many(self, values: Iterable[float]) -> None:
        """Observe some values."""
        observed = list(values)
        if observed:
            bounds = self._upper_bounds
            self.observe_all(Counter(bisect_left(bounds, value) for value in observed), sum(observed))
