"""The machine's clock and chance; the only module that asks for either."""

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

from timer_service.domain.messages import EPOCH


class SystemClock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        """Return the present moment, cut down to the millisecond."""
        return EPOCH + timedelta(milliseconds=time.time_ns() // 1_000_000)

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Return when the event is set or the time has passed."""
        try:
            async with asyncio.timeout(seconds):
                await wake.wait()
        except TimeoutError:
            pass


def chance() -> float:
    """Return a number from 0 to 1, for jitter."""
    return random.random()  # noqa: S311 - spreads retries, guards nothing


def local_now() -> datetime:
    """Return the present moment in UTC with all its digits, for the command line."""
    return datetime.now(UTC)
