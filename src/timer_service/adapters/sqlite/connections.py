"""Connections to a SQLite file, in autocommit mode: every transaction is written out where it is used."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiosqlite

from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.limits import BUSY_TIMEOUT_MS

CACHE_KIB: Final = 8_192
"""Of the writing connection, which goes back to the same pages: with twice as much it is not faster."""
READ_CACHE_KIB: Final = 2_048
"""Of each of the others: what it reads lies in the system's cache anyway, and five caches add up."""
CACHED_STATEMENTS: Final = 40
"""That many for the one that writes are 1.7 MB: large batches have a statement for each set of columns."""

Driver = Callable[..., Awaitable[aiosqlite.Connection]]
"""What opens a connection, called as `aiosqlite.connect` is."""


@asynccontextmanager
async def connect(
    path: Path,
    *,
    read_only: bool = False,
    driver: Driver = aiosqlite.connect,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
) -> AsyncIterator[aiosqlite.Connection]:
    """Open a connection; close it at the end."""
    with translated(path):
        connection = await _opened(driver, uri(path, read_only=read_only))
    try:
        with translated(path):
            await wait_at_most(connection, busy_timeout_ms)
            if read_only:
                await tune(connection, READ_CACHE_KIB)
        yield connection
    finally:
        with suppress(sqlite3.Error):
            await connection.close()


async def _opened(driver: Driver, address: str) -> aiosqlite.Connection:
    """Open a connection; if cancelled meanwhile, close it first, which ends its thread."""
    opening = asyncio.ensure_future(
        driver(address, uri=True, isolation_level=None, cached_statements=CACHED_STATEMENTS)
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


async def wait_at_most(connection: aiosqlite.Connection, busy_timeout_ms: int) -> None:
    """Set how long a statement waits for another connection's lock."""
    await connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")


async def tune(connection: aiosqlite.Connection, cache_kib: int) -> None:
    """Set what only makes it faster; this reads the file, and so may have to wait for it."""
    await connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    await connection.execute("PRAGMA temp_store = MEMORY")
