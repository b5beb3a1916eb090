"""Alarms: one that rings to the microsecond, and the event loop's own, which counts in milliseconds."""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

Alarm = Callable[[float, Callable[[], None]], AbstractContextManager[None]]
"""Calls back after some seconds, unless the block has ended by then."""

_CLOCK_MONOTONIC: Final = 1
NS_PER_S: Final = 1_000_000_000


class _Span(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Span), ("first", _Span))


TimerCalls = tuple[Callable[..., int], Callable[..., int]]
"""How a timer that is a file is made, and how it is set."""


def timer_calls() -> TimerCalls | None:
    """Return the system's calls, which Python has from 3.13 on; None where there are none."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            return libc.timerfd_create, libc.timerfd_settime
    return None


@contextmanager
def loop_alarm(seconds: float, ring: Callable[[], None]) -> Iterator[None]:
    """Ring by the clock of the event loop."""
    handle = asyncio.get_running_loop().call_later(max(0.0, seconds), ring)
    try:
        yield
    finally:
        handle.cancel()


class PreciseAlarm:
    """Rings to the microsecond where the system can: a timer that is due at nine goes out at nine."""

    def __init__(self, calls: TimerCalls | None) -> None:
        self._calls = calls

    @contextmanager
    def __call__(self, seconds: float, ring: Callable[[], None]) -> Iterator[None]:
        """Ring after some seconds, unless the block has ended by then."""
        timer = None if self._calls is None else _started(*self._calls, seconds)
        if timer is None:
            with loop_alarm(seconds, ring):
                yield
            return
        loop = asyncio.get_running_loop()

        def over() -> None:
            loop.remove_reader(timer)
            ring()

        try:
            loop.add_reader(timer, over)
            yield
        finally:
            loop.remove_reader(timer)
            os.close(timer)


precise_alarm: Final = PreciseAlarm(timer_calls())


def _started(create: Callable[..., int], settime: Callable[..., int], seconds: float) -> int | None:
    """Return a file that can be read once the time is over; None if the system gives us none."""
    timer = create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        return None
    # Not zero: that would stop the timer.
    whole, rest = divmod(max(1, round(seconds * NS_PER_S)), NS_PER_S)
    settime(timer, 0, ctypes.byref(_Setting(first=_Span(whole, rest))), None)
    return timer
