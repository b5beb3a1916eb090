"""Let timers that fire over HTTP fire as the others do: what is the mark there is the hand-over here."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timer_service.domain.callback import Sink
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import Event, TenantId
from timer_service.ports.command_source import NOTHING_WAITS, Backlog, CommandSource
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack, TimerStore

BROKER_TIMEOUT_S: Final = 0.25
"""What the broker may take to say which commands wait; a callback does not wait longer for it."""
MAX_HANDED_OVER: Final = 64
"""At once: another tenant, or a timer on the bus, waits for the writer no longer than that takes."""
_HANDED_OVER: Final = PublishResult(Published.CONFIRMED)
ASK_AGAIN_S: Final = 5.0
"""After a broker was silent."""


@dataclass(frozen=True, slots=True)
class HttpTimers:
    """The timers of a store that fire over HTTP."""

    store: TimerStore

    @property
    def max_claims(self) -> int:
        """How many claims may be open at the same time."""
        return self.store.max_claims

    def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AbstractAsyncContextManager[Claim]:
        """Claim what is due; the mark opens the deliveries."""
        return self.store.claim_due(now, limit, held_back, Sink.HTTP)

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Return the earliest due time later than `after`."""
        return await self.store.next_due_at(after, Sink.HTTP)


class HandOver:
    """Takes every firing: the transaction of the mark hands it over."""

    problem = None

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Confirm at once."""
        return [_HANDED_OVER] * len(events)


class CommandsIfAnswered:
    """What waits at the broker, as long as it says so soon: its loss delays no callback."""

    def __init__(self, source: CommandSource) -> None:
        self._source = source
        self._ask_at_s = 0.0

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        """Ask what waits; if the broker does not answer, nothing is waited for."""
        now_s = asyncio.get_running_loop().time
        if self._source.problem is not None or now_s() < self._ask_at_s:
            return NOTHING_WAITS
        try:
            async with asyncio.timeout(BROKER_TIMEOUT_S):
                return await self._source.backlog(beyond)
        except BusUnavailable:
            return NOTHING_WAITS
        except TimeoutError:
            self._ask_at_s = now_s() + ASK_AGAIN_S
            return NOTHING_WAITS
