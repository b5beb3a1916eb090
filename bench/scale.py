"""The timer service with many timers in its file."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from bench import rows
from bench.harness import Generator, Listener, Rig, now_ms, rig
from bench.load import Load
from bench.report import Figure, Goal, median, percentile
from bench.workloads import RSS_GOAL, SHARES, Bench, steady_lateness
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.store import SqliteTimerStore

POLLS: Final = 100
BATCH: Final = 1_000
SETTLE_S: Final = 6.0
TURN_S: Final = 8.0
FIRST_FIRING_TIMEOUT_S: Final = 60.0
CRASH_LEAD_MS: Final = 1_500
FLAT: Final = {"p50": Goal(1.2, 1.1, of="ratio"), "p99": Goal(1.5, 1.2, of="ratio")}
DISK_GOAL: Final = Goal(300, 250)
COUNT_GOAL: Final = Goal(20, 5)
FIRST_FIRING_GOAL: Final = Goal(0.6, 0.35)
GROWN_FROM: Final = 1_000_000
"""A database with more timers than this is made out of one with as many."""


def measure_scale(bench: Bench) -> Iterator[Figure]:
    """Measure the same lateness with few and with many pending timers, and what they cost."""
    databases = _databases(bench)
    smallest: dict[str, float] = {}
    for figure in itertools.chain(
        _lateness(bench, databases),
        *(_costs(bench, pending, database) for pending, database in databases.items()),
        *(_disk(bench, pending, databases[pending]) for pending in databases if pending <= GROWN_FROM),
    ):
        yield beside_smallest(figure, smallest, f"with {bench.plan.pending[0]:,} pending")
    for database in databases.values():
        rows.remove(database)


def _databases(bench: Bench) -> dict[int, Path]:
    databases: dict[int, Path] = {}
    for pending in bench.plan.pending:
        path = databases[pending] = bench.new_folder().with_suffix(".db")
        if pending > GROWN_FROM and GROWN_FROM in databases:
            rows.grow(path, databases[GROWN_FROM], pending // GROWN_FROM)
        else:
            rows.create(path, rows.pending(pending))
    return databases


def beside_smallest(figure: Figure, smallest: dict[str, float], what: str) -> Figure:
    """Compare with the same figure at the smallest number of pending timers: flat is the aim."""
    kind = figure.name.partition(": ")[2]
    if figure.limit or kind not in smallest:
        smallest.setdefault(kind, figure.value)
        return figure
    goal = figure.goal
    if goal is None:
        goal = FLAT.get(kind.rpartition(" ")[2])
    return Figure(figure.part, figure.name, figure.value, figure.unit, what, smallest[kind], goal)


def _lateness(bench: Bench, databases: dict[int, Path]) -> Iterator[Figure]:
    """Measure in turns, because the machine's speed changes; the median of the turns counts."""
    turns = defaultdict[tuple[int, int], list[list[float]]](list)
    for _ in range(bench.plan.repeats):
        for pending, database in databases.items():
            with rig(bench.new_folder(), log_level=bench.log_level, database=database) as parts:
                parts.service.start_ready()
                for rate in bench.plan.rates:
                    turns[pending, rate].append(
                        steady_lateness(parts, rate, min(bench.plan.steady_s, TURN_S))
                    )
    for (pending, rate), measured in turns.items():
        for label, share in SHARES.items():
            value = median([percentile(lateness, share) for lateness in measured])
            yield Figure("scale", f"{pending:,} pending: {rate:,}/s {label}", value, "ms")


def _costs(bench: Bench, pending: int, database: Path) -> Iterator[Figure]:
    name = f"{pending:,} pending"
    with rig(bench.new_folder(), log_level=bench.log_level, database=database) as parts:
        parts.service.start_ready()
        time.sleep(SETTLE_S if bench.plan.idle_s >= SETTLE_S else 1.0)
        cpu_s = parts.service.cpu_s()
        time.sleep(bench.plan.idle_s)
        share = (parts.service.cpu_s() - cpu_s) / bench.plan.idle_s
        steady_lateness(parts, bench.plan.rates[-1], min(bench.plan.steady_s, TURN_S))
        memory = parts.service.memory()
        yield Figure("scale", f"{name}: RSS", memory.now_mb, "MB", goal=RSS_GOAL)
        yield Figure("scale", f"{name}: peak RSS", memory.peak_mb, "MB", goal=RSS_GOAL)
        yield Figure("scale", f"{name}: idle CPU", share * 100, "% of a core", goal=Goal(1, 0.3))
        first_s = median([_first_firing_s(parts) for _ in range(bench.plan.repeats)])
        yield Figure("scale", f"{name}: start to first firing", first_s, "s", goal=FIRST_FIRING_GOAL)


