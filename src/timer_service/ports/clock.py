"""Time, as the core sees it."""

import asyncio
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The only source of time and the only way to wait."""

    def now(self) -> datetime:
        """Return the present moment in UTC, truncated to the millisecond.

        Truncated, never rounded: a timer must not look due before its millisecond has begun.
        """
        ...

    def delays_from(self) -> datetime:
        """Return the moment from which a delay counts: the present one, rounded up to the millisecond.

        Up, because a millisecond that has begun is over sooner than a whole one.
        """
        ...

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Return when the event is set or the time has passed, whichever comes first.

        The time is a span, not a moment: a stepped wall clock neither cuts it short nor stretches it.
        It counts from the millisecond that `now` returns: a wait for what is left until a moment ends then.
        """
        ...


class GuardedClock(Clock, Protocol):
    """A clock that does not follow a leap of the machine's until a person confirms it."""

    @property
    def problem(self) -> str | None:
        """Say which leap is held back; None if there is none."""
        ...

    @property
    def held_step_s(self) -> float:
        """Return the seconds of the leap that is held back, 0 if there is none."""
        ...

    def accept_step(self) -> float:
        """Follow the machine's clock as it is now; return the seconds of the leap."""
        ...
