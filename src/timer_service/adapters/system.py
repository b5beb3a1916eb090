"""The machine's clock and randomness; the only module that asks for either."""

import asyncio
import random
import re
import resource
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from timer_service.adapters.alarm import NS_PER_S, Alarm, precise_alarm
from timer_service.domain.messages import EPOCH

MILLISECOND: Final = timedelta(milliseconds=1)
NS_PER_MS: Final = 1_000_000
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger(__name__)


def _wall_ns() -> int:
    return time.time_ns()


def _boot_ms() -> int:
    """Return the milliseconds since the machine started, its sleep included; nobody can set this clock."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def instance_name() -> str:
    """Return a name for this process that no other instance has: the host's, and a few random characters."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:63]
    return f"{host}-{random.SystemRandom().randrange(16**6):06x}"


class SystemClock:
    """The wall clock of this machine, without its sudden leaps into the future.

    Where the wall clock gets ahead of the boot clock by `max_step` more than it ever was, the time goes on
    as before until a person confirms the step: timers that fired too early cannot be taken back. A step
    backward is followed at once, and so is the way back: it makes timers late at worst.
    """

    def __init__(
        self,
        max_step: timedelta | None = None,
        *,
        wall_ns: Callable[[], int] = _wall_ns,
        boot_ms: Callable[[], int] = _boot_ms,
        alarm: Alarm = precise_alarm,
    ) -> None:
        self._wall_ns = wall_ns
        self._boot_ms = boot_ms
        self._alarm = alarm
        self._max_step_ms = None if max_step is None else max_step // timedelta(milliseconds=1)
        self._highest_ms = self._wall_ms() - boot_ms()
        """How far ahead of the boot clock the wall clock was at most, of what was followed."""
        self._held_ms = 0

    def now(self) -> datetime:
        """Return the present moment, truncated to the millisecond."""
        boot_ms = self._boot_ms()
        offset_ms = self._wall_ms() - boot_ms
        step_ms = offset_ms - self._highest_ms
        if self._max_step_ms is not None and step_ms > self._max_step_ms:
            if not self._held_ms:
                log.error("clock.step_held", step_s=step_ms / 1000)
            self._held_ms = step_ms
            offset_ms = self._highest_ms
        else:
            self._highest_ms = max(self._highest_ms, offset_ms)
            self._held_ms = 0
        return EPOCH + timedelta(milliseconds=boot_ms + offset_ms)

    def delays_from(self) -> datetime:
        """Return the next millisecond: the present one has begun already."""
        return self.now() + MILLISECOND

    @property
    def problem(self) -> str | None:
        """Say which step of the wall clock is held back."""
        if not self._held_ms:
            return None
        return (
            f"the wall clock leapt forward by {self._held_ms / 1000:g} s and is not followed: "
            "if it is right now, confirm with `timer-service clock accept`"
        )

    def accept_step(self) -> float:
        """Follow the wall clock as it is now; return the seconds of the step."""
        held_ms, self._held_ms = self._held_ms, 0
        self._highest_ms = self._wall_ms() - self._boot_ms()
        if held_ms:
            log.warning("clock.step_accepted", step_s=held_ms / 1000)
        return held_ms / 1000

    @property
    def held_step_s(self) -> float:
        """Return the seconds of the step that is held back, 0 if there is none."""
        return self._held_ms / 1000

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Return when the event is set or the time has passed.

        It counts from the millisecond that `now` returns, so that a wait until a due time ends at that time.
        """
        begun_s = self._wall_ns() % NS_PER_MS / NS_PER_S
        try:
            async with asyncio.timeout(None) as limit:
                with self._alarm(seconds - begun_s, lambda: limit.reschedule(0.0)):
                    await wake.wait()
        except TimeoutError:
            pass

    def _wall_ms(self) -> int:
        return self._wall_ns() // NS_PER_MS


def chance() -> float:
    """Return a number from 0 to 1, for jitter."""
    return random.random()  # noqa: S311 - spreads retries, guards nothing


def local_now() -> datetime:
    """Return the present moment in UTC with all its digits, for the command line."""
    return datetime.now(UTC)


def allow_files(wanted: int) -> int:
    """Let the process open this many files, or as many as the system allows; return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
