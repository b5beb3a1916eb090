"""A batch in a histogram leaves what its values leave one by one."""

from bisect import bisect_left
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram

from timer_service.observability.batch_histogram import BatchHistogram

BOUNDS = (0.001, 0.5, 1.0, 60.0)
# Eighths have an exact sum, in whatever order they are added; the bounds are among them.
VALUES = st.sampled_from([*BOUNDS[1:], *(n / 8 for n in range(600))])


@given(st.lists(st.lists(VALUES)))
def test_batches_are_observed_as_their_values_would_be(batches: list[list[float]]) -> None:
    one_by_one = Histogram("lateness", "…", buckets=BOUNDS, registry=None)
    together = BatchHistogram("lateness", "…", buckets=BOUNDS, registry=None)

    for batch in batches:
        for value in batch:
            one_by_one.observe(value)
        together.observe_all(Counter(bisect_left(BOUNDS, value) for value in batch), sum(batch))

    assert _samples(together) == _samples(one_by_one)


def _samples(histogram: Histogram) -> list[tuple[str, dict[str, str], float]]:
    samples = (sample for metric in histogram.collect() for sample in metric.samples)
    return [(s.name, s.labels, s.value) for s in samples if not s.name.endswith("_created")]
