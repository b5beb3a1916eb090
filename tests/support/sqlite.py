"""Connections to SQLite that a test can look into, passed to the store as its driver."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
from aiosqlite.context import contextmanager

from timer_service.adapters.sqlite.connections import Driver

After = Callable[[str], Awaitable[None]]
"""Called with each statement once it is done; what it raises is raised by the statement."""


def due_ms(text: str) -> str:
    """Return how SQL makes a number of the text of a due time, for rows that a test writes by hand."""
    return f"unixepoch(substr({text}, 1, 10) || ' ' || substr({text}, 12, 8)) * 1000 + substr({text}, 21, 3)"


def left_by_a_kill(path: Path) -> None:
    """Leave a file without a log as a process does that is killed in the middle of a change."""
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        # With hardly any room in memory, so that a part of the change is in the file already.
        for statement in ("PRAGMA cache_size = 1", "CREATE TABLE half (text)", "BEGIN"):
            link.execute(statement)
        link.executemany("INSERT INTO half VALUES (?)", [("x" * 1_000,)] * 100)
        journal = path.with_name(f"{path.name}-journal")
        left = {each: each.read_bytes() for each in (path, journal)}
    for each, content in left.items():
        each.write_bytes(content)


async def _nothing(_: str) -> None:
    """Let the statement end as it does."""


class Hook:
    """A driver whose connections call back after each statement."""

    def __init__(self) -> None:
        self.after: After = _nothing

    @property
    def driver(self) -> Driver:
        def connect(address: str, **options: Any) -> aiosqlite.Connection:
            return _HookedConnection(self, lambda: sqlite3.connect(address, **options))

        return connect


class _HookedConnection(aiosqlite.Connection):
    def __init__(self, hook: Hook, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._hook = hook

    @contextmanager
    async def execute(self, sql: str, parameters: Any = None) -> aiosqlite.Cursor:
        cursor = await super().execute(sql, parameters)
        await self._hook.after(sql)
        return cursor

    @contextmanager
    async def execute_fetchall(self, sql: str, parameters: Any = None) -> Any:
        found = await super().execute_fetchall(sql, parameters)
        await self._hook.after(sql)
        return found
