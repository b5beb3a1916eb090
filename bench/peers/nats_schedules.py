"""NATS's own message schedules beside the service."""

from collections.abc import Iterator

from bench import limits, schedules
from bench.report import Figure
from bench.workloads import Bench, lateness_figures


def measure(bench: Bench) -> Iterator[Figure]:
    """With the server's default of an fsync every two minutes, and with an fsync for every write."""
    plan = bench.plan
    for name, takes, fires, count in (
        ("NATS @at", limits.AT_TAKES, limits.AT_FIRES, plan.peer_burst),
        ("NATS @at, fsynced", limits.SYNCED_AT_TAKES, limits.SYNCED_AT_FIRES, plan.peer_synced_burst),
    ):
        for what, of, rate in (("ingest", limits.PLAIN_READ, takes), ("burst", limits.PLAIN_PUBLISH, fires)):
            value, limit = bench.limits.rate(rate), bench.limits.rate(of)
            yield Figure("peers", f"{name}: {what} of {count:,}", value, "/s", of, limit)
    for rates, sync_always in ((plan.rates, False), (plan.rates[:1], True)):
        for per_second in rates:
            name = f"NATS @at{', fsynced' if sync_always else ''}: {per_second:,}/s"
            late = schedules.lateness(bench.new_folder(), per_second, plan.steady_s, sync_always=sync_always)
            yield from lateness_figures(bench, "peers", name, per_second, late, goals=False)
