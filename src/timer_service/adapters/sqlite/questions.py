"""Answers to callers: each has a time limit, no tenant has more than its share, and the log can be reset."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiosqlite

from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.domain.errors import StoreBusy
from timer_service.waiting import owned

ANSWERERS: Final = 3
"""Connections that answer. A tenant has one of them at a time: others do not wait for all that it asks."""
INTERRUPT_AGAIN_S: Final = 0.01
NOBODY: Final = ""
"""Who asks for counts: no tenant."""


@dataclass(slots=True)
class _Share:
    """Who of a tenant asks, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    askers: int = 0


class Questions:
    """A few read-only connections that are not needed for firing."""

    def __init__(self, path: Path, connections: Sequence[aiosqlite.Connection], limits: SqliteLimits) -> None:
        self._path = path
        self._timeout_s = limits.question_timeout_s
        self._hold_timeout_s = limits.hold_timeout_s
        self._connections = list(connections)
        self._free = asyncio.Semaphore(len(connections))
        self._running: set[aiosqlite.Connection] = set()
        self._broken_off: set[aiosqlite.Connection] = set()
        """Whose last question may still be under way, or may even begin."""
        self._shares = defaultdict[str, _Share](_Share)
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._quiet = asyncio.Event()

    async def ask(self, tenant_id: str, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        """Return the answer; raise StoreBusy if it takes too long."""
        async with self.asking(tenant_id) as connection:
            return list(await connection.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    @asynccontextmanager
    async def asking(self, tenant_id: str) -> AsyncIterator[aiosqlite.Connection]:
        """Lend a connection for as long as a question may take."""
        share = self._shares[tenant_id]
        share.askers += 1
        try:
            async with asyncio.timeout(self._timeout_s), share.lock, self._free:
                await self._allowed.wait()
                async with self._lent() as connection:
                    yield connection
        except TimeoutError as error:
            raise StoreBusy(f"a query took longer than {self._timeout_s:g} s") from error
        finally:
            share.askers -= 1
            # Not by the lock: between one who gives it back and the next who takes it, it looks free.
            if not share.askers:
                del self._shares[tenant_id]

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[aiosqlite.Connection]:
        connection = self._connections.pop()
        self._running.add(connection)
        try:
            with translated(self._path):
                if connection in self._broken_off:
                    await self._quieten(connection)
                yield connection
        except BaseException:
            # Nobody waits for the answer any more.
            self._broken_off.add(connection)
            await connection.interrupt()
            raise
        finally:
            self._running.discard(connection)
            self._connections.append(connection)
            if not self._running:
                self._quiet.set()

    async def _quieten(self, connection: aiosqlite.Connection) -> None:
        """See the question before to its end: an interrupt that comes before it has begun is lost."""
        async with owned(_turn_of(connection)) as (turn,):
            while not turn.done():
                await connection.interrupt()
                await asyncio.wait({turn}, timeout=INTERRUPT_AGAIN_S)
        self._broken_off.discard(connection)

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """Hold back questions for a moment; interrupt those that do not end."""
        self._allowed.clear()
        try:
            for _ in range(2):
                await self._wait_until_quiet()
                for connection in self._running:
                    await connection.interrupt()
            yield
        finally:
            self._allowed.set()

    async def _wait_until_quiet(self) -> None:
        if not self._running:
            return
        self._quiet.clear()
        try:
            async with asyncio.timeout(self._hold_timeout_s):
                await self._quiet.wait()
        except TimeoutError:
            pass  # They are interrupted next.


async def _turn_of(connection: aiosqlite.Connection) -> None:
    """Wait until a connection has come to the end of all that it was asked before."""
    await connection.execute_fetchall("SELECT 1")