def _first_firing_s(parts: Rig) -> float:
    """Kill the service while a timer is pending; return the time from its start to the event."""
    due_ms = now_ms() + CRASH_LEAD_MS
    Generator(Load(parts.broker.port, 1, due_ms, 1)).seconds()
    parts.wait_until_applied(CRASH_LEAD_MS / 1000)
    parts.service.kill()
    listener = Listener(parts.broker, 1, FIRST_FIRING_TIMEOUT_S)
    time.sleep(max(0.0, (due_ms - now_ms()) / 1000))
    started_ms = time.time_ns() / 1_000_000
    parts.service.start()
    [arrival] = listener.arrivals()
    return (arrival.received_ms - started_ms) / 1000


def _disk(bench: Bench, pending: int, database: Path) -> Iterator[Figure]:
    empty = _empty_bytes(bench)
    yield Figure(
        "scale",
        f"{pending:,} pending: disk per timer",
        (database.stat().st_size - empty) / pending,
        "B",
        "the bytes in its columns",
        _content_bytes(),
        DISK_GOAL,
    )
    if pending == bench.plan.pending[0]:
        correlated = bench.new_folder().with_suffix(".db")
        rows.create(correlated, rows.pending(pending, correlated=True))
        size = (correlated.stat().st_size - empty) / pending
        yield Figure("scale", f"{pending:,} pending: disk per timer with a correlation id", size, "B")
        rows.remove(correlated)


def _empty_bytes(bench: Bench) -> int:
    """Return the size of a file without timers: it has all tables and indexes already."""
    path = bench.new_folder().with_suffix(".db")
    rows.create(path)
    size = path.stat().st_size
    rows.remove(path)
    return size


def _content_bytes() -> float:
    """Return how many characters the columns of one pending timer hold."""
    return float(sum(len(str(value)) for value in next(rows.pending(1)) if value is not None))


def measure_polls(bench: Bench) -> Iterator[Figure]:
    """Measure one look for due timers, in the store itself, against pending and against reached rows."""
    few, many, reached = bench.plan.pending[0], bench.plan.pending[1], bench.plan.reached
    nothing, full = 0.0, 0.0
    for label, pending, ended in (
        (f"{few:,} pending", few, 0),
        (f"{many:,} pending", many, 0),
        (f"{few:,} pending, {reached:,} reached", few, reached),
    ):
        database = bench.new_folder().with_suffix(".db")
        rows.create(database, _mixed(pending, ended))
        idle_us, busy_us = asyncio.run(_polls(database))
        nothing, full = nothing or idle_us, full or busy_us
        what = f"with {few:,} pending"
        yield Figure("polls", f"{label}: nothing due", idle_us, "µs", what, nothing)
        yield Figure("polls", f"{label}: {BATCH:,} due", busy_us, "µs", what, full)
        rows.remove(database)
    yield from _counts(bench)


def _counts(bench: Bench) -> Iterator[Figure]:
    """Measure the count that a scrape and a status ask for."""
    overdue, pending = bench.plan.overdue, bench.plan.pending[1]
    database = bench.new_folder().with_suffix(".db")
    timers = itertools.chain(rows.pending(pending), rows.due_together(overdue, now_ms() - 1_000))
    rows.create(database, timers)
    took = asyncio.run(_counted_ms(database, pending + overdue))
    name = f"count with {overdue:,} overdue beside {pending:,} pending"
    yield Figure("polls", name, median(took), "ms", goal=COUNT_GOAL)
    rows.remove(database)


async def _counted_ms(database: Path, expected: int) -> list[float]:
    now, took = datetime.now(UTC), []
    async with open_sqlite_store(database, lambda: now) as store:
        await store.count(now)  # The first one after a start counts all that is pending, once.
        for _ in range(POLLS):
            started = time.perf_counter()
            counts = await store.count(now)
            took.append((time.perf_counter() - started) * 1000)
            assert counts.pending == expected
    return took


def _mixed(pending: int, ended: int) -> Iterator[rows.Row]:
    yield from rows.pending(pending)
    yield from rows.reached(ended)
    yield from rows.due_together(BATCH, now_ms() - 1_000)


async def _polls(database: Path) -> tuple[float, float]:
    now = datetime.now(UTC)
    async with open_sqlite_store(database, lambda: now) as store:
        nothing = [await _poll_us(store, now - timedelta(hours=1), 0) for _ in range(POLLS)]
        full = [await _poll_us(store, now, BATCH) for _ in range(POLLS)]
    return median(nothing), median(full)


async def _poll_us(store: SqliteTimerStore, now: datetime, expected: int) -> float:
    started = time.perf_counter()
    async with store.claim_due(now, BATCH) as claim:
        assert len(claim.timers) == expected
    await store.next_due_at(now)
    return (time.perf_counter() - started) * 1_000_000
