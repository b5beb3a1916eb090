"""The journal in a SQLite file, or in memory: for workers on one machine."""

import asyncio
import inspect
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from timer_client.cancelling import to_the_end
from timer_client.flows.journal import settle
from timer_client.flows.model import FlowError
from timer_client.flows.statements import Hold, Memo, Rows, Work, held, migrate, save

BUSY_TIMEOUT_S: Final = 30.0
MAX_TOGETHER: Final = 100
"""Operations that share one commit, and with it one wait for the disk."""

T = TypeVar("T")


class SqliteJournal:
    """One file, which several processes may share; what waits for the disk at the same time waits once."""

    def __init__(self, path: str | Path, *, executor: Executor | None = None) -> None:
        """`executor` is what waits for the disk, one thread if not given; the journal shuts it down."""
        self._connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        # In memory no disk is waited for, and a test that spins on the event loop would starve a thread.
        self._thread = executor or (None if path == ":memory:" else ThreadPoolExecutor(1, "flow-journal"))
        self._waiting: deque[tuple[Work[Any], asyncio.Future[Any]]] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._performing: asyncio.Task[Any] | None = None

    def close(self) -> None:
        """Close the file, once what is under way has ended; what was not begun never is."""
        if self._thread is not None:
            self._thread.shutdown()
        self._connection.close()

    async def migrate(self) -> None:
        """Create the tables where they are missing."""
        await self.commit(migrate())

    async def commit(self, work: Work[T], connection: Any = None) -> T:
        """Do an operation in one transaction, which it may share with others that wait."""
        if connection is not None:
            return await settle(work, partial(_fetch, connection))
        if self._performing is not None and self._performing is asyncio.current_task():
            raise FlowError("inside run.transaction, pass connection=: its transaction holds the database")
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, outcome))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.ensure_future(self._commit_waiting())
        return await outcome

    async def perform(self, hold: Hold, effect: Callable[[Any], Awaitable[list[Memo]]]) -> None:
        """Commit a worker's effect and its memos together; others wait meanwhile."""
        async with self._turn:
            self._performing = asyncio.current_task()
            try:
                await self._in_thread(self._connection.execute, "BEGIN IMMEDIATE")
                await self._in_thread(self._settle, held(hold))
                memos = await effect(self._connection)
                await self._in_thread(self._settle, save(hold, memos))
                await self._in_thread(self._connection.execute, "COMMIT")
            finally:
                self._performing = None
                if self._connection.in_transaction:
                    self._connection.rollback()

    async def _commit_waiting(self) -> None:
        """Do what waits, in turns with those that perform an effect, until nothing is left."""
        while self._waiting:
            async with self._turn:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TOGETHER))]
                try:
                    done = await self._in_thread(self._commit_all, [work for work, _ in batch])
                except Exception as error:
                    done = [(None, error)] * len(batch)
            for (_, outcome), (result, failure) in zip(batch, done, strict=True):
                if not outcome.done():  # Otherwise its waiter was cancelled.
                    outcome.set_result(result) if failure is None else outcome.set_exception(failure)

    def _commit_all(self, batch: Sequence[Work[Any]]) -> list[tuple[Any, Exception | None]]:
        """Do operations in one transaction; what one of them raises undoes that one only."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            done = [self._attempt(work) for work in batch]
            self._connection.execute("COMMIT")
            return done
        finally:
            if self._connection.in_transaction:
                self._connection.rollback()

    def _attempt(self, work: Work[T]) -> tuple[T | None, Exception | None]:
        self._connection.execute("SAVEPOINT one")
        try:
            return self._settle(work), None
        except Exception as error:
            self._connection.execute("ROLLBACK TO one")
            return None, error
        finally:
            self._connection.execute("RELEASE one")

    def _settle(self, work: Work[T]) -> T:
        """Do an operation here and now: this connection is waited for where it is used."""
        try:
            settle(work, partial(_fetch, self._connection)).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a statement had to be waited for")

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._thread is None:
            return function(*arguments)
        # Not abandoned when cancelled: the connection must be free before anybody else has it.
        loop = asyncio.get_running_loop()
        return await to_the_end(loop.run_in_executor(self._thread, partial(function, *arguments)))


class MemoryJournal(SqliteJournal):
    """The same, gone with the process: for tests."""

    def __init__(self) -> None:
        super().__init__(":memory:")


@lru_cache(100)
def _in_sqlite(statement: str) -> str:
    return statement.replace("$", "?").replace(" FOR UPDATE", "")


async def _fetch(connection: Any, statement: str, *parameters: object) -> Rows:
    """Run a statement on a connection of sqlite3, or on one of aiosqlite that the caller has passed."""
    cursor = connection.execute(_in_sqlite(statement), parameters)
    if not inspect.isawaitable(cursor):
        return cursor.fetchall()  # type: ignore[no-any-return]
    return await (await cursor).fetchall()  # type: ignore[no-any-return]
