"""A PostgreSQL database that no service is using, read or written from end to end."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from timer_service.adapters import callback_rows as columns
from timer_service.adapters import rows
from timer_service.adapters.postgres import arrays
from timer_service.adapters.postgres.api_keys import PostgresApiKeys
from timer_service.adapters.postgres.connections import (
    APPLICATION_NAME,
    Address,
    Connection,
    Connections,
    open_connections,
)
from timer_service.adapters.postgres.copy_state import PostgresCopyState
from timer_service.adapters.postgres.delivery_statements import (
    GET_ATTEMPTS,
    GET_CALLBACKS,
    GET_DELIVERIES,
    KEEP_ATTEMPT,
    KEEP_CALLBACK,
    KEEP_DELIVERY,
)
from timer_service.adapters.postgres.epochs import READ as READ_EPOCHS
from timer_service.adapters.postgres.epochs import insert_epochs, stream_epochs
from timer_service.adapters.postgres.schema import migrate
from timer_service.adapters.postgres.secrets import PostgresSecretStore
from timer_service.adapters.postgres.statements import CALLBACK_TABLES
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import StoreInUse
from timer_service.domain.messages import ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import CallbackRecord

COPY_NAME: Final = f"{APPLICATION_NAME} copy"
STEP_TIMEOUT_S: Final = 600.0
"""For counting all timers and the like."""
MAX_LOOKS: Final = 50
LOOK_AGAIN_S: Final = 0.1
"""A session that has ended stays in the server's list until its process has gone."""

_OTHERS: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name IN ($1, $2)
"""
# One snapshot for the whole copy, and nobody changes or claims anything meanwhile. A weaker mode lets the row
# locks of a claim pass: an instance that was away would publish what is being copied.
_HOLD_STILL: Final = """
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL lock_timeout = 5000;
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL synchronous_commit = on;
LOCK TABLE timer_schedules, timer_callbacks, callback_deliveries, callback_attempts IN EXCLUSIVE MODE
"""
_READ: Final = f"""
SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
WHERE (tenant_id, service_call_id) > ($1, $2)
ORDER BY tenant_id, service_call_id
LIMIT $3
"""  # noqa: S608 - constants
_WRITE: Final = f"INSERT INTO timer_schedules ({rows.TIMER_COLUMNS}) SELECT * FROM {arrays.GIVEN}"  # noqa: S608
_LAST: Final = """
SELECT tenant_id, service_call_id FROM timer_schedules
ORDER BY tenant_id DESC, service_call_id DESC LIMIT 1
"""


@asynccontextmanager
async def open_postgres_archive(url: str, *, as_source: bool) -> AsyncIterator["PostgresArchive"]:
    """Bring the schema up to date and make sure that no service is at work, nor will be."""
    async with open_connections(_address(url), 1) as connections, connections.connection() as connection:
        await migrate(connection, connections.where)
        if not await _is_alone(connection):
            raise StoreInUse(
                f"{connections.where} is in use by a timer-service: stop every instance, then copy"
            )
        if as_source:
            await connection.execute(_HOLD_STILL)
        yield PostgresArchive(connections, connection)
        if as_source and connection.is_in_transaction():
            await connection.execute("ROLLBACK")


async def _is_alone(connection: Connection) -> bool:
    """Return whether nobody else is at work, nor about to leave."""
    for _ in range(MAX_LOOKS):
        if not await connection.fetchval(_OTHERS, APPLICATION_NAME, COPY_NAME):
            return True
        await asyncio.sleep(LOOK_AGAIN_S)
    return False


@asynccontextmanager
async def open_archived_tables(url: str) -> AsyncIterator[tuple[PostgresSecretStore, PostgresApiKeys]]:
    """Open the secrets and the API keys of a database whose schema is up to date."""
    async with open_connections(_address(url), 1) as connections:
        yield PostgresSecretStore(connections), PostgresApiKeys(connections)


def _address(url: str) -> Address:
    return Address(url, statement_cache_size=0, application_name=COPY_NAME)


class PostgresArchive:
    """The timers of one PostgreSQL database."""

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections = connections
        self._connection = connection
        self.name = connections.where
        self.copying = PostgresCopyState(connections, connection)

    async def count(self) -> int:
        """Return how many timers there are."""
        return int(await self._value("SELECT count(*) FROM timer_schedules"))

    async def last_key(self) -> TimerKey | None:
        """Return the greatest key."""
        row = await self._connection.fetchrow(_LAST)
        return (TenantId(row[0]), ServiceCallId(row[1])) if row else None

    async def read(self, after: TimerKey | None, limit: int) -> list[Timer]:
        """Return the next timers in the order of the key."""
        found = await self._connection.fetch(_READ, *(after or ("", "")), limit)
        return [rows.timer(row) for row in found]

    async def records(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Return what is kept of the callbacks of timers."""
        wanted = arrays.transposed(keys, 2)
        return columns.records(
            await self._connection.fetch(GET_CALLBACKS, *wanted),
            await self._connection.fetch(GET_DELIVERIES, *wanted),
            await self._connection.fetch(GET_ATTEMPTS, *wanted),
        )

    async def write(self, timers: Sequence[Timer], records: Mapping[TimerKey, CallbackRecord]) -> None:
        """Add timers and their callbacks in one transaction."""
        kept = columns.archived(timers, records)
        async with self._connections.transaction_on(self._connection):
            await self._connection.execute(_WRITE, *rows.columns(timers))
            for sql, values in zip((KEEP_CALLBACK, KEEP_DELIVERY, KEEP_ATTEMPT), kept, strict=True):
                await self._connection.executemany(sql, values)

    async def epochs(self) -> list[StreamEpoch]:
        """Return the epochs of the command streams."""
        return stream_epochs(await self._connection.fetch(READ_EPOCHS))

    async def write_epochs(self, epochs: Sequence[StreamEpoch]) -> None:
        """Replace all epochs with these."""
        async with self._connections.transaction_on(self._connection):
            await self._connection.execute("DELETE FROM timer_stream_epochs")
            await insert_epochs(self._connection, epochs)

    async def clear(self) -> None:
        """Delete every timer."""
        await self._connection.execute(f"TRUNCATE timer_schedules, {', '.join(CALLBACK_TABLES)}")

    async def _value(self, sql: str) -> Any:
        return await self._connection.fetchval(sql, timeout=STEP_TIMEOUT_S)
