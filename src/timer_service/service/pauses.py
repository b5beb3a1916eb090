"""How long a loop that fires timers waits before it looks again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from timer_service.right_of_way import RightOfWay
from timer_service.service.surroundings import Surroundings

MAX_WAY_S: Final = 0.05
"""A batch of a backlog waits no longer than this for a timer that is due next."""
CLOCK_STEP_S: Final = 0.001
MAX_MADE_WAY: Final = 2
"""So often in a row; where no batch ever fits in, a backlog goes on all the same."""
SHORTER: Final = 0.9
"""One quick batch does not mean that the next is quick: what a batch takes is believed to fall by so much."""


@dataclass(slots=True)
class BatchTimes:
    """How long the batches of a backlog take, and the pause after each."""

    pause_s: float
    takes_s: float = 0.0

    def took(self, seconds: float) -> None:
        """Note what a full batch took."""
        self.takes_s = max(seconds, SHORTER * self.takes_s)


class Pauses:
    """The pauses of one loop; what goes first says when it looks again."""

    def __init__(self, around: Surroundings, *, poll_interval_s: float, is_expected: bool) -> None:
        self._clock = around.clock
        self._right_of_way, self._before_callbacks = around.right_of_way, around.before_callbacks
        self._poll_interval_s = poll_interval_s
        self._is_expected = is_expected
        self._polled_at = around.clock.now()
        self._made_way = 0

    def looked(self, looked_at: datetime, *, read_ahead: bool) -> None:
        """Count the poll interval from a look, unless that has found what was read ahead."""
        if not read_ahead:
            self._polled_at = looked_at

    async def sleep(self, next_look_at: datetime | None, wake: asyncio.Event) -> None:
        """Sleep until a moment or the end of the poll interval, whichever comes first, or the event."""
        next_poll_at = self._polled_at + timedelta(seconds=self._poll_interval_s)
        seconds = min(self._poll_interval_s, self._seconds_until(next_poll_at))
        if next_look_at is not None:
            seconds = min(seconds, self._seconds_until(next_look_at))
        with self._expected(self._right_of_way, seconds), self._expected(self._before_callbacks, seconds):
            await self._clock.wait(seconds, wake)

    async def make_way(
        self,
        next_due_at: datetime | None,
        batch: BatchTimes,
        marked: Callable[[], Awaitable[None]],
        wake: asyncio.Event,
    ) -> None:
        """Rest after a batch of a backlog; wait for the next due time if no other batch is over before it."""
        if self._free_s(next_due_at) > MAX_WAY_S:
            await asyncio.sleep(batch.pause_s)
            return
        await marked()  # The next batch would wait for that, and be over later than it seems.
        free_s = self._free_s(next_due_at)
        if free_s - CLOCK_STEP_S >= batch.takes_s or self._made_way >= MAX_MADE_WAY:
            self._made_way = 0
            return
        self._made_way += 1
        await self._clock.wait(free_s, wake)

    def _free_s(self, next_due_at: datetime | None) -> float:
        """Return how long nothing else is due; by a clock that counts whole milliseconds, one too much."""
        # Never too little: a wait that ends just before the due time ends at the worst moment to begin.
        seconds = self._right_of_way.expected_in_s + 2 * CLOCK_STEP_S
        return seconds if next_due_at is None else min(seconds, self._seconds_until(next_due_at))

    def _expected(self, way: RightOfWay, seconds: float) -> AbstractContextManager[None]:
        """Say when the bus looks again, by a clock that counts whole milliseconds: it may be one earlier."""
        return way.expected(seconds - CLOCK_STEP_S) if self._is_expected else nullcontext()

    def _seconds_until(self, moment: datetime) -> float:
        return max(0.0, (moment - self._clock.now()).total_seconds())
