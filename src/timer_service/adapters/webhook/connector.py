"""Connections to receivers: which of them are new, and a pace for TLS handshakes.

A handshake takes a millisecond of the event loop that everything shares.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import aiohttp

from timer_service.domain.delivery import Answered

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

MAX_IN_A_ROW: Final = 8
PAUSE_S: Final = 0.005
MAX_KEPT: Final = 512
"""Connections, idle ones among them, beyond which a new one is used once."""


class Pace:
    """Lets a few begin at a time; in the pauses the loop turns to everything else.

    Nobody holds a place: a receiver that never answers delays the next one by no more than a pause.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Lock()
        self._left = MAX_IN_A_ROW
        self._last_s = 0.0

    async def turn(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        async with self._turns:
            if loop.time() - self._last_s > PAUSE_S:
                self._left = MAX_IN_A_ROW
            if self._left == 0:
                # On a busy loop a pause takes longer by itself.
                await asyncio.sleep(PAUSE_S)
                self._left = MAX_IN_A_ROW
            self._left -= 1
            self._last_s = loop.time()


@dataclass(slots=True)
class Attempt:
    """What became known about one attempt."""

    reuses: int = 0
    """How often it went over a connection that was used before."""
    is_reused: bool = False
    """Whether the last time."""
    answer: Answered | None = None


ATTEMPT: Final[ContextVar[Attempt]] = ContextVar("ATTEMPT")
"""The attempt that a connection is wanted for. Tracing would tell the same, and cost more than to sign."""


class WatchedConnector(aiohttp.TCPConnector):
    """Notes which connections were used before, spaces out handshakes, and keeps no more than some.

    Idle connections to very many receivers would use up the files that the store and the broker need, too.
    """

    def __init__(self, pace: Pace, *, max_kept: int = MAX_KEPT, **options: Any) -> None:
        super().__init__(**options)
        self._pace = pace
        self._max_kept = max_kept
        self._alive: WeakSet[ResponseHandler] = WeakSet()

    async def connect(self, req: aiohttp.ClientRequest, *rest: Any, **named: Any) -> Any:
        """Take a connection from the pool or make one."""
        attempt = ATTEMPT.get()
        attempt.is_reused = True
        attempt.reuses += 1
        return await super().connect(req, *rest, **named)

    async def _create_connection(
        self, req: aiohttp.ClientRequest, *rest: Any, **named: Any
    ) -> "ResponseHandler":
        attempt = ATTEMPT.get()
        attempt.is_reused = False
        attempt.reuses -= 1
        if req.is_ssl():
            await self._pace.turn()
        made = await super()._create_connection(req, *rest, **named)
        self._alive.add(made)
        if len(self._alive) > self._max_kept:
            made.force_close()  # Once it has been answered.
        return made
