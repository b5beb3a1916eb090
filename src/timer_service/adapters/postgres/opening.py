"""The start: wait for the database, bring it up to date, and make sure that it can be worked on."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import asyncpg
import structlog

from timer_service.adapters.migrations import Migration
from timer_service.adapters.postgres.connections import Address, Check, Connection, Connections
from timer_service.adapters.postgres.schema import IS_COPY, migrate, moved_to
from timer_service.domain.errors import InvalidConfiguration, StoreBusy, StoreFailed, TransientError

OLDEST_POSTGRES: Final = 14
START_PAUSE_S: Final = 0.5

_CHECK: Final = """
SELECT current_setting('server_encoding'), pg_is_in_recovery(), (
  SELECT bool_and(
    has_table_privilege('timer_schedules', privilege)
    AND (privilege = 'DELETE' OR has_table_privilege('timer_stream_epochs', privilege)))
  FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege)
"""

log = structlog.get_logger(__name__)


def not_moved(address: Address) -> Check:
    """Return what refuses every connection to a database whose timers were moved to another store.

    At each connection, not only at the start: an instance that had lost its connections while the timers were
    copied must not go on with them here.
    """

    async def check(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        target = await moved_to(connection)
        if target is not None:
            raise StoreFailed(
                f"the timers of {address.shown} were moved to {target}: start the service there. To use this "
                "database again, make sure that nothing runs there and run `timer-service reopen URL`"
            )

    return check


async def wait_for(
    connections: Connections, patience_s: float, migrations: Sequence[Migration] | None = None
) -> None:
    """Wait until the database is there, and make it ready."""
    deadline = time.monotonic() + patience_s
    told = False
    while True:
        try:
            async with connections.connection() as connection:
                await _prepare(connection, connections.where, migrations)
                return
        except TransientError as error:
            if time.monotonic() >= deadline:
                raise StoreFailed(f"cannot use the database at start: {error}") from error
            if not told:
                log.warning("store.unavailable", kind=type(error).__name__, detail=str(error))
                told = True
            await asyncio.sleep(START_PAUSE_S)
        except ValueError as error:  # The driver reads the address only when it connects.
            raise InvalidConfiguration(
                f"TIMER_STORE_URL must be postgresql://user:password@host:port/database: {error}"
            ) from error


async def _prepare(connection: Connection, where: str, migrations: Sequence[Migration] | None) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_POSTGRES:
        raise StoreFailed(
            f"{where}: PostgreSQL {version.major} is too old: {OLDEST_POSTGRES} or newer is needed"
        )
    await migrate(connection, where, migrations)
    row = await connection.fetchrow(_CHECK)
    assert row is not None
    encoding, is_replica, may_write = row
    if encoding != "UTF8":
        raise StoreFailed(f"{where}: the database's encoding is {encoding}: create it with ENCODING 'UTF8'")
    if is_replica:
        raise StoreBusy(f"{where}: this server is a read-only replica")
    if await connection.fetchval(IS_COPY):
        raise StoreFailed(f"{where} holds an unfinished copy: run the same `timer-service copy` again")
    if not may_write:
        raise StoreFailed(f"{where}: this user may not write; grant what docs/postgresql.md lists")
