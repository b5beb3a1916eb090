"""How long the command stream has not answered, although events can be published."""

from datetime import datetime, timedelta
from typing import NamedTuple

MAX_COUNTED = timedelta(seconds=6)
"""At most this much of the time between two looks counts; a question alone may take five seconds."""
MOMENTS = 32
"""How many looks are remembered per TIMER_CATCH_UP."""


class _Look(NamedTuple):
    counted: timedelta
    moment: datetime


class Unanswered:
    """Counts only time in which we look: a pause of the process or an outage leaves the whole limit."""

    def __init__(self, limit: timedelta) -> None:
        self._limit = limit
        self._looks: list[_Look] = []
        self._counted = timedelta()
        self._last: datetime | None = None
        self.is_given_up = False
        """Whether something fires although the stream has not answered."""
        self.ask_beside = False
        """Whether somebody else asks, so that no look waits for an answer that does not come."""

    @property
    def is_silent(self) -> bool:
        """Whether the last look got no answer."""
        return self._last is not None

    def note(self, now: datetime) -> datetime | None:
        """Count a look without an answer; return up to which due time timers have waited long enough."""
        if self._last is not None:
            self._counted += min(max(now - self._last, timedelta()), MAX_COUNTED)
        self._last = now
        if not self._looks or self._counted - self._looks[-1].counted >= self._limit / MOMENTS:
            self._looks.append(_Look(self._counted, now))
        over = self._counted - self._limit
        while len(self._looks) > 1 and self._looks[1].counted <= over:
            del self._looks[0]
        if self._looks[0].counted > over:
            return None
        self.ask_beside = True
        # Not later than now, if the clock was set back.
        return min(self._looks[0].moment, now)

    def answered(self) -> bool:
        """Forget all of it; return whether something fired meanwhile."""
        was_given_up = self.is_given_up
        self._looks.clear()
        self._counted, self._last = timedelta(), None
        self.is_given_up = self.ask_beside = False
        return was_given_up
