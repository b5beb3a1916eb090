"""Count what the event loop does in one go instead of how long it takes: a busy machine changes no count."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

_STEP: Final = asyncio.Handle._run.__code__


@dataclass
class Steps:
    """Calls of Python and C functions between two turns of the loop."""

    total: int = 0
    longest: int = 0
    under_way: int = 0

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is _STEP:
            self.under_way = 0
        elif event in ("call", "c_call"):
            self.total += 1
            self.under_way += 1
            self.longest = max(self.longest, self.under_way)


@contextmanager
def counted_steps() -> Iterator[Steps]:
    """Count the calls in this thread, from the next step on."""
    steps = Steps()
    sys.setprofile(steps.count)
    try:
        yield steps
    finally:
        sys.setprofile(None)
