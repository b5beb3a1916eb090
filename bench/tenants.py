"""Many tenants: each with one due timer, and many that have nothing due beside a few with a backlog."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from bench import rows
from bench.harness import now_ms
from bench.report import Figure, Goal, median
from bench.rows import remove
from bench.workloads import Bench, burst
from timer_service.adapters.sqlite.opening import open_sqlite_store

PART: Final = "tenants"
BATCH: Final = 1_000
POLLS: Final = 50
AS_ONE: Final = Goal(0.7, 0.9, of="ratio", at_least=True)
POLL_GOAL: Final = Goal(10, 3)


def measure_tenants(bench: Bench) -> Iterator[Figure]:
    """Measure a burst of many tenants beside that of one, and polls beside many idle tenants."""
    tenants, busy = bench.plan.tenants, bench.plan.busy_tenants
    each: list[float] = []
    one: list[float] = []
    for _ in range(bench.plan.repeats):
        one.append(burst(bench, rows.due_together, tenants)[0])
        each.append(burst(bench, partial(rows.due_together, tenants=tenants), tenants)[0])
    name = f"{tenants:,} tenants with one due timer each"
    yield Figure(PART, name, median(each), "/s", "as many of one tenant", median(one), AS_ONE)
    backlog = BATCH * (POLLS + 1) // busy
    database = bench.new_folder().with_suffix(".db")
    rows.create(database, _idle_and_busy(tenants, busy, backlog))
    took = asyncio.run(_polls(database))
    remove(database)
    name = f"one poll for {BATCH:,}, {busy} tenants with a backlog of {backlog:,} beside {tenants:,} idle"
    yield Figure(PART, name, median(took), "ms", goal=POLL_GOAL)
    yield Figure(PART, f"{name}: the slowest", max(took), "ms")


def _idle_and_busy(tenants: int, busy: int, backlog: int) -> Iterator[rows.Row]:
    past_ms, later_ms = now_ms() - 600_000, now_ms() + rows.DAY_MS
    yield from rows.due_together(tenants, later_ms, "idle", tenants=tenants)
    for number in range(busy):
        yield from itertools.islice(rows.due_evenly(backlog, past_ms, 1_000, f"busy-{number}"), backlog)


async def _polls(database: Path) -> list[float]:
    """Return how long each poll took in the store, in ms; what it finds is marked, as when it fires."""
    took = []
    async with open_sqlite_store(database, lambda: datetime.now(UTC)) as store:
        for _ in range(POLLS):
            now, started = datetime.now(UTC), time.perf_counter()
            async with store.claim_due(now, BATCH) as claim:
                took.append((time.perf_counter() - started) * 1000)
                assert len(claim.timers) == BATCH
                await claim.mark_reached([timer.reached(now) for timer in claim.timers])
    return took
