"""The timer service under load, seen from outside."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import limits, rows
from bench.harness import (
    COMMANDS_STREAM,
    NOT_READY,
    Arrival,
    Broker,
    Generator,
    Listener,
    Memory,
    NotMeasured,
    NotReady,
    Rig,
    check_in_time,
    now_ms,
    rig,
)
from bench.load import Load
from bench.plan import Plan
from bench.report import Figure, Goal, median, percentile

FAR_S: Final = 86_400
DEFAULT_BATCH: Final = 2_000
SAMPLE_S: Final = 0.02
DRAIN_TIMEOUT_S: Final = 180.0
BURST_LEAD_S: Final = 5.0
"""From before the service starts to the due time of a burst."""
APPLY_PER_S: Final = 4_000
"""Commands per second that the service must at least take before a steady part; far below what it can."""
BOTH_LEAD_MS: Final = 3_000
SMALL: Final = "small"
BIG: Final = "big"

LATENESS_GOALS: Final = {
    (500, "p50"): Goal(2, 1),
    (500, "p99"): Goal(10, 3),
    (2_000, "p50"): Goal(3, 1),
    (2_000, "p99"): Goal(20, 5),
}
LIMITS: Final = (
    *(limits.PLAIN_READ, limits.PLAIN_PUBLISH, limits.READ, limits.PUBLISH, limits.UPSERT, limits.MARK),
    *(limits.AT_TAKES, limits.AT_FIRES, limits.SYNCED_AT_TAKES, limits.SYNCED_AT_FIRES),
)
INGEST_GOALS: Final[Mapping[str, Goal | None]] = {
    limits.PLAIN_READ: Goal(0.25, 0.35, of="ratio", at_least=True),
    limits.READ: None,
    limits.AT_TAKES: Goal(0.8, 1.0, of="ratio", at_least=True),
    limits.SYNCED_AT_TAKES: None,
}
BURST_GOALS: Final[Mapping[str, Goal | None]] = {
    limits.PLAIN_PUBLISH: Goal(0.3, 0.4, of="ratio", at_least=True),
    limits.PUBLISH: None,
    limits.AT_FIRES: Goal(1.0, 1.3, of="ratio", at_least=True),
    limits.SYNCED_AT_FIRES: None,
}
"""What a rate is compared with, the first by the name of the figure alone; and where it must stand."""
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
RSS_GOAL: Final = Goal(130, 110)

_folders = itertools.count(1)


@dataclass(slots=True)
class Bench:
    """What all parts of a run share."""

    folder: Path
    plan: Plan
    limits: limits.Limits
    log_level: str
    peers: Sequence[str] = field(default_factory=tuple)

    def new_folder(self) -> Path:
        return self.folder / f"part{next(_folders)}"


def measure_limits(bench: Bench) -> Iterator[Figure]:
    """Measure the limits themselves."""
    for name in LIMITS:
        yield Figure("limits", name, bench.limits.rate(name), "/s")
    for rate in bench.plan.rates:
        for label, share in SHARES.items():
            value = bench.limits.lateness_ms(rate, share)
            yield Figure("limits", f"bare loop {rate:,}/s: {label}", value, "ms")


def measure_ingest(bench: Bench) -> Iterator[Figure]:
    """Measure how fast a backlog of commands is drained: applied, committed and acknowledged."""
    rates = defaultdict[int, list[float]](list)
    for count in _in_turns(bench, bench.plan.ingest, limits.PLAIN_READ, limits.READ, limits.AT_TAKES):
        rates[count].append(_ingest(bench, count))
    for count, tries in rates.items():
        yield from _against(bench, "ingest", f"backlog of {count:,}", median(tries), INGEST_GOALS)


def _against(
    bench: Bench, part: str, name: str, value: float, goals: Mapping[str, Goal | None]
) -> Iterator[Figure]:
    """Yield a rate beside each limit."""
    for number, (limit, goal) in enumerate(goals.items()):
        shown = f"{name} against {limit}" if number else name
        yield Figure(part, shown, value, "/s", limit, bench.limits.rate(limit), goal)


def _in_turns(bench: Bench, counts: Sequence[int], *beside: str) -> Iterator[int]:
    """Yield each size a few times; between the rounds, measure the limits that it is compared with."""
    for _ in range(bench.plan.repeats):
        for limit in beside:
            bench.limits.try_again(limit)
        yield from counts


def _ingest(bench: Bench, count: int, batch_size: int | None = None) -> float:
    with rig(bench.new_folder(), log_level=bench.log_level, batch_size=batch_size) as parts:
        parts.service.start_ready().stop()  # It creates its streams.
        Generator(Load(parts.broker.port, count, now_ms() + FAR_S * 1000, 1_000)).seconds()
        parts.service.start()
        return drain_rate(parts.broker, count)


def drain_rate(broker: Broker, count: int, began: Callable[[], None] = lambda: None) -> float:
    """Return the rate from the first progress to the end, so that the start of the process is left out."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    first_at, first_left = 0.0, count
    while time.monotonic() < deadline:
        left, at = broker.stored(COMMANDS_STREAM), time.perf_counter()
        if left < count and first_left == count:
            first_at, first_left = at, left
            began()
        if left == 0:
            return first_left / max(at - first_at, SAMPLE_S)
        time.sleep(SAMPLE_S)
    raise NotMeasured("the backlog was not drained in time")


