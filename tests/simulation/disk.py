"""The disk of the simulated machine: real SQLite files, run inside the loop, with faults and crashes."""

import asyncio
import itertools
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiosqlite

from tests.simulation.loop import PROCESS, Lively, VirtualLoop
from tests.simulation.model import READ_ROWS
from tests.simulation.plan import VISITED_TENANTS
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.config import Settings
from timer_service.wiring.stores import OpenedStore, open_store

WRITER, READER, ANSWERER = "writer", "reader", "answerer"
_BUSY_WAIT_S = 5.0


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong at present, each with its probability or as a number of times."""

    busy: float = 0.0
    busy_after_wait: float = 0.0
    full: bool = False
    read_busy: float = 0.0
    lost_answers: int = 0
    """This many commits will work and be reported as failed."""
    io_errors: int = 0
    """This many commits will fail for good."""
    slow: float = 0.0
    """Operations take up to this many seconds longer."""
    slow_questions: float = 0.0
    """What only answers a question takes up to this many seconds longer."""


class Disk:
    """One database, from life to life of the process that owns it."""

    def __init__(self, loop: VirtualLoop, folder: Path, random: Random, template: Path | None) -> None:
        self.loop = loop
        self.folder = folder
        self.random = random
        self.faults = DiskFaults()
        self.latency_s = 0.001
        self.log_limit_bytes = 0
        self.injected = 0
        self.failed_for_good = False
        self.on_commit: Callable[[], None] = lambda: None
        self.on_poll: Callable[[], None] = lambda: None
        self._images = itertools.count(1)
        self._readers: list[Lively] = []
        self._observer: sqlite3.Connection | None = None
        self.path = folder / "timers-0.db"
        if template is not None:
            shutil.copyfile(template, self.path)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the timers as any other process would read them now."""
        return self.read(READ_ROWS)

    def open_store(
        self, configured: Settings, now: Callable[[], datetime]
    ) -> AbstractAsyncContextManager[OpenedStore]:
        """Open the store for the process that asks."""
        # So small that a few tenants and timers take several looks to be known.
        limits = SqliteLimits(
            max_scanned_rows=3, max_visited_tenants=VISITED_TENANTS, max_log_bytes=self.log_limit_bytes
        )
        open_sqlite = partial(open_sqlite_store, driver=self.connect, limits=limits)
        return open_store(configured, now, open_sqlite=open_sqlite)

    def process_died(self, _: Lively) -> None:
        """Keep what is committed, as another process would find it; everything else is gone."""
        image = self.folder / f"timers-{next(self._images)}.db"
        for suffix in ("", "-wal"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                shutil.copyfile(part, image.with_name(image.name + suffix))
        self.forget_observer()
        self.path = image

    def connect(self, database: str, **options: Any) -> aiosqlite.Connection:
        """Stand in for `aiosqlite.connect`."""
        process = PROCESS.get()
        assert process is not None
        role = WRITER
        if "mode=ro" in database:
            role = ANSWERER if process in self._readers else READER
            self._readers.append(process)
        return _InlineConnection(self, process, role, partial(sqlite3.connect, database, **options))

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        """Return what any other process would read now: what is committed."""
        if self._observer is None:
            if not self.path.exists():
                return []
            uri = f"{self.path.as_uri()}?mode=ro"
            self._observer = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=8)
        try:
            return self._observer.execute(sql).fetchall()
        except sqlite3.OperationalError:  # There is no table yet.
            return []

    def log_bytes(self) -> int:
        log = self.path.with_name(self.path.name + "-wal")
        return log.stat().st_size if log.exists() else 0

    def forget_observer(self) -> None:
        if self._observer is not None:
            self._observer.close()
            self._observer = None


