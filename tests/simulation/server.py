"""The database server that simulated instances share: a real PostgreSQL, asked while virtual time stands.

Every statement is carried out by the server within one step of the process that asks. One that has to wait
for a lock is left waiting while the others go on. What the server measures by its own clock, and what it ends
after a time, is told by the virtual clock.
"""

import asyncio
import re
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, TypeVar

import asyncpg

from tests.simulation.clock import WallClock
from tests.simulation.loop import PROCESS, Lively, VirtualLoop
from tests.simulation.model import READ_ROWS
from tests.support.patience import PATIENCE_S
from tests.support.postgres import DatabaseClock, database_clock, empty
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.means import PostgresMeans
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.config import Settings
from timer_service.testing import START
from timer_service.wiring.stores import OpenedStore

_TIMES = ("due_at", "registered_at", "reached_at", "cancelled_at", "expired_at")
_TEXT = "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
_READ_ROWS = re.sub(rf"\b({'|'.join(_TIMES)})\b", lambda found: _TEXT.format(found[1]), READ_ROWS)
_LIMIT = re.compile(r"(\w+_timeout) = (\d+)")
_BLOCKED = "SELECT cardinality(pg_blocking_pids($1)) > 0"
_LOOK_S = 0.01
"""A statement that takes longer may be waiting for a lock."""

T = TypeVar("T")
Question = Callable[[Any], Coroutine[Any, Any, Any]]


@dataclass(slots=True)
class ServerFaults:
    """What goes wrong at present."""

    lost_answers: int = 0
    """So many commits will be done, and the connection lost before the answer."""
    slow: float = 0.0


@dataclass(eq=False, slots=True)
class _Blocked:
    connection: "Connection"
    asked: "asyncio.Task[Any]"
    answer: "asyncio.Future[Any]"


