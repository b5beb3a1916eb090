"""Bring a SQLite file to the schema this program knows, forward only."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiosqlite

from timer_service.domain.errors import StoreFailed, StoreTooNew

_FILE_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")

_CREATE_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS timer_migrations (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
) STRICT
"""
_APPLIED: Final = "SELECT coalesce(max(version), 0) FROM timer_migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str


def load_migrations() -> list[Migration]:
    """Read the migrations: in the installed package, or beside `src` in a source checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "migrations" / "sqlite", package.parents[1] / "migrations" / "sqlite"):
        files = sorted(path for path in folder.glob("*.sql") if _FILE_NAME.fullmatch(path.name))
        if files:
            return [Migration(int(path.name[:4]), path.stem, path.read_text("utf-8")) for path in files]
    raise StoreFailed("the program's own migrations are missing; install it again")


async def migrate(connection: aiosqlite.Connection, path: Path, now: str) -> None:
    """Apply what is missing, each step in a transaction of its own; refuse a newer schema."""
    migrations = load_migrations()
    newest = migrations[-1].version
    await connection.execute(_CREATE_LEDGER)
    applied = await _applied_version(connection)
    if applied > newest:
        raise StoreTooNew(
            f"{path} has schema version {applied}, this program knows {newest}: "
            "run the newer version of timer-service that wrote it"
        )
    for migration in migrations:
        if migration.version > applied:
            await connection.executescript(_as_one_transaction(migration, now))


async def _applied_version(connection: aiosqlite.Connection) -> int:
    async with connection.execute(_APPLIED) as cursor:
        row = await cursor.fetchone()
    return int(row[0]) if row else 0


def _as_one_transaction(migration: Migration, now: str) -> str:
    # executescript takes no parameters; all three values are ours and hold no quote.
    ledger = f"({migration.version}, '{migration.name}', '{now}')"
    return f"BEGIN IMMEDIATE;\n{migration.sql}\nINSERT INTO timer_migrations VALUES {ledger};\nCOMMIT;"