def measure_burst(bench: Bench) -> Iterator[Figure]:
    """Measure many timers due at one instant: until the last event is at the subscriber."""
    tries = defaultdict[int, list[tuple[float, Memory]]](list)
    for count in _in_turns(bench, bench.plan.burst, limits.PLAIN_PUBLISH, limits.PUBLISH, limits.AT_FIRES):
        tries[count].append(burst(bench, rows.due_together, count))
    for count, measured in tries.items():
        name = f"{count:,} at one instant"
        yield from _against(bench, "burst", name, median([rate for rate, _ in measured]), BURST_GOALS)
        peak = max(memory.peak_mb for _, memory in measured)
        yield Figure("burst", f"{name}: peak RSS", peak, "MB", goal=RSS_GOAL)


def burst(
    bench: Bench, due: Callable[[int, int], Iterator[rows.Row]], count: int, batch_size: int | None = None
) -> tuple[float, Memory]:
    """Return the rate at which timers fire that are all due at one instant, and the memory it took."""
    for lead_ms in (count // 20, count // 2):
        with (
            suppress(NotReady),
            rig(bench.new_folder(), log_level=bench.log_level, batch_size=batch_size) as parts,
        ):
            due_ms = now_ms() + int(BURST_LEAD_S * 1000) + lead_ms
            rows.create(parts.service.db_path, due(count, due_ms))
            parts.service.start_ready()
            listener = Listener(parts.broker, count, DRAIN_TIMEOUT_S)
            check_in_time(due_ms)
            last_ms = max(arrival.received_ms for arrival in listener.arrivals())
            return count / (last_ms - due_ms) * 1000, parts.service.memory()
    raise NotMeasured(NOT_READY)


def measure_batches(bench: Bench) -> Iterator[Figure]:
    """Measure what TIMER_BATCH_SIZE does, in turns; the default is the limit of the others."""
    default, count = DEFAULT_BATCH, bench.plan.batch_count
    ingest, fired = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for _ in range(bench.plan.repeats):
        for size in (default, *bench.plan.batch_sizes):
            ingest[size].append(_ingest(bench, count, size))
            fired[size].append(burst(bench, rows.due_together, count, size)[0])
    for size in sorted(ingest):
        for what, rates in (("ingest", ingest), ("burst", fired)):
            name = f"{size:,} a batch: {what} of {count:,}"
            limit = f"{default:,} a batch"
            yield Figure("batches", name, median(rates[size]), "/s", limit, median(rates[default]))


def measure_steady(bench: Bench) -> Iterator[Figure]:
    """Measure timers due one after the other, each at its own millisecond, all scheduled ahead."""
    for rate in bench.plan.rates:
        with rig(bench.new_folder(), log_level=bench.log_level) as parts:
            parts.service.start_ready()
            lateness = steady_lateness(parts, rate, bench.plan.steady_s)
        yield from lateness_figures(bench, "steady", f"{rate:,}/s", rate, lateness)


def steady_lateness(parts: Rig, rate: int, seconds: float) -> list[float]:
    """Schedule timers through the broker, wait for their events and return how late each was, in ms."""
    count = int(rate * seconds)
    first_due_ms = now_ms() + 3_000 + count * 1_000 // APPLY_PER_S
    listener = Listener(parts.broker, count, seconds + DRAIN_TIMEOUT_S)
    Generator(Load(parts.broker.port, count, first_due_ms, rate)).seconds()
    parts.wait_until_applied((first_due_ms - now_ms()) / 1000)
    return [arrival.lateness_ms for arrival in listener.arrivals()]


def lateness_figures(
    bench: Bench, part: str, name: str, rate: int, lateness: Sequence[float], *, goals: bool = True
) -> Iterator[Figure]:
    """Yield the percentiles, each beside what a bare loop reaches at the same rate."""
    for label, share in SHARES.items():
        yield Figure(
            part,
            f"{name}: {label}",
            percentile(lateness, share),
            "ms",
            "bare loop",
            bench.limits.lateness_ms(rate, share),
            LATENESS_GOALS.get((rate, label)) if goals else None,
        )


def measure_both(bench: Bench) -> Iterator[Figure]:
    """Measure while commands come in at the rate at which timers fire."""
    rate, seconds = bench.plan.both_rate, bench.plan.steady_s + BOTH_LEAD_MS / 1000
    count = int(rate * seconds)
    with rig(bench.new_folder(), log_level=bench.log_level) as parts:
        parts.service.start_ready()
        listener = Listener(parts.broker, count, seconds + DRAIN_TIMEOUT_S)
        load = Load(parts.broker.port, count, now_ms() + BOTH_LEAD_MS + 500, rate, BOTH_LEAD_MS)
        generator = Generator(load)
        arrivals = listener.arrivals()
        generator.seconds()
    # In the first seconds nothing fires yet, in the last ones nothing comes in any more.
    overlap = [
        a.lateness_ms for a in arrivals if a.due_ms - load.first_due_ms < seconds * 1000 - BOTH_LEAD_MS
    ]
    span_s = (max(a.received_ms for a in arrivals) - load.first_due_ms) / 1000
    name = f"{rate:,}/s in and {rate:,}/s out"
    yield Figure("both", f"{name}: fired", count / span_s, "/s", "asked for", rate)
    yield from lateness_figures(bench, "both", name, rate, overlap, goals=False)


def measure_fairness(bench: Bench) -> Iterator[Figure]:
    """Measure one tenant that fires a few timers per second beside another's burst."""
    count, rate = bench.plan.fairness_burst, bench.plan.fairness_rate
    span_s = max(2.0, count / APPLY_PER_S)
    with rig(bench.new_folder(), log_level=bench.log_level) as parts:
        due_ms = now_ms() + int(BURST_LEAD_S * 1000) + count // 20
        small = rows.due_evenly(int(span_s * rate), due_ms, rate, SMALL)
        rows.create(parts.service.db_path, itertools.chain(rows.due_together(count, due_ms, BIG), small))
        parts.service.start_ready()
        listener = Listener(parts.broker, count + int(span_s * rate), DRAIN_TIMEOUT_S)
        check_in_time(due_ms)
        arrivals = listener.arrivals()
    beside = small_beside_big(arrivals)
    name = f"small tenant at {rate}/s beside a burst of {count:,}"
    yield Figure("fairness", f"{name}: p50", percentile(beside, 0.5), "ms")
    yield Figure("fairness", f"{name}: p99", percentile(beside, 0.99), "ms", goal=Goal(1_000, 200))
    yield Figure("fairness", f"{name}: samples", len(beside), "")


def small_beside_big(arrivals: Sequence[Arrival]) -> list[float]:
    """Return the lateness of the small tenant's timers that were due while the burst was going on."""
    burst_ends_ms = max(a.received_ms for a in arrivals if a.tenant == BIG)
    return [a.lateness_ms for a in arrivals if a.tenant == SMALL and a.due_ms <= burst_ends_ms]
