"""Bring a SQLite file to the schema this program knows, forward only; and tables that say what a file is."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiosqlite

from timer_service.adapters.migrations import Migration, announced, load_migrations, missing

LEDGER: Final = "timer_migrations"
COPY: Final = "timer_copy"
"""The table of a file that is being filled by `timer-service copy`."""
MOVED: Final = "timer_moved"
"""The table of a file whose timers `timer-service copy` has moved to another store."""
NEW: Final = "timer_new"
"""The table of a file that a service made, until it is known that no other should be in its place."""

CREATE_LEDGER: Final = f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
) STRICT
"""
_APPLIED: Final = f"SELECT coalesce(max(version), 0) FROM {LEDGER}"  # noqa: S608 - constants
INTERRUPT_AGAIN_S: Final = 0.01
# An index of ten million timers is sorted in 16 MB of memory and in temporary files, not in memory alone.
_SORT_ON_DISK: Final = "PRAGMA temp_store = FILE;\n"
_SORT_IN_MEMORY: Final = "\nPRAGMA temp_store = MEMORY;"
_EXISTS: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"


async def migrate(
    connection: aiosqlite.Connection, path: Path, now: str, migrations: Sequence[Migration] | None = None
) -> None:
    """Apply what is missing, each step in a transaction of its own; refuse a newer schema."""
    await connection.execute(CREATE_LEDGER)
    applied = await _applied_version(connection)
    steps = missing(migrations or load_migrations("sqlite"), applied, str(path))
    for migration in steps:
        with announced(migration, applied, str(path)):
            await _run(connection, as_one_transaction(migration, now))


async def _run(connection: aiosqlite.Connection, script: str) -> None:
    """Run a step; if the start is broken off meanwhile, break the step off, too: nothing of it remains."""
    try:
        await connection.executescript(_SORT_ON_DISK + script + _SORT_IN_MEMORY)
    except asyncio.CancelledError:
        # Again and again: an interrupt that comes before the script has begun is lost.
        turn = asyncio.ensure_future(connection.execute_fetchall("SELECT 1"))
        while not turn.done():
            await connection.interrupt()
            await asyncio.wait({turn}, timeout=INTERRUPT_AGAIN_S)
        turn.exception()  # It may have been interrupted, too.
        raise


async def _applied_version(connection: aiosqlite.Connection) -> int:
    async with connection.execute(_APPLIED) as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


def as_one_transaction(migration: Migration, now: str) -> str:
    """Return the step and its entry in the ledger as one script."""
    # executescript takes no parameters; all three values are ours and hold no quote.
    ledger = f"({migration.version}, '{migration.name}', '{now}')"
    return f"BEGIN IMMEDIATE;\n{migration.sql}\nINSERT INTO {LEDGER} VALUES {ledger};\nCOMMIT;"


async def exists(connection: aiosqlite.Connection, table: str) -> bool:
    """Return whether the file has such a table."""
    [(found,)] = await connection.execute_fetchall(_EXISTS, (table,))
    return bool(found)


async def moved_to(connection: aiosqlite.Connection) -> str | None:
    """Return the store that this one's timers were copied to, if that is so."""
    if not await exists(connection, MOVED):
        return None
    [(target,)] = await connection.execute_fetchall(f"SELECT max(target) FROM {MOVED}")  # noqa: S608
    return str(target)
