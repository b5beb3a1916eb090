"""Bring a PostgreSQL database to the schema this program knows, forward only."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from timer_service.adapters.postgres.connections import Connection
from timer_service.domain.errors import StoreFailed, StoreTooNew

LOCK_KEY: Final = 7_401_862_650_443_172_901
"""Of the advisory lock that one migrating instance holds; any number that nobody else takes."""
LOCK_WAIT_MS: Final = 60_000
MIGRATION_LIMIT_S: Final = 3600.0

_FILE_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")

# Ten instances may start at once: one migrates, nine wait here and then find nothing to do.
_BEGIN: Final = f"""
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = {LOCK_WAIT_MS};
SET LOCAL statement_timeout = 0;
SELECT pg_advisory_xact_lock({LOCK_KEY});
"""
_CREATE_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS timer_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_APPLIED: Final = "SELECT coalesce(max(version), 0) FROM timer_migrations"
IS_COPY: Final = "SELECT to_regclass('timer_copy') IS NOT NULL"
"""Whether the database is being filled by `timer-service copy`."""
_IS_MOVED: Final = "SELECT to_regclass('timer_moved') IS NOT NULL"
_MOVED_TO: Final = "SELECT max(target) FROM timer_moved"
_RECORD: Final = "INSERT INTO timer_migrations (version, name) VALUES ($1, $2)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str


def load_migrations() -> list[Migration]:
    """Read the migrations: in the installed package, or beside `src` in a source checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "migrations" / "postgres", package.parents[1] / "migrations" / "postgres"):
        files = sorted(path for path in folder.glob("*.sql") if _FILE_NAME.fullmatch(path.name))
        if files:
            return [Migration(int(path.name[:4]), path.stem, path.read_text("utf-8")) for path in files]
    raise StoreFailed("the program's own migrations are missing; install it again")


async def migrate(connection: Connection, where: str) -> None:
    """Apply what is missing, all in one transaction; refuse a newer schema."""
    migrations = load_migrations()
    # A look without the lock first: where all is done, the user of the service needs no right to create.
    if await _version(connection, where, migrations) == migrations[-1].version:
        return
    await connection.execute(_BEGIN, timeout=LOCK_WAIT_MS / 1000 + 10)
    try:
        await connection.execute(_CREATE_LEDGER)
        applied = await _version(connection, where, migrations)
        for migration in migrations:
            if migration.version > applied:
                await connection.execute(migration.sql, timeout=MIGRATION_LIMIT_S)
                await connection.execute(_RECORD, migration.version, migration.name)
        await connection.execute("COMMIT")
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise


async def _version(connection: Connection, where: str, migrations: Sequence[Migration]) -> int:
    try:
        applied = int(await connection.fetchval(_APPLIED))
    except asyncpg.UndefinedTableError:
        return 0
    newest = migrations[-1].version
    if applied > newest:
        raise StoreTooNew(
            f"{where} has schema version {applied}, this program knows {newest}: "
            "run the newer version of timer-service that wrote it"
        )
    return applied


async def moved_to(connection: "Connection | asyncpg.Connection[asyncpg.Record]") -> str | None:
    """Return the store that `timer-service copy` has moved the timers to, where that is so."""
    return str(await connection.fetchval(_MOVED_TO)) if await connection.fetchval(_IS_MOVED) else None
