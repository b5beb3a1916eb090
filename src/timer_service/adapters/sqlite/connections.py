"""Open SQLite files as this service needs them, and turn SQLite's errors into ours."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import aiosqlite

from timer_service.adapters.migrations import Migration
from timer_service.adapters.sqlite.schema import migrate
from timer_service.domain.errors import StoreBusy, StoreFailed, StoreFull, TimerServiceError

BUSY_TIMEOUT_MS: Final = 5_000
OPENING_TURN_MS: Final = 100
OPENING_PAUSE_S: Final = 0.02
CACHE_KIB: Final = 16_384
WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
CHECKPOINT_PAGES: Final = 8_000
"""32 MiB of log before it is moved into the file: a page that many transactions change is then moved once."""
OLDEST_SQLITE: Final = (3, 38, 0)
"""STRICT tables came with 3.37, JSON functions in every build with 3.38."""


COPY: Final = "timer_copy"
"""The table of a file that is being filled by `timer-service copy`."""
MOVED: Final = "timer_moved"
"""The table of a file whose timers `timer-service copy` has moved to another store."""
NEW: Final = "timer_new"
"""The table of a file that a service made, until it is known that no other should be in its place."""
_EXISTS: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"


def require_sqlite() -> None:
    """Refuse a library that lacks what the schema and the statements need."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreFailed(f"SQLite {sqlite3.sqlite_version} is too old: {oldest} or newer is needed")


@asynccontextmanager
async def connect(path: Path, *, read_only: bool = False) -> AsyncIterator[aiosqlite.Connection]:
    """Open a connection in autocommit mode: every transaction is written out in this file."""
    address = uri(path, read_only=read_only)
    with translated(path):
        connection = await _opened(address)
    try:
        with translated(path):
            await connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            if read_only:
                await _tune(connection)
        yield connection
    finally:
        with suppress(sqlite3.Error):
            await connection.close()


async def _opened(address: str) -> aiosqlite.Connection:
    """Open a connection; whoever is cancelled meanwhile closes it first, and so ends its thread."""
    opening = asyncio.ensure_future(
        aiosqlite.connect(address, uri=True, isolation_level=None, cached_statements=64)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(sqlite3.Error):
            await (await opening).close()
        raise


def uri(path: Path, *, read_only: bool = False) -> str:
    """Return the address of a file, whatever characters its path holds."""
    return f"{path.as_uri()}?mode={'ro' if read_only else 'rwc'}"


async def _tune(connection: aiosqlite.Connection) -> None:
    """Set what only makes it faster; this reads the file, and so may have to wait for it."""
    await connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    await connection.execute("PRAGMA temp_store = MEMORY")


async def prepare_in_time(
    writer: aiosqlite.Connection, path: Path, now: str, migrations: Sequence[Migration] | None
) -> None:
    """Wait for another connection as long as ever, but in short turns: a stop must not wait with us."""
    await writer.execute(f"PRAGMA busy_timeout = {OPENING_TURN_MS}")
    deadline = asyncio.get_running_loop().time() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            await prepare(writer, path, now, migrations, mark_new=True)
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or asyncio.get_running_loop().time() >= deadline:
                raise
            # SQLite does not wait by itself for everything: not to change the journal mode, for example.
            await asyncio.sleep(OPENING_PAUSE_S)
        else:
            break
    await writer.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


async def prepare(
    writer: aiosqlite.Connection,
    path: Path,
    now: str,
    migrations: Sequence[Migration] | None = None,
    *,
    mark_new: bool = False,
) -> None:
    """Set what the file and the writing connection need, and bring the schema up to date."""
    await _tune(writer)
    # Before the first table: space freed by retention can then be given back step by step.
    await writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
    await writer.execute("PRAGMA journal_mode = WAL")
    # FULL: an acknowledged timer survives a power cut. NORMAL would lose the last commits.
    await writer.execute("PRAGMA synchronous = FULL")
    await writer.execute("PRAGMA foreign_keys = ON")
    await writer.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    await writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    if mark_new and not await exists(writer, "timer_migrations"):
        await writer.execute(f"CREATE TABLE IF NOT EXISTS {NEW} (is_new INTEGER NOT NULL) STRICT")
    await migrate(writer, path, now, migrations)
    await _write_once(writer)


async def exists(connection: aiosqlite.Connection, table: str) -> bool:
    """Return whether the file has such a table."""
    [(found,)] = await connection.execute_fetchall(_EXISTS, (table,))
    return bool(found)


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


async def moved_to(connection: aiosqlite.Connection) -> str | None:
    """Return the store that this one's timers were copied to, where that is so."""
    if not await exists(connection, MOVED):
        return None
    [(target,)] = await connection.execute_fetchall("SELECT max(target) FROM timer_moved")
    return str(target)


async def _write_once(writer: aiosqlite.Connection) -> None:
    """Fail at start, not at the first command, where the disk is full or read-only."""
    await writer.execute("BEGIN IMMEDIATE")
    await writer.execute("UPDATE timer_migrations SET name = name")
    await writer.execute("COMMIT")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except TimerServiceError:
        raise
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> TimerServiceError:
    """Return our error for one of SQLite's, with what to do about it."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    what = f"{path}: {error} ({name})"
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(what)  # The WAL's index could not grow.
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_INTERRUPT:
            return StoreBusy(what)
        case sqlite3.SQLITE_FULL:
            return StoreFull(what)
        case sqlite3.SQLITE_CORRUPT:
            return StoreFailed(f"{what}: the database is corrupt; restore it from a backup")
        case sqlite3.SQLITE_NOTADB:
            return StoreFailed(f"{what}: TIMER_DB_PATH must name a SQLite database or a new file")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreFailed(f"{what}: TIMER_DB_PATH must be a file this user may create and write")
    # After a failed fsync nobody knows what is on disk: never try the COMMIT again, start over from it.
    return StoreFailed(f"{what}: the store failed; restart once the disk is well")
