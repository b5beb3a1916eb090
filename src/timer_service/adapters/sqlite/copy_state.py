"""Where a SQLite file stands in a copy, kept in tables of its own."""

from pathlib import Path

import aiosqlite

from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.schema import COPY, MOVED, NEW, exists, moved_to


class SqliteCopyState:
    """The copy that fills one SQLite file, or that moved its timers elsewhere."""

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self._path = path
        self._connection = connection

    async def unfinished_copy_of(self) -> str | None:
        """Return the name of the store that is being copied into this one."""
        with translated(self._path):
            if not await exists(self._connection, COPY):
                return None
            [(source,)] = await self._connection.execute_fetchall(f"SELECT max(source) FROM {COPY}")  # noqa: S608
        return str(source)

    async def begin(self, source: str) -> None:
        """Remember that this file is being filled."""
        await self._remember(COPY, "source", source)

    async def end(self) -> None:
        """Forget that: the copy is whole."""
        with translated(self._path):
            await self._connection.execute(f"DROP TABLE IF EXISTS {NEW}")
            await self._connection.execute(f"DROP TABLE {COPY}")

    async def mark_moved(self, target: str) -> None:
        """Remember that the timers are elsewhere now."""
        await self._remember(MOVED, "target", target)

    async def reopen(self) -> str | None:
        """Forget that; return where they were moved to."""
        with translated(self._path):
            target = await moved_to(self._connection)
            await self._connection.execute(f"DROP TABLE IF EXISTS {MOVED}")
        return target

    async def _remember(self, table: str, column: str, value: str) -> None:
        """Keep one text in a table of its own."""
        with translated(self._path):
            await self._connection.execute("BEGIN IMMEDIATE")
            await self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} ({column} TEXT NOT NULL) STRICT"
            )
            await self._connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant
            await self._connection.execute(f"INSERT INTO {table} VALUES (?)", (value,))  # noqa: S608
            await self._connection.execute("COMMIT")
