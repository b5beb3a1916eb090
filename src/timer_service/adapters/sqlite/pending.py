"""How many timers are pending: counted once, and known from then on by counting every change."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from timer_service.adapters.sqlite.questions import NOBODY, Questions
from timer_service.adapters.sqlite.statements import COUNT_PENDING, FIX_THE_MOMENT


class PendingCount:
    """The number of scheduled timers, due or not."""

    def __init__(self, questions: Questions, writing: asyncio.Lock) -> None:
        self._questions = questions
        self._writing = writing
        self._known: int | None = None
        self._since: int | None = None
        """How the count under way has changed since it began; None if that is not known."""

    @property
    def is_known(self) -> bool:
        """Whether the next count costs nothing."""
        return self._known is not None

    @contextmanager
    def changed_by(self, change: int) -> Iterator[None]:
        """Count a change with the commit that the block makes."""
        known, since = self._known, self._since
        # Whether the change is in is not known before the answer: without one, count again.
        self._known = self._since = None
        yield
        self._known = None if known is None else known + change
        self._since = None if since is None else since + change

    async def count(self) -> int:
        """Count once, beside the writer: it waits only until the moment that is counted is fixed."""
        if self._known is not None:
            return self._known
        async with self._questions.asking(NOBODY) as connection:
            try:
                async with self._writing:
                    await connection.execute("BEGIN")
                    await connection.execute_fetchall(FIX_THE_MOMENT)
                    self._since = 0
                [(counted,)] = await connection.execute_fetchall(COUNT_PENDING)
            finally:
                # However far it came: in a transaction, the connection would answer as of its beginning.
                with suppress(sqlite3.Error):
                    await connection.execute("ROLLBACK")
        if self._since is not None:
            self._known = counted + self._since
            self._since = None
        return int(counted if self._known is None else self._known)
