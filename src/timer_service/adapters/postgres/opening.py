"""The start: wait for the database, bring it up to date, and make sure that it can be worked on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Final

import asyncpg
import structlog

from timer_service.adapters.migrations import Migration
from timer_service.adapters.postgres.connections import (
    Address,
    Check,
    Connection,
    Connections,
    open_connections,
)
from timer_service.adapters.postgres.hints import Hints
from timer_service.adapters.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from timer_service.adapters.postgres.means import REAL_MEANS, PostgresMeans
from timer_service.adapters.postgres.schema import IS_COPY, migrate, moved_to
from timer_service.adapters.postgres.store import PostgresTimerStore
from timer_service.domain.errors import InvalidConfiguration, StoreBusy, StoreFailed, TransientError

MIN_POSTGRES: Final = 14
WORK_CONNECTIONS: Final = 3
"""Applying commands, holding a claim, and deleting or marking besides."""
ANSWER_CONNECTIONS: Final = 3
"""So that questions and requests never keep the work waiting."""
CALLBACK_CONNECTIONS: Final = 4
"""Claims of timers that fire over HTTP, and their deliveries: these keep no other work waiting."""
STATEMENT_CACHE_SIZE: Final = 100

_CHECK: Final = """
SELECT current_setting('server_encoding'), pg_is_in_recovery(), (
  SELECT bool_and(
    (SELECT bool_and(has_table_privilege(name, privilege)) FROM unnest(ARRAY[
      'timer_schedules', 'timer_callbacks', 'callback_deliveries', 'callback_attempts', 'callback_instances'
    ]) AS name)
    AND (privilege = 'DELETE' OR has_table_privilege('timer_stream_epochs', privilege)))
  FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege)
"""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_postgres_store(
    url: str,
    now: Callable[[], datetime],
    *,
    statement_cache_size: int = STATEMENT_CACHE_SIZE,
    limits: PostgresLimits = DEFAULT_LIMITS,
    migrations: Sequence[Migration] | None = None,
    means: PostgresMeans = REAL_MEANS,
) -> AsyncIterator[PostgresTimerStore]:
    """Connect, bring the schema up to date and open the store.

    A database that is away is waited for, within bounds. Behind a pooler in transaction mode that knows no
    prepared statements, `statement_cache_size` has to be 0.
    """
    address = Address(url, statement_cache_size, driver=means.driver)
    check = not_moved(address)
    async with (
        open_connections(address, WORK_CONNECTIONS, check=check, limits=limits) as work,
        open_connections(address, ANSWER_CONNECTIONS, asked=True, check=check, limits=limits) as answers,
        open_connections(address, CALLBACK_CONNECTIONS, check=check, limits=limits) as for_callbacks,
    ):
        await wait_for(work, limits, migrations, means.elapsed_s)
        if not await work.waits_for_disk():
            work.make_durable()
            answers.make_durable()
            for_callbacks.make_durable()
        hints = Hints(address, answers, now, limits.reconnect_pause_s)
        store = PostgresTimerStore(work, answers, for_callbacks, hints, now, limits, means.elapsed_s)
        with suppress(TransientError):  # Start even if the server is busy: it is measured again.
            await store.measure_skew()
        await store.statistics.learn()
        async with hints.telling():
            try:
                yield store
            finally:
                await store.deliveries.leave()


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
    connections: Connections,
    limits: PostgresLimits,
    migrations: Sequence[Migration] | None = None,
    elapsed_s: Callable[[], float] = REAL_MEANS.elapsed_s,
) -> None:
    """Wait until the database is there, and make it ready."""
    deadline = elapsed_s() + limits.start_timeout_s
    told = False
    while True:
        try:
            async with connections.connection() as connection:
                await _prepare(connection, connections.where, migrations)
                return
        except TransientError as error:
            if elapsed_s() >= deadline:
                raise StoreFailed(f"cannot use the database at start: {error}") from error
            if not told:
                log.warning("store.unavailable", kind=type(error).__name__, detail=str(error))
                told = True
            await asyncio.sleep(limits.start_pause_s)
        except ValueError as error:  # The driver reads the address only when it connects.
            raise InvalidConfiguration(
                f"TIMER_STORE_URL must be postgresql://user:password@host:port/database: {error}"
            ) from error


async def _prepare(connection: Connection, where: str, migrations: Sequence[Migration] | None) -> None:
    version = connection.get_server_version()
    if version.major < MIN_POSTGRES:
        raise StoreFailed(
            f"{where}: PostgreSQL {version.major} is too old: {MIN_POSTGRES} or newer is needed"
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
