"""A few connections to one database: every wait has an end, and no session is relied on.

Settings hold for one transaction each, so that a pooler in transaction mode may sit in between.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from timer_service.adapters.postgres.errors import translated
from timer_service.adapters.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from timer_service.adapters.postgres.means import REAL_MEANS, Driver
from timer_service.addresses import UNCLEAR, is_clear, without_credentials
from timer_service.domain.errors import InvalidConfiguration, StoreBusy

if TYPE_CHECKING:  # The driver's classes are generic in its type stubs only.
    Connection = PoolConnectionProxy[asyncpg.Record]
else:
    Connection = PoolConnectionProxy
Row = asyncpg.Record
Check = Callable[["asyncpg.Connection[asyncpg.Record]"], Coroutine[Any, Any, None]]

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 10.0
"""Longer than the server's own limit: only a dead connection takes this long."""
RELEASE_TIMEOUT_S: Final = 2.0
APPLICATION_NAME: Final = "timer-service"
HAS_TRANSACTION_TIMEOUT: Final = 17
BY_INDEX: Final = "SET LOCAL enable_seqscan = off"
"""Every question has its index; a server that knows too little of a table would rather read all of it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is and how to connect."""

    url: str
    statement_cache_size: int
    application_name: str = APPLICATION_NAME
    driver: Driver = REAL_MEANS.driver

    @property
    def shown(self) -> str:
        """The address without the password."""
        return without_credentials(self.url)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the driver needs to connect."""
        return {
            "dsn": self.url,
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": ANSWER_TIMEOUT_S,
            "statement_cache_size": self.statement_cache_size,
            "server_settings": {"application_name": self.application_name},
        }


class Connections:
    """A pool of connections, each used for one statement or one transaction at a time."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        where: str,
        *,
        asked: bool,
        limits: PostgresLimits = DEFAULT_LIMITS,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self.where = where
        self._asked = asked
        self._durable = ""

    async def waits_for_disk(self) -> bool:
        """Return whether a commit waits for the disk by itself: the database may be set not to."""
        async with self.connection() as connection:
            return bool(await connection.fetchval("SELECT current_setting('synchronous_commit')") != "off")

    def make_durable(self) -> None:
        """Wait for the disk at every commit all the same."""
        self._durable = "SET LOCAL synchronous_commit = on;"

    async def acquire(self) -> Connection:
        """Take a connection; the caller has to give it back with `release`."""
        with translated(self.where, asked=self._asked):
            return await self._pool.acquire(timeout=self._limits.acquire_timeout_s)

    async def release(self, connection: Connection) -> None:
        """Give a connection back; one that is not as it was taken is closed instead."""
        with suppress(Exception):  # It is of no more use to us, whatever is wrong with it.
            if is_open(connection) and connection.is_in_transaction():
                connection.terminate()
            await self._pool.release(connection, timeout=RELEASE_TIMEOUT_S)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Use a connection for single statements."""
        connection = await self.acquire()
        try:
            with translated(self.where, asked=self._asked):
                yield connection
        except StoreBusy as error:
            await self.drop_unusable(connection, error)
            raise
        except asyncio.CancelledError:
            close(connection)  # The answer to what was asked may still come in.
            raise
        finally:
            await self.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Run the block in one transaction, durable when it ends, undone if it raises."""
        async with self.connection() as connection, self.transaction_on(connection):
            yield connection

    @asynccontextmanager
    async def transaction_on(self, connection: Connection) -> AsyncIterator[None]:
        """Do the same on a connection that was taken before."""
        await self.begin(connection)
        try:
            yield
            await commit(connection)
        except Exception:
            await roll_back(connection)
            raise

    async def begin(self, connection: Connection, hold_s: float | None = None) -> None:
        """Begin a transaction that the server ends if we are silent for `hold_s`."""
        statement_s = self._limits.statement_timeout_s
        hold_s = statement_s if hold_s is None else hold_s
        total_s = hold_s + statement_s
        has_total = connection.get_server_version().major >= HAS_TRANSACTION_TIMEOUT
        await connection.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED;"
            f"SET LOCAL lock_timeout = {self._limits.lock_timeout_s * 1000:.0f};"
            f"SET LOCAL statement_timeout = {statement_s * 1000:.0f};"
            f"SET LOCAL idle_in_transaction_session_timeout = {hold_s * 1000:.0f};"
            + (f"SET LOCAL transaction_timeout = {total_s * 1000:.0f};" if has_total else "")
            + self._durable
        )

    async def fetch(self, sql: str, *parameters: object) -> list[Row]:
        """Run one statement of its own."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *parameters)

    async def ask(self, sql: str, *parameters: object, limit_s: float | None = None) -> list[Row]:
        """Answer a question; the server itself gives up after `limit_s`, if given."""
        limit_ms = (self._limits.question_timeout_s if limit_s is None else limit_s) * 1000
        async with self.connection() as connection:
            await connection.execute(
                f"BEGIN READ ONLY; SET LOCAL statement_timeout = {limit_ms:.0f}; {BY_INDEX}"
            )
            try:
                return await connection.fetch(sql, *parameters)
            finally:
                await roll_back(connection)

    async def drop_unusable(self, connection: Connection | None, error: StoreBusy) -> None:
        """Drop connections that no longer reach a writable server."""
        cause = error.__cause__
        if connection is not None and isinstance(cause, TimeoutError):
            close(connection)
        if isinstance(cause, asyncpg.ReadOnlySQLTransactionError):
            # After a failover these lead to the old primary: connect again, to whichever takes writes.
            await self._pool.expire_connections()


def is_open(connection: Connection) -> bool:
    """Say whether a taken connection is still there: the server, too, may have closed it."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False  # The pool has it back already, to connect again.


def close(connection: Connection) -> None:
    """Close a connection at once; the server then undoes what was not committed."""
    if is_open(connection):
        connection.terminate()


async def commit(connection: Connection) -> None:
    """Commit, and notice if the server rolled back instead."""
    if await connection.execute("COMMIT") != "COMMIT":
        raise StoreBusy("the server rolled the transaction back")


async def roll_back(connection: Connection) -> None:
    """Undo the transaction; if even that fails, close the connection, which does the same."""
    if is_open(connection):
        try:
            await connection.execute("ROLLBACK", timeout=RELEASE_TIMEOUT_S)
        except Exception:
            close(connection)


@asynccontextmanager
async def open_connections(
    address: Address,
    at_most: int,
    *,
    asked: bool = False,
    check: Check | None = None,
    limits: PostgresLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Connections]:
    """Open a pool; it connects when it is first used, and again whenever that is needed.

    On one that is for requests of strangers (`asked`) hardly any error is critical. `check` looks at each new
    connection and raises if it must not be used.
    """
    if not is_clear(address.url):
        raise InvalidConfiguration(f"the address of the PostgreSQL database cannot be read: {UNCLEAR}")
    with translated(address.shown):
        pool = await address.driver.create_pool(
            min_size=0, max_size=at_most, reset=_no_reset, init=check, **address.arguments
        )
    try:
        yield Connections(pool, address.shown, asked=asked, limits=limits)
    finally:
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await pool.close()
        except TimeoutError:
            pool.terminate()


async def _no_reset(_: Any) -> None:
    """Leave a connection as it is between two uses: nothing that we set outlives its transaction."""


def affected(status: str) -> int:
    """Return how many rows a statement changed, as its status says."""
    return int(status.rpartition(" ")[2])