@dataclass(slots=True)
class Postgres:
    """A server with one schema, with tables and a clock that can be set; used by one run at a time."""

    url: str
    clock: DatabaseClock
    observer: Any
    loop: asyncio.AbstractEventLoop
    free: list[Any] = field(default_factory=list)
    """Connections that nobody uses, as they were when they were new."""

    def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Have something asked and wait for the answer; no virtual time passes."""
        return _aside(self.loop, asyncio.wait_for(question, PATIENCE_S))

    def begin(self, question: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Have something asked; the answer may take until others have asked."""
        return self.loop.create_task(question)

    def wait_for(self, asked: "asyncio.Task[Any]", seconds: float) -> bool:
        """Wait for an answer for so much real time; return whether it is there."""
        if not asked.done():
            _aside(self.loop, asyncio.wait({asked}, timeout=seconds))
        return asked.done()

    def connect(self) -> Any:
        return self.free.pop() if self.free else self.ask(asyncpg.connect(self.url))

    def empty(self) -> None:
        self.ask(empty(self.observer))


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Open the shared server of the tests for simulated instances."""
    loop = asyncio.new_event_loop()
    ask = partial(_aside, loop)

    async def migrate(url: str) -> Any:
        async with open_postgres_store(url, lambda: START):
            return await asyncpg.connect(url)

    opening = database_clock()
    try:
        clock = ask(opening.__aenter__())
        server = Postgres(clock.url, clock, ask(migrate(clock.url)), loop)
        try:
            yield server
        finally:
            for connection in (*server.free, server.observer):
                ask(connection.close())
            ask(opening.__aexit__(None, None, None))
    finally:
        loop.close()


class Server:
    """The database during one run; stands where a single instance has its disk, and makes connections."""

    path = None

    def __init__(self, postgres: Postgres, loop: VirtualLoop, random: Random, wall: WallClock) -> None:
        self.loop = loop
        self.random = random
        self.faults = ServerFaults()
        self.latency_s = 0.001
        self.injected = 0
        self.failed_for_good = False
        self.on_commit: Callable[[], None] = lambda: None
        self.on_poll: Callable[[], None] = lambda: None
        self.postgres = postgres
        self._wall = wall
        self._connections: list[Connection] = []
        self._blocked: list[_Blocked] = []
        self._listeners: list[tuple[Connection, Callable[..., None]]] = []

    # What stands in for the disk of a single instance.

    def rows(self) -> list[tuple[Any, ...]]:
        """Return what is committed."""
        return [tuple(row) for row in self.postgres.ask(self.postgres.observer.fetch(_READ_ROWS))]

    def process_died(self, process: Lively) -> None:
        """Let the server notice that a process is gone: it undoes what was not committed."""
        for connection in [each for each in self._connections if each.process is process]:
            connection.lose()

    def forget_observer(self) -> None:
        """Keep the observer: it belongs to the server."""

    def cut(self) -> None:
        """Lose every connection, as in a failover."""
        for connection in list(self._connections):
            self.injected += 1
            connection.lose()

    @asynccontextmanager
    async def open_store(
        self, _settings: Settings, now: Callable[[], datetime]
    ) -> AsyncIterator[OpenedStore]:
        """Open the store for the process that asks."""
        means = PostgresMeans(driver=self, elapsed_s=self.loop.time)
        limits = PostgresLimits(max_newest_rows=3, max_sweep_steps=3, max_passed_over=3)
        async with open_postgres_store(self.postgres.url, now, limits=limits, means=means) as store:
            yield OpenedStore(store, store.secrets, store.api_keys, store.audit, store.listen)

    # What stands in for the driver.

    async def create_pool(self, *, max_size: int, init: Any, **_: object) -> "Pool":
        return Pool(self, max_size, init)

    async def connect(self, **_: object) -> "Connection":
        process = _process()
        await self.moment(process)
        connection = Connection(self, process)
        self._connections.append(connection)
        return connection

    async def moment(self, process: Lively) -> None:
        """Let a message take its time; a process that is dead sends none."""
        if not process.dead:
            await asyncio.sleep(self.random.random() * (self.latency_s + self.faults.slow))
        if process.dead:
            raise ConnectionError("the process is dead")

    def perform(self, connection: "Connection", question: Question) -> "asyncio.Future[Any]":
        """Have a statement carried out; whatever waited for it goes on too."""
        asked = self.postgres.begin(self._asked(connection.real, question))
        answer = self.loop.create_future()
        if self._is_done(asked, connection):
            _settle(asked, answer)
        else:
            blocked = _Blocked(connection, asked, answer)
            self._blocked.append(blocked)
            limit_s = connection.limits_s.get("lock_timeout") or PATIENCE_S
            self.loop.world_at(self.loop.time() + limit_s, self._give_up, blocked)
        self.let_go_on()
        return answer

    async def _asked(self, real: Any, question: Question) -> Any:
        await self.postgres.clock.set(_moment(self._wall))
        return await question(real)

    def let_go_on(self) -> None:
        """Carry on with statements whose locks are free now."""
        for blocked in list(self._blocked):
            if blocked in self._blocked and self._is_done(blocked.asked, blocked.connection):
                self._blocked.remove(blocked)
                _settle(blocked.asked, blocked.answer)

    def end_waiting(self, connection: "Connection", error: Exception) -> None:
        """Have the server stop what a connection waits for."""
        for blocked in [each for each in self._blocked if each.connection is connection]:
            self._blocked.remove(blocked)
            cancel = self.postgres.observer.execute(f"SELECT pg_cancel_backend({connection.pid})")
            self.postgres.ask(cancel)
            self.postgres.wait_for(blocked.asked, PATIENCE_S)
            blocked.asked.exception()
            if not blocked.answer.done():
                blocked.answer.set_exception(error)

    def forget(self, connection: "Connection") -> None:
        self._connections.remove(connection)
        self._listeners = [each for each in self._listeners if each[0] is not connection]

    def listen(self, connection: "Connection", hear: Callable[..., None]) -> None:
        self._listeners.append((connection, hear))

    def notify(self, payload: str) -> None:
        """Tell every instance, each a moment later."""
        for connection, hear in self._listeners:
            at = self.loop.time() + self.random.random() * self.latency_s
            self.loop.call_at(at, hear, connection, 0, "", payload, context=connection.context)

    def _give_up(self, blocked: _Blocked) -> None:
        if blocked in self._blocked:
            error = asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
            self.end_waiting(blocked.connection, error)

    def _is_done(self, asked: "asyncio.Task[Any]", connection: "Connection") -> bool:
        """Wait until the server is done with a statement; return whether it is, and not held up by a lock."""
        for _ in range(round(PATIENCE_S / _LOOK_S)):
            if self.postgres.wait_for(asked, _LOOK_S):
                return True
            if self.postgres.ask(self.postgres.observer.fetchval(_BLOCKED, connection.pid)):
                return False
        raise RuntimeError("the server does not answer")


class Connection:
    """One connection of an instance: as much of asyncpg's as the store uses."""

    def __init__(self, server: Server, process: Lively) -> None:
        self.process = process
        self.real = server.postgres.connect()
        self.pid: int = self.real.get_server_pid()
        self.context: Context = copy_context()
        self.limits_s: dict[str, float] = {}
        """What the server would end by its own clock."""
        self._server = server
        self._is_closed = False
        self._on_end: list[Callable[[Any], None]] = []
        self._uses = 0

    async def execute(self, sql: str, *parameters: object, timeout: float | None = None) -> Any:
        for name, milliseconds in _LIMIT.findall(sql):
            self.limits_s[name] = int(milliseconds) / 1000
        sql = _LIMIT.sub(r"\1 = 0", sql)
        return await self._ask(sql, lambda real: real.execute(sql, *parameters))

    async def executemany(self, sql: str, parameters: Sequence[Any]) -> Any:
        return await self._ask(sql, lambda real: real.executemany(sql, parameters))

    async def fetch(self, sql: str, *parameters: object) -> Any:
        if "pg_notify(" in sql:
            self._server.notify(str(parameters[0]))
            return []
        return await self._ask(sql, lambda real: real.fetch(sql, *parameters))

    async def fetchrow(self, sql: str, *parameters: object) -> Any:
        return await self._ask(sql, lambda real: real.fetchrow(sql, *parameters))

    async def fetchval(self, sql: str, *parameters: object) -> Any:
        return await self._ask(sql, lambda real: real.fetchval(sql, *parameters))

    async def add_listener(self, _channel: str, hear: Callable[..., None]) -> None:
        self._server.listen(self, hear)

    def add_termination_listener(self, on_end: Callable[[Any], None]) -> None:
        self._on_end.append(on_end)

    def get_server_version(self) -> Any:
        return self.real.get_server_version()

    def is_closed(self) -> bool:
        return self._is_closed

    def is_in_transaction(self) -> bool:
        return not self._is_closed and bool(self.real.is_in_transaction())

    def terminate(self) -> None:
        """Close it, as the code that uses it does."""
        self._end(asyncpg.InterfaceError("connection is closed"))

    def lose(self) -> None:
        """Close it, as the server or the network does."""
        self._end(asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"))
        for on_end in self._on_end:
            self._server.loop.call_soon(on_end, self, context=self.context)

    def _end(self, error: Exception) -> None:
        if self._is_closed:
            return
        self._server.end_waiting(self, error)
        self._is_closed = True
        self._server.forget(self)
        postgres = self._server.postgres
        if self.real.is_in_transaction():
            postgres.ask(self.real.execute("ROLLBACK"))
        postgres.free.append(self.real)
        self._server.let_go_on()

    async def _ask(self, sql: str, question: Question) -> Any:
        server = self._server
        await server.moment(self.process)
        if self._is_closed:
            raise asyncpg.InterfaceError("connection is closed")
        if "FOR UPDATE" not in sql and "'Scheduled'" in sql and "due_at <=" in sql:
            server.on_poll()
        answer = server.perform(self, question)
        if sql == "COMMIT" and answer.done():
            server.on_commit()
            if server.faults.lost_answers:
                server.faults.lost_answers -= 1
                server.injected += 1
                self.lose()
                raise asyncpg.ConnectionDoesNotExistError("connection was closed after the commit")
        result = await answer
        self._watch_idleness()
        await server.moment(self.process)
        return result

    def _watch_idleness(self) -> None:
        """Let the server end a transaction in which nothing happens for long."""
        self._uses += 1
        limit_s = self.limits_s.get("idle_in_transaction_session_timeout")
        if limit_s and self.is_in_transaction():
            at = self._server.loop.time() + limit_s
            self._server.loop.world_at(at, self._end_idle, self._uses)

    def _end_idle(self, uses: int) -> None:
        if uses == self._uses and self.is_in_transaction():
            self.lose()


class Pool:
    """A pool as asyncpg's: it connects when it is first used, and gives out what came back last."""

    def __init__(self, server: Server, max_size: int, init: Any) -> None:
        self._server = server
        self._init = init
        self._room = asyncio.Semaphore(max_size)
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()

    async def acquire(self, timeout: float) -> Connection:
        async with asyncio.timeout(timeout):
            await self._server.moment(_process())
            await self._room.acquire()
            try:
                connection = await self._open_one()
            except BaseException:
                self._room.release()
                raise
        self._used.add(connection)
        return connection

    async def release(self, connection: Connection, timeout: float) -> None:
        if connection in self._used:
            self._used.remove(connection)
            self._room.release()
            if not connection.is_closed():
                self._idle.append(connection)

    async def expire_connections(self) -> None:
        self.terminate()

    async def close(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        for connection in (*self._idle, *self._used):
            connection.terminate()

    async def _open_one(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        connection = await self._server.connect()
        try:
            await self._init(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection


def _process() -> Lively:
    process = PROCESS.get()
    assert process is not None
    return process


def _aside(loop: asyncio.AbstractEventLoop, question: Coroutine[Any, Any, T]) -> T:
    """Run something to its end on a loop of real time, inside a step of the virtual one."""
    virtual = _get_running_loop()
    _set_running_loop(None)
    try:
        return loop.run_until_complete(question)
    finally:
        _set_running_loop(virtual)


def _settle(asked: "asyncio.Task[Any]", answer: "asyncio.Future[Any]") -> None:
    if answer.done():
        return
    error = asked.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(asked.result())


def _moment(wall: WallClock) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=wall.now_ms())
