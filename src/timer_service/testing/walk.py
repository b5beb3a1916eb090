"""Move virtual time from due time to due time, and wait at each for everybody whom it concerns."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timer_client.wire import format_time
from timer_service.testing.settling import Look, Settling
from timer_service.testing.virtual_clock import VirtualClock

SETTLE_TIMEOUT_S: Final = 10.0
"""Of real time, in which nothing at all happens although somebody has not finished."""
MOMENT_TIMEOUT_S: Final = 60.0
"""Of real time at one moment: code that keeps scheduling what is due at once would stop time forever."""
FIRST_PAUSE_S: Final = 0.0005
MAX_PAUSE_S: Final = 0.01


class NotSettled(Exception):
    """Time cannot move on: somebody has not finished with the present moment."""


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """How long to wait, in real time."""

    settle_timeout_s: float = SETTLE_TIMEOUT_S
    moment_timeout_s: float = MOMENT_TIMEOUT_S


USUAL_LIMITS: Final = WalkLimits()


@dataclass(frozen=True, slots=True)
class Walked:
    """How far time has come."""

    now: datetime
    published: int
    """Events that were published on the way."""
    arrived: bool
    """Whether the target is reached; if not, the time that one walk may take is over."""


class Walk:
    """The only one who moves the clock; two walks at once take turns."""

    def __init__(
        self,
        clock: VirtualClock,
        settling: Settling,
        problems: Callable[[], dict[str, str]],
        limits: WalkLimits = USUAL_LIMITS,
    ) -> None:
        self._clock = clock
        self._settling = settling
        self._problems = problems
        self._limits = limits
        self._turn = asyncio.Lock()

    def now(self) -> datetime:
        """Return the present moment."""
        return self._clock.now()

    async def settle(self) -> Look:
        """Wait until nothing is left to do at this time; raise NotSettled with who has not finished."""
        passed_s = asyncio.get_running_loop().time
        started = moved = passed_s()
        look = await self._settling.look()
        pause_s = FIRST_PAUSE_S
        while look.unsettled:
            await asyncio.sleep(pause_s)
            before, look = look, await self._settling.look()
            if look.progress != before.progress:
                moved, pause_s = passed_s(), FIRST_PAUSE_S
            else:
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            if passed_s() - moved > self._limits.settle_timeout_s:
                raise self._not_settled(look, f"nothing has happened for {self._limits.settle_timeout_s:g} s")
            if passed_s() - started > self._limits.moment_timeout_s:
                raise self._not_settled(look, f"not finished after {self._limits.moment_timeout_s:g} s")
        return look

    async def advance_to(self, target: datetime, max_s: float | None = None) -> Walked:
        """Go from due time to due time until the target, or for `max_s` of real time."""
        async with self._turn:
            if target < self.now():
                now, then = format_time(self.now()), format_time(target)
                raise ValueError(f"time cannot go back: it is already {now}, later than {then}")
            passed_s = asyncio.get_running_loop().time
            started = passed_s()
            published, look = await self._settling.published(), await self.settle()
            while self.now() < target and (max_s is None or passed_s() - started < max_s):
                look = await self._step(look, target)
            return Walked(self.now(), look.published - published, self.now() >= target)

    async def advance_to_next(self) -> Walked:
        """Go to the next due time; stay where nothing is scheduled."""
        async with self._turn:
            published, look = await self._settling.published(), await self.settle()
            if look.next_due_at is not None:
                look = await self._step(look, look.next_due_at)
            return Walked(self.now(), look.published - published, arrived=True)

    async def _step(self, look: Look, target: datetime) -> Look:
        self._clock.move_to(min(look.next_due_at or target, target))
        return await self.settle()

    def _not_settled(self, look: Look, why: str) -> NotSettled:
        problems = [f"{part}: {text}" for part, text in self._problems().items()]
        return NotSettled(
            f"time stands at {format_time(self.now())}, {why}: {'; '.join([*look.unsettled, *problems])}"
        )
