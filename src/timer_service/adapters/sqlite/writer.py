"""The one connection that writes to the file, a transaction at a time."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiosqlite

from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.ownership import Ownership
from timer_service.adapters.sqlite.pending import PendingCount
from timer_service.adapters.sqlite.write_ahead_log import WriteAheadLog
from timer_service.domain.messages import TimerKey
from timer_service.domain.timer import Timer


@dataclass(slots=True)
class Changes:
    """What a transaction changes about the store as a whole."""

    pending: int = 0
    timers: dict[TimerKey, Timer] = field(default_factory=dict)
    """As they are to be saved."""


class Writer:
    """Only one writes: a second writer would only wait.

    And SQLite before 3.51.3 can corrupt a log that two connections write or checkpoint at once.
    """

    def __init__(
        self,
        ownership: Ownership,
        connection: aiosqlite.Connection,
        lock: asyncio.Lock,
        log: WriteAheadLog,
        pending: PendingCount,
        saved: Callable[[Collection[Timer]], None],
    ) -> None:
        self.connection = connection
        self.lock = lock
        self._ownership = ownership
        self._log = log
        self._pending = pending
        self._saved = saved

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Changes]:
        """Run the block in one write transaction, durable when it ends, undone if it raises."""
        changes = Changes()
        async with self.lock:
            with translated(self._ownership.path):
                try:
                    await self.connection.execute("BEGIN IMMEDIATE")
                    yield changes
                    with self._pending.changed_by(changes.pending):
                        await self.connection.execute("COMMIT")
                except BaseException:
                    # Also after a failed COMMIT, and where SQLite has rolled back by itself.
                    with suppress(sqlite3.Error):
                        await self.connection.execute("ROLLBACK")
                    raise
                finally:
                    # Even if it failed: whether the change is in is not always known.
                    self._saved(changes.timers.values())
        # A commit to a file that nobody finds again is none.
        self._ownership.check()
        await self._log.keep_bounded(self.lock)
