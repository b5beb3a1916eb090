"""A SQLite file that no service is using, read or written from end to end."""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiosqlite

from timer_service.adapters import callback_rows as columns
from timer_service.adapters import rows
from timer_service.adapters.sqlite import statements
from timer_service.adapters.sqlite.connections import connect
from timer_service.adapters.sqlite.copy_state import SqliteCopyState
from timer_service.adapters.sqlite.deliveries import CALLBACK_TABLES, GET, WRITE_RECORDS
from timer_service.adapters.sqlite.epochs import insert_epochs, read_epochs
from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.opening import prepare, try_to_open
from timer_service.adapters.sqlite.ownership import sole_owner
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import CriticalError
from timer_service.domain.messages import ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import CallbackRecord

_READ: Final = f"""
SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
WHERE (tenant_id, service_call_id) > (?, ?)
ORDER BY tenant_id, service_call_id
LIMIT ?
"""  # noqa: S608 - the column list is a constant
_WRITE: Final = f"""
INSERT INTO timer_schedules ({", ".join(statements.COLUMNS)})
VALUES ({", ".join("?" for _ in statements.COLUMNS)})
"""  # noqa: S608
_LAST: Final = """
SELECT tenant_id, service_call_id FROM timer_schedules
ORDER BY tenant_id DESC, service_call_id DESC LIMIT 1
"""


@asynccontextmanager
async def open_sqlite_archive(
    path: Path, now: Callable[[], datetime], *, must_exist: bool
) -> AsyncIterator["SqliteArchive"]:
    """Own the file, bring its schema up to date and open it."""
    if must_exist and not path.is_file():
        raise CriticalError(f"there is no database at {path}: check --from")
    path = path.resolve()
    with sole_owner(path):
        with translated(path):
            try_to_open(path)
        async with connect(path) as connection:
            with translated(path):
                await prepare(connection, path, rows.text(now()))
            yield SqliteArchive(path, connection)


class SqliteArchive:
    """The timers of one SQLite file."""

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self._path = path
        self._connection = connection
        self.name = f"sqlite:///{path}"
        self.copying = SqliteCopyState(path, connection)

    async def count(self) -> int:
        """Return how many timers there are."""
        return int((await self._fetch("SELECT count(*) FROM timer_schedules"))[0][0])

    async def last_key(self) -> TimerKey | None:
        """Return the greatest key."""
        found = await self._fetch(_LAST)
        return (TenantId(found[0][0]), ServiceCallId(found[0][1])) if found else None

    async def read(self, after: TimerKey | None, limit: int) -> list[Timer]:
        """Return the next timers in the order of the key."""
        return [rows.timer(row) for row in await self._fetch(_READ, *(after or ("", "")), limit)]

    async def records(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Return what is kept of the callbacks of timers."""
        callbacks, deliveries, attempts = [await self._fetch(sql, json.dumps(list(keys))) for sql in GET]
        return columns.records(callbacks, deliveries, attempts)

    async def write(self, timers: Sequence[Timer], records: Mapping[TimerKey, CallbackRecord]) -> None:
        """Add timers and their callbacks in one transaction."""
        with translated(self._path):
            await self._connection.execute("BEGIN IMMEDIATE")
            try:
                await self._connection.executemany(_WRITE, zip(*statements.columns(timers), strict=True))
                kept = columns.archived(timers, records)
                for sql, values in zip(WRITE_RECORDS, kept, strict=True):
                    await self._connection.executemany(sql, values)
                await self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # Where SQLite has rolled back by itself.
                    await self._connection.execute("ROLLBACK")
                raise

    async def epochs(self) -> list[StreamEpoch]:
        """Return the epochs of the command streams."""
        with translated(self._path):
            return await read_epochs(self._connection)

    async def write_epochs(self, epochs: Sequence[StreamEpoch]) -> None:
        """Replace all epochs with these."""
        with translated(self._path):
            await self._connection.execute("BEGIN IMMEDIATE")
            await self._connection.execute("DELETE FROM timer_stream_epochs")
            await insert_epochs(self._connection, epochs)
            await self._connection.execute("COMMIT")

    async def clear(self) -> None:
        """Delete every timer."""
        with translated(self._path):
            for table in ("timer_schedules", *CALLBACK_TABLES):
                await self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant

    async def _fetch(self, sql: str, *parameters: Any) -> list[Any]:
        with translated(self._path):
            return list(await self._connection.execute_fetchall(sql, parameters))
