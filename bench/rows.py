"""Timers written straight into a SQLite file, while no service runs on it."""

import asyncio
import itertools
import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.harness import now_ms
from bench.messages import iso, uuid7
from timer_service.adapters.callback_rows import CALLBACK_COLUMNS
from timer_service.adapters.sqlite.opening import open_sqlite_store

DAY_MS: Final = 86_400_000
TENANTS: Final = 10
SEED: Final = 4
Row = tuple[str, str, str, str, str, str | None, str | None, int]

_INSERT: Final = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  correlation_id, reached_at, stream_created_us, stream_sequence, pending_due_ms)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, 1, ?8, CASE ?3 WHEN 'Scheduled' THEN
  unixepoch(substr(?4, 1, 10) || ' ' || substr(?4, 12, 8)) * 1000 + substr(?4, 21, 3) END)
"""

_TO_HTTP: Final = """
UPDATE timer_schedules SET sink = 1, callback_revision = 1 WHERE tenant_id = ? AND service_call_id = ?
"""
_CALLBACK: Final = f"""
INSERT INTO timer_callbacks ({CALLBACK_COLUMNS})
SELECT tenant_id, service_call_id, ?, ?, 'POST', '[]',
  CAST('{{"order":"' || service_call_id || '","note":"' || hex(zeroblob(150)) || '"}}' AS BLOB),
  'application/json', '[5000,30000]', 30000, NULL, 'ed25519', NULL, '', registered_at
FROM timer_schedules WHERE tenant_id = ? AND service_call_id = ?
"""
_DELIVERY: Final = """
INSERT INTO callback_deliveries (tenant_id, service_call_id, delivery_id, generation, state, origin, due_at,
  opened_at, next_attempt_at, attempts, series_from)
VALUES (?, ?, ?, 1, 'Waiting', ?, ?, ?, ?, 0, 0)
"""
_INDEXES: Final = "SELECT name, sql FROM main.sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
_GROW: Final = """
WITH RECURSIVE copy(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM copy WHERE n + 1 < :times)
INSERT INTO main.timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  correlation_id, reached_at, stream_created_us, stream_sequence, pending_due_ms)
SELECT tenant_id, service_call_id || '-' || n, state, due_at, 1, registered_at, correlation_id, reached_at, 1,
  stream_sequence, pending_due_ms
FROM source.timer_schedules CROSS JOIN copy
"""


def create(path: Path, rows: Iterable[Row] = ()) -> None:
    """Create a database by the service's own migrations and fill it, in the order of the rows."""
    asyncio.run(_migrate(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("PRAGMA synchronous = OFF")
        link.execute("PRAGMA cache_size = -524288")
        link.execute("PRAGMA journal_mode = OFF")
        link.execute("BEGIN")
        link.executemany(_INSERT, rows)
        link.execute("COMMIT")
        link.execute("PRAGMA journal_mode = WAL")


def insert(path: Path, rows: Iterable[Row], origin: str) -> None:
    """Add timers with callbacks to a file, each to the path of its tenant."""
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("PRAGMA synchronous = OFF")
        link.execute("BEGIN")
        for row in rows:
            link.execute(_INSERT, row)
            link.execute(_TO_HTTP, row[:2])
            link.execute(_CALLBACK, (f"{origin}/{row[0]}", origin, *row[:2]))
        link.execute("COMMIT")
        link.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def insert_deliveries(path: Path, waiting: int, due: int) -> None:
    """Add fired timers, each of a tenant and to a receiver of its own: some wait for a day, some are due."""
    now = now_ms()
    moments = itertools.chain(itertools.repeat(now + DAY_MS, waiting), itertools.repeat(now - 1_000, due))
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("PRAGMA synchronous = OFF")
        link.execute("BEGIN")
        for number, moment in enumerate(moments):
            key = (f"tenant-{number}", uuid7(now, number))
            host = f"127.{1 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
            at = iso(now - 2_000)
            link.execute(_INSERT, (*key, "Reached", at, at, None, at, number))
            link.execute(_TO_HTTP, key)
            link.execute(_CALLBACK, (f"http://{host}:9/", f"http://{host}:9", *key))
            link.execute(_DELIVERY, (*key, uuid7(now, number), f"http://{host}:9", at, at, iso(moment)))
        link.execute("COMMIT")
        link.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def grow(path: Path, source: Path, times: int) -> None:
    """Fill a database with each timer of another one this many times, under ids of their own.

    Without indexes, in the order of the table, and the indexes afterwards: ten million timers take a minute
    this way and half an hour one by one. The file is smaller than one that has grown, so it is not measured.
    """
    asyncio.run(_migrate(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        for setting in ("synchronous = OFF", "cache_size = -524288", "journal_mode = OFF"):
            link.execute(f"PRAGMA {setting}")
        link.execute("ATTACH ? AS source", (str(source),))
        indexes = link.execute(_INDEXES).fetchall()
        for name, _ in indexes:
            link.execute(f"DROP INDEX {name}")
        link.execute("BEGIN")
        link.execute(_GROW, {"times": times})
        for _, sql in indexes:
            link.execute(sql)
        link.execute("COMMIT")
        link.execute("PRAGMA journal_mode = WAL")


def remove(database: Path) -> None:
    """Delete a database and what belongs to it."""
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()


async def _migrate(path: Path) -> None:
    async with open_sqlite_store(path, lambda: datetime.now(UTC)):
        pass


def pending(count: int, *, correlated: bool = False) -> Iterator[Row]:
    """Yield timers that are not due for days, registered one after the other, due in any order."""
    chance, now = random.Random(SEED), now_ms()
    for number in range(count):
        registered_ms = now - (count - number) // 10
        due = iso(now + DAY_MS + chance.randrange(30 * DAY_MS))
        call = uuid7(registered_ms, number)
        correlation = uuid7(registered_ms, number + count) if correlated else None
        registered = iso(registered_ms)
        yield f"tenant-{number % TENANTS}", call, "Scheduled", due, registered, correlation, None, number


def reached(count: int) -> Iterator[Row]:
    """Yield timers that fired within the last day."""
    now = now_ms()
    for number in range(count):
        due = iso(now - DAY_MS + number * (DAY_MS // count))
        call = uuid7(now - 2 * DAY_MS, number)
        yield f"tenant-{number % TENANTS}", call, "Reached", due, due, None, due, number


def due_together(count: int, due_ms: int, tenant: str = "acme", tenants: int = 1) -> Iterator[Row]:
    """Yield timers that are all due at one instant, of one tenant or of several in turn."""
    due, registered = iso(due_ms), iso(now_ms())
    for number in range(count):
        owner = tenant if tenants == 1 else f"{tenant}-{number % tenants}"
        yield owner, uuid7(due_ms, number), "Scheduled", due, registered, None, None, number


def due_evenly(count: int, first_due_ms: int, per_second: float, tenant: str) -> Iterator[Row]:
    """Yield timers that are due one after the other."""
    registered = iso(now_ms())
    for number in range(count):
        due_ms = first_due_ms + int(number * 1000 / per_second)
        yield tenant, uuid7(first_due_ms, number), "Scheduled", iso(due_ms), registered, None, None, number