class _InlineConnection(aiosqlite.Connection):
    """aiosqlite's connection without its thread: the same queue, worked off in virtual time.

    As with the thread, an operation that nobody waits for any more is carried out all the same.
    """

    def __init__(
        self, disk: Disk, process: Lively, role: str, connector: Callable[[], sqlite3.Connection]
    ) -> None:
        super().__init__(connector, 64)
        self._disk = disk
        self._process = process
        self._role = role
        self._free_at = 0.0
        self._changes = 0
        self._queue: deque[tuple[asyncio.Future[Any], Callable[[], Any], str, _Fault | None]] = deque()

    def __del__(self) -> None:
        """Say nothing: a crash closes nothing."""

    def __await__(self) -> Any:
        return self._open().__await__()

    def stop(self) -> None:
        self._running = False

    async def _open(self) -> aiosqlite.Connection:
        self._connection = await self._submit(self._connector)
        return self

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._process.dead:
            raise sqlite3.ProgrammingError("the process is dead")
        if not self._running or not self._connection:
            raise ValueError("Connection closed")
        return await self._submit(partial(fn, *args, **kwargs))

    async def _submit(self, operation: Callable[[], Any]) -> Any:
        disk = self._disk
        future = disk.loop.create_future()
        sql = _sql(operation)
        # What only fixes the moment that an answer tells of reads one row: it takes no longer than ever.
        is_question = self._role == ANSWERER and "FROM timer_schedules" in sql
        slow_s = disk.faults.slow + (disk.faults.slow_questions if is_question else 0.0)
        wait_s = disk.random.random() * (disk.latency_s + slow_s)
        error = self._fault(sql)
        if error is not None and error.waited:
            wait_s += _BUSY_WAIT_S
        self._free_at = max(disk.loop.time(), self._free_at) + wait_s
        self._queue.append((future, operation, sql, error))
        disk.loop.world_at(self._free_at, self._perform)
        return await future

    def _perform(self) -> None:
        future, operation, sql, fault = self._queue.popleft()
        if self._process.dead:
            if not future.done():
                future.set_exception(sqlite3.ProgrammingError("the process is dead"))
            return
        result: Any = None
        error: Exception | None = fault.error if fault is not None else None
        if fault is None or fault.carried_out:
            try:
                result = operation()
            except sqlite3.Error as failed:
                error = failed
        elif fault.rolled_back and self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._look_for_commit()
        # A look for callbacks tells nothing of what is due on the bus.
        if self._role == READER and "due_ms <= " in sql and "sink = 0" in sql:
            self._disk.on_poll()
        # The answer takes a moment too: in between, the work is done and nobody knows.
        answer_s = self._disk.random.random() * self._disk.latency_s
        self._disk.loop.world_at(self._disk.loop.time() + answer_s, _answer, future, result, error)

    def _look_for_commit(self) -> None:
        link = self._connection
        if self._role != WRITER or link is None or not self._running:
            return
        try:
            if not link.in_transaction and link.total_changes != self._changes:
                self._changes = link.total_changes
                self._disk.on_commit()
        except sqlite3.ProgrammingError:  # It has just been closed.
            pass

    def _fault(self, sql: str) -> "_Fault | None":
        faults, chance = self._disk.faults, self._disk.random.random
        fault: _Fault | None = None
        if self._role != WRITER:
            reads = sql.startswith(("SELECT", "WITH"))
            if reads and faults.read_busy and chance() < faults.read_busy:
                fault = _Fault(_error(sqlite3.SQLITE_BUSY, "SQLITE_BUSY", "database is locked"))
        elif sql == "COMMIT" and faults.lost_answers:
            faults.lost_answers -= 1
            fault = _Fault(
                _error(sqlite3.SQLITE_BUSY, "SQLITE_BUSY", "committed, but said to be locked"),
                carried_out=True,
            )
        elif sql == "COMMIT" and faults.io_errors:
            faults.io_errors -= 1
            self._disk.failed_for_good = True
            fault = _Fault(
                _error(sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC", "disk I/O error"),
                carried_out=chance() < 0.5,
            )
        elif faults.full and sql.startswith(("INSERT", "UPDATE", "COMMIT", "DELETE")):
            fault = _Fault(
                _error(sqlite3.SQLITE_FULL, "SQLITE_FULL", "database or disk is full"), rolled_back=True
            )
        elif faults.busy and sql in ("BEGIN IMMEDIATE", "COMMIT") and chance() < faults.busy:
            waited = chance() < faults.busy_after_wait
            fault = _Fault(_error(sqlite3.SQLITE_BUSY, "SQLITE_BUSY", "database is locked"), waited=waited)
        self._disk.injected += fault is not None
        return fault


@dataclass(frozen=True, slots=True)
class _Fault:
    error: sqlite3.OperationalError
    carried_out: bool = False
    rolled_back: bool = False
    waited: bool = False


def _answer(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _error(code: int, name: str, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    error.sqlite_errorname = name
    return error


def _sql(operation: Callable[[], Any]) -> str:
    arguments = getattr(operation, "args", ())
    return arguments[0].strip() if arguments and isinstance(arguments[0], str) else ""
