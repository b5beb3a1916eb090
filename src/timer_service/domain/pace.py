"""How much a receiver is given at once: more with success, half under strain, nothing where nothing works.

Nothing of this uses up an attempt: what a receiver is not given now simply waits.
"""

from dataclasses import replace
from typing import Final

from timer_service.domain.delivery import CallResult, asks_to_slow_down, is_unwell, says_nothing
from timer_service.domain.values import value

FIRST_UNDER_WAY: Final = 4
MAX_UNDER_WAY: Final = 64
SLOWED_FOR_S: Final = 1.0
"""Failures within this long after a halving belong to the same strain."""
MAX_FAILURES: Final = 10
"""In a row, before nothing more is sent for a while."""
FIRST_PAUSE_S: Final = 15.0
MAX_PAUSE_S: Final = 300.0


@value(frozen=True, slots=True)
class Pace:
    """What is known of one tenant's receiver; times are seconds of a clock that never leaps."""

    limit: int = FIRST_UNDER_WAY
    """Requests under way at the same time."""
    successes: int = 0
    """Since the limit was last raised."""
    failures: int = 0
    """In a row."""
    slowed_until_s: float = 0.0
    open_until_s: float | None = None
    """Nothing is sent before then; after that one request tries. None while all is well."""
    pauses: int = 0
    """How many pauses in a row."""

    @property
    def is_open(self) -> bool:
        """Whether the receiver counts as gone."""
        return self.open_until_s is not None

    def allows(self, under_way: int, now_s: float) -> bool:
        """Return whether one more request may be sent."""
        if self.open_until_s is None:
            return under_way < self.limit
        return under_way == 0 and now_s >= self.open_until_s

    def after(self, result: CallResult, now_s: float) -> "Pace":
        """Return the pace after a request has ended."""
        if says_nothing(result):
            return self
        if not is_unwell(result):
            return self._went_well()
        failed = self._slower(now_s) if asks_to_slow_down(result) else self
        failed = replace(failed, failures=self.failures + 1, successes=0)
        # While it is open only the one request that tries can tell anything new.
        if (self.is_open and now_s >= (self.open_until_s or 0.0)) or (
            not self.is_open and failed.failures >= MAX_FAILURES
        ):
            pause_s = min(FIRST_PAUSE_S * 2 ** min(self.pauses, 16), MAX_PAUSE_S)
            return replace(failed, open_until_s=now_s + pause_s, pauses=self.pauses + 1)
        return failed

    def _went_well(self) -> "Pace":
        if self.is_open:
            # From one on: what has piled up must not fall on a receiver that is just back.
            return Pace(limit=1)
        if self.limit == MAX_UNDER_WAY and not self.failures:
            return self  # There is nothing more to gain.
        if self.successes + 1 < self.limit:
            return replace(self, successes=self.successes + 1, failures=0)
        return replace(self, limit=min(self.limit + 1, MAX_UNDER_WAY), successes=0, failures=0)

    def _slower(self, now_s: float) -> "Pace":
        if now_s < self.slowed_until_s:
            return self
        return replace(self, limit=max(1, self.limit // 2), slowed_until_s=now_s + SLOWED_FOR_S)


NEW_RECEIVER: Final = Pace()
