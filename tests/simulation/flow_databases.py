"""The journals of simulated processes: the real ones, whose work is a step of the process like any other."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg

from tests.simulation.loop import Lively
from tests.support.flows import Shop
from tests.support.patience import PATIENCE_S
from tests.support.postgres import fresh_schema
from timer_client.flows import Journal, MemoryJournal, PostgresJournal, SqliteJournal
from timer_client.flows.statements import TABLES

EFFECTS = "CREATE TABLE effects (name text)"
EMPTIED = ("flow_runs", "flow_steps", "effects")

T = TypeVar("T")


class Owner(Lively, Protocol):
    """The process that a connection belongs to."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Do something at its next step."""


Opened = tuple[Journal, Callable[[], None]]
"""A journal, and what the machine does with its connection when the process ends."""


class Database(Protocol):
    """Where journals are kept; empty at first."""

    async def empty(self) -> None:
        """Forget everything."""

    def open(self, owner: Owner) -> Opened:
        """Open it for a process."""


class Work(Executor):
    """What a thread would do, done at a later step of the process."""

    def __init__(self, owner: Owner, queue: "WriteLock | None" = None) -> None:
        self._owner = owner
        self._queue = queue

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> "Future[T]":
        future: Future[T] = Future()

        def work() -> None:
            try:
                if self._owner.dead:
                    raise ConnectionError("the process is dead")
                if self._queue is not None and not self._queue.is_free_for(self._owner):
                    self._owner.soon(work)
                    return
                future.set_result(function(*arguments, **named))
            except Exception as error:
                future.set_exception(error)

        self._owner.soon(work)
        return future


class WriteLock:
    """Who may write to a file that several processes share: one who waits for another must let it go on."""

    def __init__(self, path: Path) -> None:
        self._asks = sqlite3.connect(path, timeout=0, isolation_level=None)
        self._holder: Owner | None = None

    def close(self) -> None:
        self._asks.close()

    def is_free_for(self, owner: Owner) -> bool:
        """Return whether nobody else is inside a transaction; the owner is the next one who may be."""
        if not self._is_free():
            return self._holder is owner
        self._holder = owner
        return True

    def _is_free(self) -> bool:
        try:
            self._asks.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        self._asks.execute("ROLLBACK")
        return True


class _Memory:
    """Outlives the worker, as it does in a process that starts another one."""

    def __init__(self) -> None:
        self._journal = MemoryJournal()

    async def empty(self) -> None:
        self._journal.close()
        self._journal = MemoryJournal()
        await Shop(self._journal).prepare()

    def open(self, _: Owner) -> Opened:
        return self._journal, lambda: None


class _Sqlite:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    async def empty(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()
        self._number += 1
        connection = sqlite3.connect(self._path)
        for statement in (*TABLES, EFFECTS):
            connection.execute(statement)
        connection.close()

    def open(self, owner: Owner) -> Opened:
        journal = SqliteJournal(self._path, executor=Work(owner))
        return journal, journal.close

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._number}.db"


class SharedSqlite(_Sqlite):
    """A file on which two processes work at the same time."""

    _lock: WriteLock | None = None

    async def empty(self) -> None:
        self.close()
        await super().empty()
        # In this mode from the start, so that nobody waits for the change of it.
        self._reads = sqlite3.connect(self._path, isolation_level=None)
        self._reads.execute("PRAGMA journal_mode = WAL")
        self._lock = WriteLock(self._path)

    def open(self, owner: Owner) -> Opened:
        journal = SqliteJournal(self._path, executor=Work(owner, self._lock))
        return journal, journal.close

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._reads.close()

    def ask(self, question: str, *parameters: object) -> list[Any]:
        """Return what is committed."""
        return self._reads.execute(question, parameters).fetchall()


class _Postgres:
    """A real server, which is asked from a thread and waited for, so that time stands meanwhile."""

    def __init__(self, ask: Callable[[Coroutine[Any, Any, Any]], Any], url: str) -> None:
        self._ask = ask
        self._url = url
        self._own = ask(asyncpg.connect(url))
        for statement in (*TABLES, EFFECTS):
            ask(self._own.execute(statement))

    async def empty(self) -> None:
        self._ask(self._own.execute(f"TRUNCATE {', '.join(EMPTIED)}"))

    def open(self, owner: Owner) -> Opened:
        connection = self._ask(asyncpg.connect(self._url))
        pool = _Pool(partial(self._ask_later, owner), connection)

        async def end() -> None:
            connection.terminate()

        return PostgresJournal(pool), lambda: self._ask(end())

    async def _ask_later(self, owner: Owner, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask, with a moment before and after in which others get their turn, or the process dies."""
        await asyncio.sleep(0)
        if owner.dead:
            raise ConnectionError("the process is dead")
        answer: T = self._ask(question())
        await asyncio.sleep(0)
        return answer


class _Pool:
    """As much of asyncpg's pool as a journal uses, with one connection."""

    fetchrow = None

    def __init__(self, ask: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]], connection: Any) -> None:
        self._ask = ask
        self._connection = connection
        self._is_free = asyncio.Lock()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["_Pool"]:
        async with self._is_free:
            yield self

    async def fetch(self, statement: str, *parameters: object) -> Any:
        return await self._ask(lambda: self._connection.fetch(statement, *parameters))

    async def execute(self, statement: str, *parameters: object) -> Any:
        return await self._ask(lambda: self._connection.execute(statement, *parameters))

    @asynccontextmanager
    async def transaction(self, *, isolation: str) -> AsyncIterator[None]:
        await self.execute(f"BEGIN ISOLATION LEVEL {isolation.replace('_', ' ')}")
        try:
            yield
        except BaseException:
            await self.execute("ROLLBACK")
            raise
        await self.execute("COMMIT")


@contextmanager
def _memory(_: Path) -> Iterator[Database]:
    yield _Memory()


@contextmanager
def _sqlite(folder: Path) -> Iterator[Database]:
    yield _Sqlite(folder)


@contextmanager
def _postgres(_: Path) -> Iterator[Database]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="asks-postgres")
    thread.start()

    def ask(question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(question, loop).result(PATIENCE_S)

    schema = fresh_schema()
    try:
        yield _Postgres(ask, ask(schema.__aenter__()))
    finally:
        ask(schema.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


DATABASES: dict[str, Callable[[Path], AbstractContextManager[Database]]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
}
