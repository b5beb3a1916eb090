"""The journals that must keep one contract, and timers in memory beside them: a new one is one more entry."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from nats.aio.msg import Msg
from nats.js.api import PubAck

from tests.support.postgres import fresh_schema
from timer_client import Firing
from timer_client.flows import Flows, Journal, MemoryJournal, PostgresJournal, SqliteJournal
from timer_client.flows.statements import Work
from timer_client.testing import FakeTimers
from timer_client.testing.memory_broker import MemoryBroker

Connect = Callable[[], AbstractAsyncContextManager[Journal]]
"""Open the journal once more, as another process does."""


@asynccontextmanager
async def _memory(_: Path) -> AsyncIterator[Connect]:
    journal = MemoryJournal()

    @asynccontextmanager
    async def connect() -> AsyncIterator[Journal]:
        yield journal

    yield connect
    journal.close()


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[Connect]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Journal]:
        journal = SqliteJournal(folder / "journal.db")
        try:
            yield journal
        finally:
            journal.close()

    yield connect


@asynccontextmanager
async def _postgres(_: Path) -> AsyncIterator[Connect]:
    async with fresh_schema() as url:

        @asynccontextmanager
        async def connect() -> AsyncIterator[Journal]:
            pool = await asyncpg.create_pool(url, min_size=1, max_size=4)
            try:
                yield PostgresJournal(pool)
            finally:
                pool.terminate()

        yield connect


JOURNALS: dict[str, Callable[[Path], AbstractAsyncContextManager[Connect]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
}


@dataclass
class Shop:
    """Timers in memory, a journal, and a table of the user's beside it."""

    journal: Journal
    timers: FakeTimers = field(default_factory=FakeTimers)
    done: list[str] = field(default_factory=list)
    """What steps have done."""

    def flows(self, name: str = "shop", **options: Any) -> Flows:
        """Return what another process would have."""
        return Flows(self.timers.of(self.timers.tenant), self.journal, name=name, **options)

    async def prepare(self) -> None:
        """Create all tables."""
        await self.journal.migrate()
        await self.query("CREATE TABLE effects (name text)")

    async def query(self, statement: str, *parameters: object) -> Sequence[Sequence[Any]]:
        """Run a statement of the user's."""
        return await self.journal.commit(_statement(statement, *parameters))

    async def effects(self) -> list[str]:
        """Return what transactions have done."""
        return sorted(row[0] for row in await self.query("SELECT name FROM effects"))

    async def insert(self, connection: Any, name: str) -> str:
        """Do something in a transaction, for `run.transaction`."""
        if hasattr(connection, "fetch"):
            await connection.execute("INSERT INTO effects VALUES ($1)", name)
        else:
            connection.execute("INSERT INTO effects VALUES (?)", (name,))
        return name

    async def do(self, name: str) -> str:
        """Do something, for `run.step`."""
        self.done.append(name)
        return name

    def firing(self, flows: Flows, run_id: str, wake: str = "0/wake", *, deliveries: int = 1) -> Firing:
        """Return a wake-up as the broker delivers it."""
        now = self.timers.now()
        timer = f"flow/{flows.name}/{run_id}/{wake}"
        return Firing("id", flows.timers.tenant, timer, now, now, 1, None, "flow-shop", deliveries)


class Overheard:
    """A connection to the broker, and all that is said on it."""

    def __init__(self, broker: MemoryBroker, said: list[tuple[str, bytes]]) -> None:
        self._broker = broker
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def jetstream(self, **_: object) -> "Overheard":
        return self

    async def publish(self, subject: str, body: bytes, **options: Any) -> PubAck:
        self._said.append((subject, body))
        return await self._broker.publish(subject, body, **options)

    async def request(self, subject: str, body: bytes, **options: Any) -> Msg:
        self._said.append((subject, body))
        return await self._broker.request(subject, body, **options)


def _statement(statement: str, *parameters: object) -> Work[Sequence[Sequence[Any]]]:
    return (yield statement, *parameters)


NIGHT = timedelta(hours=8)
