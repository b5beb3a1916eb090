"""A small SQLite file beside that of the timers, which several processes may change.

The file of the timers has one writer, which is the service; what the command line changes while the service
runs has to be elsewhere.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from timer_service.adapters.sqlite.errors import translated

BUSY_TIMEOUT_S: Final = 5.0

T = TypeVar("T")

Statement = tuple[str, Sequence[Any]]
"""With its parameters."""


class SideFile:
    """Each use opens the file, which may not exist yet; nobody but us may read it."""

    def __init__(self, path: Path, *schema: str) -> None:
        self._path = path
        self._schema = schema
        """Statements in the order in which versions have added them; the first makes the table."""

    async def ask(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        """Return what a statement finds, nothing if there is no file."""

        def work(file: sqlite3.Connection) -> list[Any] | None:
            # The process that has just made the file may not have made the table yet.
            if file.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                return []
            is_behind = max(_version(file), 1) < len(self._schema)
            return None if is_behind else file.execute(sql, parameters).fetchall()

        if not self._path.exists():
            return []
        found = await self._in_thread(work)
        if found is None:
            await self._in_thread(self._bring_up)
            found = await self._in_thread(work)
        return found or []

    async def change(self, sql: str, *rows: Sequence[Any], wait_s: float = BUSY_TIMEOUT_S) -> int:
        """Run a statement for each row in one transaction, durable when it ends; return how many changed.

        While another process changes the file it waits, at most so long. Raises StoreBusy.
        """
        return await self._changed(lambda file: sum(file.execute(sql, row).rowcount for row in rows), wait_s)

    async def add(self, adding: Statement, *others: Statement) -> int:
        """Run statements in one transaction; return the number that the last row of the first was given."""

        def change(file: sqlite3.Connection) -> int:
            number = file.execute(*adding).lastrowid or 0
            for other in others:
                file.execute(*other)
            return number

        return await self._changed(change)

    async def _changed(
        self, change: Callable[[sqlite3.Connection], int], wait_s: float = BUSY_TIMEOUT_S
    ) -> int:
        def work(file: sqlite3.Connection) -> int:
            self._bring_up(file)
            with file:
                return change(file)

        if not self._path.exists():
            self._path.touch(0o600)
        return await self._in_thread(work, wait_s)

    def _bring_up(self, file: sqlite3.Connection) -> None:
        """Make the table, or add what an older version did not have."""
        if _version(file) >= len(self._schema):
            return
        with file:
            # At once: another process may do the same.
            file.execute("BEGIN IMMEDIATE")
            for statement in self._schema[_version(file) :]:
                file.execute(statement)
            file.execute(f"PRAGMA user_version = {len(self._schema)}")

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T], wait_s: float = BUSY_TIMEOUT_S) -> T:
        def worked() -> T:
            # Also to read: if a process was killed in the middle of a change, whoever opens the file next has
            # to undo it, and until then SQLite refuses those who may only read.
            address = f"{self._path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, uri=True, timeout=wait_s)) as file:
                return work(file)

        with translated(self._path):
            return await asyncio.to_thread(worked)


def _version(file: sqlite3.Connection) -> int:
    [(version,)] = file.execute("PRAGMA user_version").fetchall()
    return int(version)
