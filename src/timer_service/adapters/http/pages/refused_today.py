"""What was refused since midnight: read from the newest letters, and remembered for a moment."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from timer_service.domain.errors import BusUnavailable, RightMissing
from timer_service.domain.messages import TenantId
from timer_service.ports.letter_box import LetterBox
from timer_service.waiting import within

FRESH_S: Final = 10.0
LOOK_S: Final = 0.5
"""The first screen waits so long for the broker, and no longer."""
MAX_LETTERS: Final = 200
MAX_TENANTS: Final = 20
MAX_CACHED: Final = 100

Tenants = frozenset[TenantId] | None


@dataclass(frozen=True, slots=True)
class Refused:
    """How many messages were refused, by reason."""

    by_reason: Mapping[str, int] = field(default_factory=dict)
    is_capped: bool = False
    """Whether there were more letters than were looked at."""


class RefusedToday:
    """Counts letters since a moment, for all who see the same tenants."""

    def __init__(self, letters: LetterBox, elapsed_s: Callable[[], float]) -> None:
        self._letters = letters
        self._elapsed_s = elapsed_s
        self._known: dict[tuple[Tenants, datetime], tuple[float, Refused | None]] = {}

    async def count(self, tenants: Tenants, since: datetime) -> Refused | None:
        """Return what was refused; None if the letters cannot be read."""
        known = self._known.get((tenants, since))
        if known is not None and self._elapsed_s() - known[0] < FRESH_S:
            return known[1]
        try:
            found = await within(LOOK_S, self._look(tenants, since))
        except (BusUnavailable, RightMissing, TimeoutError):
            found = None
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[tenants, since] = (self._elapsed_s(), found)
        return found

    async def _look(self, tenants: Tenants, since: datetime) -> Refused:
        counts, is_capped = Counter[str](), False
        for whose in [None] if tenants is None else sorted(tenants)[:MAX_TENANTS]:
            page = await self._letters.page(whose, None, MAX_LETTERS)
            today = [letter for letter in page.letters if letter.received_at >= since]
            counts.update(letter.reason for letter in today)
            is_capped |= page.older is not None and len(today) == len(page.letters)
        return Refused(dict(sorted(counts.items())), is_capped)
