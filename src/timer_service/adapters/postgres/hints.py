"""Tell the other instances that a nearer timer was committed; only a hint, the poll remains the truth."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

from timer_service.adapters.postgres.connections import Address, Connections
from timer_service.adapters.postgres.errors import translated
from timer_service.domain.errors import TimerServiceError
from timer_service.domain.messages import EPOCH, epoch_ms
from timer_service.waiting import owned

CHECK_INTERVAL_S: Final = 20.0
"""How often a silent connection is asked whether it is still there."""

# One channel per schema, within the length of a name.
_CHANNEL: Final = "left('timer_due_' || current_schema(), 60)"
# Not part of the transaction that it tells of: a NOTIFY holds up every other commit until its own is on disk.
_NOTIFY: Final = f"SELECT pg_notify({_CHANNEL}, $1)"


class Hints:
    """Hints between instances on one database. Behind a pooler in transaction mode none arrive."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        now: Callable[[], datetime],
        reconnect_pause_s: float,
    ) -> None:
        self._reconnect_pause_s = reconnect_pause_s
        self._address = address
        self._connections = connections
        self._now = now
        self._announced: datetime | None = None
        self._untold: datetime | None = None
        self._has_untold = asyncio.Event()

    def announce(self, due_at: datetime) -> None:
        """Have a due time announced, unless a nearer one that is still to come was announced before.

        Nobody waits for it: a task of its own announces it, and of several that wait only the nearest.
        """
        if self._announced is not None and self._now() < self._announced <= due_at:
            return
        self._announced = due_at
        self._untold = due_at if self._untold is None else min(due_at, self._untold)
        self._has_untold.set()

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Send what is announced until the context is left; the polls find what was not sent by then."""
        async with _running(self._keep_telling()):
            yield

    async def _keep_telling(self) -> None:
        while True:
            await self._has_untold.wait()
            self._has_untold.clear()
            due_at, self._untold = self._untold or self._now(), None
            try:
                await self._connections.fetch(_NOTIFY, str(epoch_ms(due_at)))
            except TimerServiceError:
                self._announced = None  # Nobody knows of it: announce the next one, whatever it is.

    @asynccontextmanager
    async def listen(self, callback: Callable[[datetime], None]) -> AsyncIterator[None]:
        """Call back with every due time that any instance announces, until the context is left."""
        async with _running(self._keep_listening(callback)):
            yield

    async def _keep_listening(self, callback: Callable[[datetime], None]) -> None:
        while True:
            # Whatever is wrong with the database, those who cannot do without it will say so.
            with suppress(TimerServiceError), translated(self._address.shown):
                await self._listen_once(callback)
            await asyncio.sleep(self._reconnect_pause_s)

    async def _listen_once(self, callback: Callable[[datetime], None]) -> None:
        lost = asyncio.Event()

        def on_hint(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
            with suppress(ValueError, OverflowError):  # Anybody may send anything on a channel.
                callback(EPOCH + timedelta(milliseconds=int(str(payload))))

        connection = await self._address.driver.connect(**self._address.arguments)
        try:
            connection.add_termination_listener(lambda _: lost.set())
            channel = await connection.fetchval(f"SELECT {_CHANNEL}")
            await connection.add_listener(channel, on_hint)
            callback(self._now())  # Look now: what was announced before was not heard.
            while not lost.is_set():
                try:
                    async with asyncio.timeout(CHECK_INTERVAL_S):
                        await lost.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something without an end beside the block, and end it with the block."""
    async with owned(work) as (task,):
        yield
    if not task.cancelled():
        task.result()  # It ends with an error only.
