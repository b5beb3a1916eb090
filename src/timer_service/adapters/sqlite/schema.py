"""Bring a SQLite file to the schema this program knows, forward only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiosqlite

from timer_service.adapters.migrations import Migration, load_migrations, missing

CREATE_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS timer_migrations (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
) STRICT
"""
_APPLIED: Final = "SELECT coalesce(max(version), 0) FROM timer_migrations"


async def migrate(
    connection: aiosqlite.Connection, path: Path, now: str, migrations: Sequence[Migration] | None = None
) -> None:
    """Apply what is missing, each step in a transaction of its own; refuse a newer schema."""
    await connection.execute(CREATE_LEDGER)
    applied = await _applied_version(connection)
    for migration in missing(migrations or load_migrations("sqlite"), applied, str(path)):
        await connection.executescript(as_one_transaction(migration, now))


async def _applied_version(connection: aiosqlite.Connection) -> int:
    async with connection.execute(_APPLIED) as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


def as_one_transaction(migration: Migration, now: str) -> str:
    """Return the step and its entry in the ledger as one script."""
    # executescript takes no parameters; all three values are ours and hold no quote.
    ledger = f"({migration.version}, '{migration.name}', '{now}')"
    return f"BEGIN IMMEDIATE;\n{migration.sql}\nINSERT INTO timer_migrations VALUES {ledger};\nCOMMIT;"
