"""A clock for a whole service that stands until somebody moves it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from timer_service.domain.messages import EPOCH
from timer_service.testing.clock import START, FreeClock
from timer_service.waiting import first_done, owned

MIN_PAUSE_S: Final = 0.02
"""The shortest wait in real time: a timer that is due in a moment of virtual time keeps nobody busy."""
_MILLISECOND: Final = timedelta(milliseconds=1)


class VirtualClock(FreeClock):
    """The time that somebody has set; it only ever moves forward.

    A wait ends when the time moves, and after the same span of real time at the latest: pauses between tries
    are not about the time that is told, and would otherwise never end.
    """

    def __init__(self, now: datetime = START) -> None:
        self._now = _truncated(now)
        self._moved = asyncio.Event()

    def now(self) -> datetime:
        """Return the moment that was set."""
        return self._now

    def delays_from(self) -> datetime:
        """Return the same moment: no time passes within a millisecond."""
        return self._now

    def move_to(self, moment: datetime) -> None:
        """Set the time; raise ValueError for a moment that is over already."""
        if moment < self._now:
            raise ValueError(f"time cannot go back: it is already {self._now}, later than {moment}")
        self._now = _truncated(moment)
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Return when the event is set, the time moves, or the span has passed in real time."""
        try:
            async with asyncio.timeout(max(seconds, MIN_PAUSE_S) if seconds > 0 else 0):
                async with owned(wake.wait(), self._moved.wait()) as (woken, moved):
                    await first_done(woken, moved)
        except TimeoutError:
            pass


def _truncated(moment: datetime) -> datetime:
    return EPOCH + (moment.astimezone(UTC) - EPOCH) // _MILLISECOND * _MILLISECOND
