"""A clock that stands still until a test moves it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
HANGING_TIMEOUT_S: Final = 60.0
"""Of real time; only against a test that would never end."""
TURNS_TO_REST: Final = 50


class FreeClock:
    """A clock that holds no leap back: those who move it mean it."""

    @property
    def problem(self) -> None:
        """Return None: no leap is held back."""

    @property
    def held_step_s(self) -> float:
        """Return 0: no leap is held back."""
        return 0.0

    def accept_step(self) -> float:
        """Return 0: there was nothing to accept."""
        return 0.0


class ManualClock(FreeClock):
    """The clock by hand: the wall clock and the passing of time are moved separately."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now
        self._elapsed_s = 0.0
        self._sleepers: dict[asyncio.Future[None], float] = {}
        self.waits: list[float] = []
        """Every span that was asked for, in order."""

    def now(self) -> datetime:
        """Return the moment that a test has set, truncated to the millisecond."""
        return self._now - timedelta(microseconds=self._now.microsecond % 1000)

    def delays_from(self) -> datetime:
        """Return the moment that a test has set, rounded up to the millisecond."""
        return self._now + timedelta(microseconds=-self._now.microsecond % 1000)

    @property
    def elapsed_s(self) -> float:
        """Return how much time has passed, whatever the wall clock shows."""
        return self._elapsed_s

    def step_to(self, moment: datetime) -> None:
        """Set the wall clock as an operator would: nobody who sleeps notices."""
        self._now = moment

    def advance(self, seconds: float) -> None:
        """Let time pass: the wall clock moves on, and tasks that have slept long enough wake."""
        self._now += timedelta(seconds=seconds)
        self._elapsed_s += seconds
        for sleeper, ends_at in list(self._sleepers.items()):
            if ends_at <= self._elapsed_s + 1e-9 and not sleeper.done():
                sleeper.set_result(None)

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Return when the event is set, or a test has let the time pass."""
        self.waits.append(seconds)
        sleeper = asyncio.get_running_loop().create_future()
        if seconds <= 0:
            sleeper.set_result(None)
        self._sleepers[sleeper] = self._elapsed_s + seconds
        woken = asyncio.ensure_future(wake.wait())
        try:
            await asyncio.wait({sleeper, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._sleepers[sleeper]
            woken.cancel()

    async def until_waits(self, count: int) -> None:
        """Let the tasks run until `count` waits have been asked for since the start, and come to rest."""
        async with asyncio.timeout(HANGING_TIMEOUT_S):
            while len(self.waits) < count:  # noqa: ASYNC110 - the tasks have to get their turns
                await asyncio.sleep(0)
        await self.until_rest()

    async def until_rest(self) -> None:
        """Let the tasks run on: one that does not sleep when it should shows by further waits."""
        for _ in range(TURNS_TO_REST):
            await asyncio.sleep(0)
