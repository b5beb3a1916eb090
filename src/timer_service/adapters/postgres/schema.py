"""Bring a PostgreSQL database to the schema this program knows, forward only."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from timer_service.adapters.migrations import Migration, announced, load_migrations, missing
from timer_service.adapters.postgres.connections import Connection

LOCK_KEY: Final = 7_401_862_650_443_172_901
"""Of the advisory lock that one migrating instance holds, and in those of timers; nobody else takes it."""
LOCK_TIMEOUT_MS: Final = 60_000
MIGRATION_TIMEOUT_S: Final = 3600.0

# Ten instances may start at once: one migrates, nine wait here and then find nothing to do.
_BEGIN: Final = f"""
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS};
SET LOCAL statement_timeout = 0;
SELECT pg_advisory_xact_lock({LOCK_KEY});
"""
CREATE_LEDGER: Final = """
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


async def migrate(connection: Connection, where: str, migrations: Sequence[Migration] | None = None) -> None:
    """Apply what is missing, all in one transaction; refuse a newer schema."""
    migrations = migrations or load_migrations("postgres")
    # A look without the lock first: if all is done, the user of the service needs no right to create.
    if not missing(migrations, await _version(connection), where):
        return
    await connection.execute(_BEGIN, timeout=LOCK_TIMEOUT_MS / 1000 + 10)
    try:
        await connection.execute(CREATE_LEDGER)
        applied = await _version(connection)
        for migration in missing(migrations, applied, where):
            with announced(migration, applied, where):
                await connection.execute(migration.sql, timeout=MIGRATION_TIMEOUT_S)
            await connection.execute(_RECORD, migration.version, migration.name)
        await connection.execute("COMMIT")
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise


async def _version(connection: Connection) -> int:
    try:
        return int(await connection.fetchval(_APPLIED))
    except asyncpg.UndefinedTableError:
        return 0


async def moved_to(connection: "Connection | asyncpg.Connection[asyncpg.Record]") -> str | None:
    """Return the store that `timer-service copy` has moved the timers to, if that is so."""
    return str(await connection.fetchval(_MOVED_TO)) if await connection.fetchval(_IS_MOVED) else None
