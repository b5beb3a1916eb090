"""Keep the write-ahead log from growing without bound when somebody always reads."""

import asyncio
from contextlib import suppress
from pathlib import Path

import aiosqlite

from timer_service.adapters.sqlite.connections import wait_at_most
from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.adapters.sqlite.questions import Questions
from timer_service.domain.errors import TransientError


class WriteAheadLog:
    """The log of one file. SQLite empties it by itself, but only at a moment at which nobody reads from it.

    The writing connection does it, as every checkpoint: SQLite before 3.51.3 can corrupt a log that two
    connections write or checkpoint at once.
    """

    def __init__(
        self, path: Path, writer: aiosqlite.Connection, questions: Questions, limits: SqliteLimits
    ) -> None:
        self._path = path
        self._file = path.with_name(path.name + "-wal")
        self._writer = writer
        self._questions = questions
        self._limits = limits
        self._resetting = False
        self._next_try_bytes = 0

    @property
    def size_bytes(self) -> int:
        """How long the file is; it does not shrink when SQLite begins it again."""
        with suppress(OSError):
            return self._file.stat().st_size
        return 0

    async def keep_bounded(self, writing: asyncio.Lock) -> None:
        """Empty the log if it is too long; called after each transaction, without the lock."""
        if self._resetting or self.size_bytes <= max(self._next_try_bytes, self._limits.max_log_bytes):
            return
        self._resetting = True
        try:
            async with self._questions.held_back(), writing:
                # A commit is durable with or without this: what is busy now can be done later.
                with suppress(TransientError):
                    await self._reset()
        finally:
            self._resetting = False
        size = self.size_bytes
        is_empty = size <= self._limits.max_log_bytes
        self._next_try_bytes = 0 if is_empty else size + self._limits.log_growth_bytes

    async def _reset(self) -> None:
        with translated(self._path):
            await wait_at_most(self._writer, self._limits.reset_timeout_ms)
            try:
                await self._writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                await wait_at_most(self._writer, self._limits.busy_timeout_ms)
