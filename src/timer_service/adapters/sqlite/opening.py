"""The start: own the file, bring it up to date, and make sure that it can be worked on."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import aiosqlite
import structlog

from timer_service.adapters.migrations import Migration
from timer_service.adapters.rows import text
from timer_service.adapters.sqlite.connections import CACHE_KIB, Driver, connect, tune, uri, wait_at_most
from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.limits import DEFAULT_LIMITS, SqliteLimits
from timer_service.adapters.sqlite.ownership import sole_owner
from timer_service.adapters.sqlite.questions import ANSWERERS, Questions
from timer_service.adapters.sqlite.schema import COPY, LEDGER, NEW, exists, migrate, moved_to
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.errors import StoreFailed, TransientError

MIN_SQLITE: Final = (3, 38, 0)
"""STRICT tables came with 3.37, JSON functions in every build with 3.38."""
OPENING_TURN_MS: Final = 100
OPENING_PAUSE_S: Final = 0.02
MAX_LOG_FILE_BYTES: Final = 64 * 1024 * 1024
"""What SQLite leaves of the log's file after a checkpoint."""
CHECKPOINT_PAGES: Final = 8_000
"""32 MiB of log before it is moved into the file: a page that many transactions change is then moved once."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_sqlite_store(
    path: Path,
    now: Callable[[], datetime],
    *,
    limits: SqliteLimits = DEFAULT_LIMITS,
    driver: Driver = aiosqlite.connect,
    migrations: Sequence[Migration] | None = None,
) -> AsyncIterator[SqliteTimerStore]:
    """Own the file, bring its schema up to date and open it; give it back at the end."""
    require_sqlite()
    path = path.resolve()
    opened = partial(connect, path, driver=driver, busy_timeout_ms=limits.busy_timeout_ms)
    with sole_owner(path) as ownership:
        async with AsyncExitStack() as stack:
            try:
                with translated(path):
                    try_to_open(path)
                    writer = await stack.enter_async_context(opened())
                    step = partial(prepare, writer, path, text(now()), migrations, mark_new=True)
                    await in_short_turns(writer, step, limits.busy_timeout_ms)
                    await refuse_a_copy(writer, path)
                    is_new = await exists(writer, NEW)
                readers = [
                    await stack.enter_async_context(opened(read_only=True)) for _ in range(2 + ANSWERERS)
                ]
            except TransientError as error:
                raise StoreFailed(f"cannot write at start: {error}") from error
            if ownership.created:
                log.info("store.created", path=str(path))
            reader, delivery_reader, *answerers = readers
            questions = Questions(path, answerers, limits)
            yield SqliteTimerStore(
                ownership, writer, reader, delivery_reader, questions, limits, is_new=is_new
            )


def require_sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Refuse a library that lacks what the schema and the statements need."""
    if version < MIN_SQLITE:
        found, oldest = (".".join(map(str, each)) for each in (version, MIN_SQLITE))
        raise StoreFailed(f"SQLite {found} is too old: {oldest} or newer is needed")


def try_to_open(path: Path) -> None:
    """Fail here and not on aiosqlite's thread, which might tell of it when the event loop is closed."""
    sqlite3.connect(uri(path), uri=True).close()


async def in_short_turns(
    writer: aiosqlite.Connection, step: Callable[[], Awaitable[None]], busy_timeout_ms: int
) -> None:
    """Wait for another connection as long as ever, but in short turns: a stop must not wait with us."""
    await wait_at_most(writer, OPENING_TURN_MS)
    deadline = asyncio.get_running_loop().time() + busy_timeout_ms / 1000
    while True:
        try:
            await step()
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or asyncio.get_running_loop().time() >= deadline:
                raise
            # SQLite does not wait by itself for everything: not to change the journal mode, for example.
            await asyncio.sleep(OPENING_PAUSE_S)
        else:
            break
    await wait_at_most(writer, busy_timeout_ms)


async def prepare(
    writer: aiosqlite.Connection,
    path: Path,
    now: str,
    migrations: Sequence[Migration] | None = None,
    *,
    mark_new: bool = False,
) -> None:
    """Set what the file and the writing connection need, and bring the schema up to date."""
    await tune(writer, CACHE_KIB)
    # Before the first table: space freed by retention can then be given back step by step.
    await writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
    await writer.execute("PRAGMA journal_mode = WAL")
    # FULL: an acknowledged timer survives a power cut. NORMAL would lose the last commits.
    await writer.execute("PRAGMA synchronous = FULL")
    await writer.execute("PRAGMA foreign_keys = ON")
    await writer.execute(f"PRAGMA journal_size_limit = {MAX_LOG_FILE_BYTES}")
    await writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    if mark_new and not await exists(writer, LEDGER):
        await writer.execute(f"CREATE TABLE IF NOT EXISTS {NEW} (is_new INTEGER NOT NULL) STRICT")
    await migrate(writer, path, now, migrations)
    await _write_once(writer)


async def refuse_a_copy(writer: aiosqlite.Connection, path: Path) -> None:
    """Refuse a file that a copy was begun into and not finished, or out of and finished."""
    if await exists(writer, COPY):
        raise StoreFailed(f"{path} holds an unfinished copy: run the same `timer-service copy` again")
    target = await moved_to(writer)
    if target is not None:
        raise StoreFailed(
            f"the timers of {path} were moved to {target}: start the service there. To use this file again, "
            f"make sure that nothing runs there and run `timer-service reopen sqlite:///{path}`"
        )


async def _write_once(writer: aiosqlite.Connection) -> None:
    """Fail at start, not at the first command, if the disk is full or read-only."""
    await writer.execute("BEGIN IMMEDIATE")
    await writer.execute(f"UPDATE {LEDGER} SET name = name")  # noqa: S608 - a constant
    await writer.execute("COMMIT")
