"""The last minute of work: rates by the second, lateness by its bucket, and nothing older."""

from timer_service.observability.recent import RecentWork
from timer_service.ports.health import Recent

BUCKETS_S = (0.001, 0.01, 0.1)


class Watch:
    def __init__(self) -> None:
        self.elapsed_s = 100.0

    def __call__(self) -> float:
        return self.elapsed_s


def test_nothing_done_is_a_rate_of_zero_and_no_lateness() -> None:
    assert RecentWork(BUCKETS_S, Watch()).summary() == Recent(0.0, 0.0, None, None)


def test_rates_and_lateness_are_those_of_the_last_minute() -> None:
    watch = Watch()
    recent = RecentWork(BUCKETS_S, watch)
    recent.scheduled(600)
    recent.fired([0.0005] * 1_000)
    watch.elapsed_s += 30
    recent.scheduled(30)
    recent.fired([0.005] * 59 + [7.0])
    watch.elapsed_s += 31

    assert recent.summary() == Recent(
        commands_per_s=0.5, fired_per_s=1.0, lateness_p50_s=0.01, lateness_p99_s=0.1, peak_per_s=1_000
    )


def test_a_quantile_beyond_the_last_bucket_is_the_last_bucket() -> None:
    recent = RecentWork(BUCKETS_S, Watch())
    recent.fired([-1.0, 7.0])

    assert recent.summary() == Recent(0.0, 0.03, 0.001, 0.1, peak_per_s=2)
