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


class SideFile:
    """Each use opens the file, which may not exist yet; nobody but us may read it."""

    def __init__(self, path: Path, schema: str) -> None:
        self._path = path
        self._schema = schema

    async def ask(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        """Return what a statement finds, nothing if there is no file."""

        def work(file: sqlite3.Connection) -> list[Any]:
            # Whoever has just made the file may not have made the table yet.
            has_table = file.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
            return file.execute(sql, parameters).fetchall() if has_table else []

        return await self._in_thread(work, "ro") if self._path.exists() else []

    async def change(self, sql: str, *rows: Sequence[Any]) -> int:
        """Run a statement for each row in one transaction, durable when it ends; return how many changed."""

        def work(file: sqlite3.Connection) -> int:
            with file:
                file.execute(self._schema)
                return sum(file.execute(sql, row).rowcount for row in rows)

        if not self._path.exists():
            self._path.touch(0o600)
        return await self._in_thread(work, "rw")

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T], mode: str) -> T:
        def worked() -> T:
            address = f"{self._path.absolute().as_uri()}?mode={mode}"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S)) as file:
                return work(file)

        with translated(self._path):
            return await asyncio.to_thread(worked)
