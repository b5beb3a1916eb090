"""How long a loop that fires timers waits before it looks again."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Final

from timer_service.service.surroundings import Surroundings

MAX_WAY_S: Final = 0.05
"""A batch of a backlog waits no longer than this for a timer that is due next."""
CLOCK_STEP_S: Final = 0.001


class Pauses:
    """The pauses of one loop; what goes first says when it looks again."""

    def __init__(self, around: Surroundings, *, poll_interval_s: float, is_expected: bool) -> None:
        self._clock = around.clock
        self._right_of_way = around.right_of_way
        self._poll_interval_s = poll_interval_s
        self._is_expected = is_expected
        self._polled_at: datetime | None = None

    async def sleep(self, next_look_at: datetime | None, looked_at: datetime, wake: asyncio.Event) -> None:
        """Sleep until a moment or the end of the poll interval, whichever comes first, or the event."""
        seconds = min(self._poll_interval_s, self._seconds_until(self._next_poll(looked_at)))
        if next_look_at is not None:
            seconds = min(seconds, self._seconds_until(next_look_at))
        with self._expected(seconds):
            await self._clock.wait(seconds, wake)

    async def make_way(self, next_due_at: datetime | None, batch_took_s: float, wake: asyncio.Event) -> None:
        """Wait for the next due time, on the bus or here, if a batch of a backlog is not over before it."""
        seconds = self._right_of_way.expected_in_s + CLOCK_STEP_S
        if next_due_at is not None:
            seconds = min(seconds, self._seconds_until(next_due_at))
        if seconds < min(batch_took_s, MAX_WAY_S):
            await self._clock.wait(seconds, wake)

    def _expected(self, seconds: float) -> AbstractContextManager[None]:
        """Say when the bus looks again, by a clock that counts whole milliseconds: it may be one earlier."""
        return self._right_of_way.expected(seconds - CLOCK_STEP_S) if self._is_expected else nullcontext()

    def _next_poll(self, looked_at: datetime) -> datetime:
        """Return when the poll interval is over: looks in between do not put off the poll."""
        interval = timedelta(seconds=self._poll_interval_s)
        if self._polled_at is None or not self._polled_at <= looked_at < self._polled_at + interval:
            self._polled_at = looked_at
        return self._polled_at + interval

    def _seconds_until(self, moment: datetime) -> float:
        return max(0.0, (moment - self._clock.now()).total_seconds())
