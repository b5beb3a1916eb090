"""The journal in PostgreSQL: for workers on several machines."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from timer_client.flows.journal import settle
from timer_client.flows.statements import Hold, Memo, Work, held, migrate, save

# Two processes that create the tables at once would fail, IF NOT EXISTS or not.
_ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtextextended('timer_client.flows', 0))"

T = TypeVar("T")


class PostgresJournal:
    """The tables of a database that an asyncpg pool of yours leads to."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def migrate(self) -> None:
        """Create the tables where they are missing."""
        async with self._transaction() as connection:
            await connection.fetch(_ONE_AT_A_TIME)
            await settle(migrate(), connection.fetch)

    async def commit(self, work: Work[T], connection: Any = None) -> T:
        """Do an operation in one transaction."""
        if connection is not None:
            return await settle(work, connection.fetch)
        async with self._transaction() as own:
            return await settle(work, own.fetch)

    async def perform(self, hold: Hold, effect: Callable[[Any], Awaitable[list[Memo]]]) -> None:
        """Commit a worker's effect and its memos together."""
        async with self._transaction() as connection:
            await settle(held(hold), connection.fetch)
            await settle(save(hold, await effect(connection)), connection.fetch)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        # Whatever the default of the database: a lock that was waited for shows the row as it is then.
        async with self._pool.acquire() as one, one.transaction(isolation="read_committed"):
            yield one
