"""Sum up what happens often, so that the log grows with time and not with the load."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

INTERVAL_S: Final = 1.0
"""At most one line of a kind is written in this time."""

T = TypeVar("T")


class Appointment(Protocol):
    """Something that will be done later, unless it is cancelled."""

    def cancel(self) -> None:
        """Cancel it."""
        ...


Later = Callable[[float, Callable[[], None]], Appointment]
"""Do something after a number of seconds."""


def on_this_loop(seconds: float, action: Callable[[], None]) -> Appointment:
    """Do it on the event loop that runs."""
    return asyncio.get_running_loop().call_later(seconds, action)


class LogSummary(Generic[T]):
    """Logs the first of a kind at once, and what follows within INTERVAL_S together in one line.

    Nothing is left out: what has come in by the time it is closed is logged then.
    """

    def __init__(self, tell: Callable[[T], None], add: Callable[[T, T], T], later: Later) -> None:
        self._tell = tell
        self._add = add
        self._later = later
        self._rest: T | None = None
        self._next: Appointment | None = None

    def note(self, found: T) -> None:
        """Log it now, or with the next line."""
        if self._next is None:
            self._tell_now(found)
        else:
            self._rest = found if self._rest is None else self._add(self._rest, found)

    def close(self) -> None:
        """Log what is left."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        rest, self._rest = self._rest, None
        if rest is not None:
            self._tell(rest)

    def _tell_now(self, found: T) -> None:
        self._next = self._later(INTERVAL_S, self._time_is_up)
        self._tell(found)

    def _time_is_up(self) -> None:
        self._next = None
        rest, self._rest = self._rest, None
        if rest is not None:
            self._tell_now(rest)
