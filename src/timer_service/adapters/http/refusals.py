"""When those who ask too much are told so: to refuse costs as much as to serve."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

TOO_MANY_AFTER_S: Final = 0.1
"""How long a 429 is held back: a client that waits for its answers can flood us no faster than that."""
APART_S: Final = 0.0125
"""Between two that one tenant gets: its connections come back one after the other, and not all at once."""
MAX_HELD_BACK: Final = 256
"""Answers that are held back at once; beyond it they go out immediately."""


@dataclass(slots=True)
class _Line:
    """The answers of one tenant that are held back."""

    held: int = 0
    last_s: float = float("-inf")
    """When the last of them goes out."""


class Refusals:
    """Holds 429s back, those of one tenant one after the other."""

    def __init__(self, after_s: float = TOO_MANY_AFTER_S, apart_s: float = APART_S) -> None:
        self._after_s = after_s
        self._apart_s = apart_s
        self._held = 0
        self._lines: dict[str, _Line] = {}

    @contextmanager
    def held_back(self, who: str, now_s: float) -> Iterator[float]:
        """Hold an answer back while the block runs, which waits for the seconds that it is given."""
        if self._held >= MAX_HELD_BACK:
            yield 0.0
            return
        line = self._lines.setdefault(who, _Line())
        line.last_s = max(now_s + self._after_s, line.last_s + self._apart_s)
        self._held += 1
        line.held += 1
        try:
            yield line.last_s - now_s
        finally:
            self._held -= 1
            line.held -= 1
            if not line.held:
                del self._lines[who]
