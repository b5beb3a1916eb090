"""Keep the write-ahead log from growing without bound where somebody always reads."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiosqlite

from timer_service.adapters.sqlite.connections import BUSY_TIMEOUT_MS, WAL_LIMIT_BYTES, translated
from timer_service.adapters.sqlite.questions import Questions
from timer_service.domain.errors import TransientError

LOG_LIMIT_BYTES: Final = WAL_LIMIT_BYTES
"""Beyond this the log is emptied, and questions wait for that."""
RESET_WAIT_MS: Final = 250
"""So long commands wait for whoever reads beside us, such as a backup; then the log may grow on."""
GROWTH_BYTES: Final = LOG_LIMIT_BYTES // 4
"""How much it grows before emptying it is tried again."""


class WriteAheadLog:
    """The log of one file. SQLite empties it by itself, but only at a moment at which nobody reads from it.

    The writing connection does it, as every checkpoint: SQLite before 3.51.3 can corrupt a log that two
    connections write or checkpoint at once.
    """

    def __init__(self, path: Path, writer: aiosqlite.Connection, questions: Questions) -> None:
        self._path = path
        self._file = path.with_name(path.name + "-wal")
        self._writer = writer
        self._questions = questions
        self._resetting = False
        self._limit = 0

    @property
    def size_bytes(self) -> int:
        """How long the file is; it does not shrink when SQLite begins it again."""
        with suppress(OSError):
            return self._file.stat().st_size
        return 0

    async def keep_bounded(self, writing: asyncio.Lock) -> None:
        """Empty the log where it is too long; called after each transaction, without the lock."""
        if self._resetting or self.size_bytes <= max(self._limit, LOG_LIMIT_BYTES):
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
        self._limit = size + GROWTH_BYTES if size > LOG_LIMIT_BYTES else 0

    async def _reset(self) -> None:
        with translated(self._path):
            await self._writer.execute(f"PRAGMA busy_timeout = {RESET_WAIT_MS}")
            try:
                await self._writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                await self._writer.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
