"""The journal in a SQLite file, or in memory: for workers on one machine."""

import asyncio
import inspect
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from timer_client.flows import statements
from timer_client.flows.journal import check_tables, settle, settle_now
from timer_client.flows.model import FlowError, Hold, Memo
from timer_client.flows.statements import Rows, Work

BUSY_TIMEOUT_S: Final = 30.0
MAX_TOGETHER: Final = 100
"""Operations that share one commit, and with it one wait for the disk."""

T = TypeVar("T")
Waiting = tuple[Work[Any], "asyncio.Future[Any]"]
Outcome = tuple["asyncio.Future[Any]", Any, Exception | None]


class SqliteJournal:
    """One file, which several processes may share; what waits for the disk at the same time waits once."""

    def __init__(self, path: str | Path) -> None:
        if sqlite3.sqlite_version_info < (3, 35):
            raise FlowError(f"a journal needs SQLite 3.35 or newer (this is {sqlite3.sqlite_version})")
        self._connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._thread: Executor = ThreadPoolExecutor(1, "flow-journal")
        self._waiting: deque[Waiting] = deque()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._is_busy = self._is_closed = False
        self._performing: asyncio.Task[Any] | None = None

    def close(self) -> None:
        """Close the file, once what is under way has ended; what was not begun never is."""
        self._is_closed = True
        self._thread.shutdown()
        self._connection.close()

    async def migrate(self) -> None:
        """Create the tables where they are missing."""
        await self.commit(statements.migrate())

    async def commit(self, work: Work[T], connection: Any = None) -> T:
        """Do an operation in one transaction, which it may share with others that wait."""
        if connection is not None:
            return await settle(work, partial(_fetch, connection))
        if self._performing is not None and self._performing is asyncio.current_task():
            raise FlowError("inside run.transaction, pass connection=: its transaction has the database")
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, result))
        self._go_on()
        try:
            return await result
        except sqlite3.OperationalError as error:
            check_tables(error)
            raise

    async def perform(self, hold: Hold, effect: Callable[[Any], Awaitable[list[Memo]]]) -> None:
        """Commit a worker's effect and its memos together; others wait meanwhile."""
        fetch = partial(_fetch, self._connection)
        async with self._turn():
            await self._in_thread(self._connection.execute, "BEGIN IMMEDIATE")
            try:
                await self._in_thread(settle_now, statements.held(hold), fetch)
                memos = await effect(self._connection)
                await self._in_thread(settle_now, statements.save(hold, memos), fetch)
                await self._in_thread(self._connection.execute, "COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Have the connection alone."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._go_on()
        try:
            await turn
            self._performing = asyncio.current_task()
            yield
        finally:
            self._performing = None
            if turn in self._turns:
                self._turns.remove(turn)
            else:
                self._is_busy = False
                self._go_on()

    def _go_on(self) -> None:
        """Begin with what waits, unless something is under way."""
        if self._is_busy or self._is_closed or not (self._turns or self._waiting):
            return
        self._is_busy = True
        if self._turns:
            self._turns.popleft().set_result(None)
            return
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TOGETHER))]
        job = asyncio.get_running_loop().run_in_executor(self._thread, self._commit_all, batch)
        job.add_done_callback(partial(self._done, batch))

    def _commit_all(self, batch: Sequence[Waiting]) -> list[Outcome]:
        """Do operations in one transaction; what one of them raises undoes that one only."""
        connection, outcomes = self._connection, list[Outcome]()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for work, future in batch:
                connection.execute("SAVEPOINT one")
                try:
                    outcomes.append((future, settle_now(work, partial(_fetch, connection)), None))
                except Exception as error:
                    connection.execute("ROLLBACK TO one")
                    outcomes.append((future, None, error))
                connection.execute("RELEASE one")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.rollback()
        return outcomes

    def _done(self, batch: Sequence[Waiting], job: "asyncio.Future[list[Outcome]]") -> None:
        error = job.exception()
        outcomes = [(future, None, error) for _, future in batch] if error is not None else job.result()
        for future, result, failure in outcomes:
            if future.done():
                continue  # Whoever waited for it was cancelled.
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)
        self._is_busy = False
        self._go_on()

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # Not abandoned when cancelled: the connection must be free before anybody else has it.
        job = asyncio.get_running_loop().run_in_executor(self._thread, partial(function, *arguments))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait({job})
            raise


class MemoryJournal(SqliteJournal):
    """The same, gone with the process: for tests."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        # There is no disk to wait for, and a test that spins on the event loop would starve a thread.
        self._thread = _Here()


class _Here(Executor):
    """Does at once what a thread would do later."""

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> "Future[T]":
        """Do it."""
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


@lru_cache(100)
def _in_sqlite(statement: str) -> str:
    return statement.replace("$", "?").replace(" FOR UPDATE", "")


async def _fetch(connection: Any, statement: str, *parameters: object) -> Rows:
    """Run a statement on a connection of sqlite3, or on one of aiosqlite that the caller has passed."""
    cursor = connection.execute(_in_sqlite(statement), parameters)
    if not inspect.isawaitable(cursor):
        return cursor.fetchall()  # type: ignore[no-any-return]
    return await (await cursor).fetchall()  # type: ignore[no-any-return]
