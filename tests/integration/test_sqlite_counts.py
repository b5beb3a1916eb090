"""What a pending timer takes of the disk, and what counting takes, in bytes and in steps."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.sqlite import due_ms
from tests.support.steps import counted
from tests.support.timers import at
from timer_client.wire import format_time
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.testing import START

MAX_BYTES_PER_TIMER = 335
MAX_STEPS_PER_OVERDUE = 4
FEW, MANY = 1_000, 20_000

INSERT = f"""
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  stream_created_us, stream_sequence, pending_due_ms)
VALUES (?1, ?2, 'Scheduled', ?3, 1, ?4, 1700000000000000, ?5, {due_ms("?3")})
"""
REGISTERED = "2025-06-01T00:00:00.000Z"


def fill(path: Path, count: int, due_s: range) -> None:
    """Put timers with ids as long as a UUID into a file, in the order of their ids, due in any order."""
    chance = random.Random(1)

    def rows() -> Iterator[tuple[str, str, str, str, int]]:
        for number in range(count):
            due = format_time(at(chance.choice(due_s)))
            yield f"tenant-{number % 10}", f"{number:036}", due, REGISTERED, number

    with closing(sqlite3.connect(path)) as link, link:
        link.executemany(INSERT, rows())


async def steps_of_count(store: SqliteTimerStore) -> tuple[int, int, int]:
    """Count; return what is pending, what is overdue, and the steps it took."""
    async with counted(*store._questions._connections) as steps:
        counts = await store.count(at(0))
    return counts.pending, counts.overdue, steps[0]


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return a file with the schema and nothing else."""
    async with open_sqlite_store(tmp_path / "timers.db", lambda: START):
        pass
    return tmp_path / "timers.db"


async def test_a_pending_timer_takes_at_most_335_bytes(path: Path) -> None:
    empty = path.stat().st_size

    fill(path, MANY, due_s=range(1, 86_400 * 30))

    with closing(sqlite3.connect(path)) as link:
        link.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (path.stat().st_size - empty) / MANY <= MAX_BYTES_PER_TIMER


async def test_counting_what_is_overdue_takes_a_few_steps_for_each(path: Path) -> None:
    fill(path, MANY, due_s=range(-86_400, 0))

    async with open_sqlite_store(path, lambda: START) as store:
        await store.count(at(0))
        counted_again = await steps_of_count(store)

    assert counted_again[:2] == (MANY, MANY)
    assert counted_again[2] <= MAX_STEPS_PER_OVERDUE * MANY + 1_000


async def test_a_count_costs_nothing_for_what_is_to_come(path: Path) -> None:
    fill(path, MANY, due_s=range(1, 86_400))

    async with open_sqlite_store(path, lambda: START) as store:
        await store.count(at(0))  # The first one counts them, those after it know.
        counted_again = await steps_of_count(store)

    assert counted_again[:2] == (MANY, 0)
    assert counted_again[2] <= 1_000
