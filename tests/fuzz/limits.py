"""What holds for every input: no error that nobody expects, and little time."""

import time
from collections.abc import Callable

SLOWEST_S = 0.05
TRIES = 3
"""The first call may pay for something else, such as a collection of garbage."""


class TooSlow(AssertionError):
    """An input took more time than any may."""


class Watch:
    """A target with a stopwatch."""

    def __init__(self, target: Callable[[bytes], None]) -> None:
        self._target = target
        self.slowest_s = 0.0

    def feed(self, data: bytes) -> None:
        """Feed one input; what the target raises is what is wrong."""
        taken_s = self._timed(data)
        if taken_s > SLOWEST_S:
            taken_s = min(taken_s, *(self._timed(data) for _ in range(TRIES)))
            if taken_s > SLOWEST_S:
                raise TooSlow(f"{taken_s * 1000:.0f} ms for {len(data)} bytes")
        self.slowest_s = max(self.slowest_s, taken_s)

    def _timed(self, data: bytes) -> float:
        # Time of this thread: others on the machine do not count.
        started = time.thread_time()
        self._target(data)
        return time.thread_time() - started
