"""The timers that come due next, read before they are due: when they are, nobody waits for the file."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Final

from timer_service.adapters.rows import moment
from timer_service.domain.messages import TimerKey
from timer_service.domain.timer import Timer, TimerState

MAX_ROWS: Final = 100
"""How many timers are read ahead."""
MAX_SAVED: Final = 10_000
"""How many timers that were saved before the file was read are noted: without the broker, nobody reads it."""
MAX_AGE_S: Final = 5
"""What somebody else changed in the file counts after this long, as it would with a poll."""

_FOREVER: Final = datetime.max.replace(tzinfo=UTC)

Row = tuple[Any, ...]


class Ahead:
    """All timers that are due after one moment and before another, as they are in the file.

    Made when a look begins that finds whatever is due by then, and read afterwards. From the beginning it is
    told of everything saved: what was read of those timers may be outdated.
    """

    def __init__(self, after: datetime, looked_at: datetime | None = None) -> None:
        self._after = after
        self.looked_at = looked_at or after
        """When the file was last asked for all that is due; looks since then were answered from memory."""
        self._before = _FOREVER
        self._rows: dict[TimerKey, tuple[datetime, Row]] = {}
        self._saved_meanwhile: set[TimerKey] | None = set()
        """None once the file was read."""

    @property
    def is_full(self) -> bool:
        """Return whether so much was saved that it is better to read the file than to note more."""
        return self._saved_meanwhile is not None and len(self._saved_meanwhile) > MAX_SAVED

    def follows(self, look_at: datetime) -> bool:
        """Return whether nothing else is due at the moment of a look than what it found."""
        return self._after == look_at < self._before

    def fill(self, found: Iterable[Row]) -> datetime | None:
        """Take what the file says, up to MAX_ROWS + 1 rows in order; return when the first is due."""
        read = [(_due_at(row), row) for row in found]
        if len(read) > MAX_ROWS:
            # Others may be due at the same time as the last one.
            self._before = min(self._before, read[-1][0])
        saved = self._saved_meanwhile or ()
        self._rows = {
            row[:2]: (due_at, row) for due_at, row in read if due_at < self._before and row[:2] not in saved
        }
        self._saved_meanwhile = None
        return read[0][0] if read else None

    def saved(self, timers: Iterable[Timer]) -> None:
        """Forget timers that were saved, and everything from the earliest of their due times on."""
        before = self._before
        for timer in timers:
            key = timer.key
            self._rows.pop(key, None)
            if self._saved_meanwhile is not None:
                self._saved_meanwhile.add(key)
            due_at = timer.due_at
            if due_at is not None and due_at < before and timer.state is TimerState.SCHEDULED:
                before = due_at
        if before < self._before:
            self._before = before
            self._rows = {key: known for key, known in self._rows.items() if known[0] < before}

    def take(self, now: datetime, limit: int, claimed: Collection[TimerKey]) -> list[Row] | None:
        """Return all that has come due, oldest first, and forget it; None if the file has to be asked."""
        if not self._is_fresh(now) or now >= self._before:
            return None
        due = [row for _, row in takewhile(lambda known: known[0] <= now, self._rows.values())]
        if len(due) > limit or any(row[:2] in claimed for row in due):
            return None
        for row in due:
            del self._rows[row[:2]]
        self._after = now
        return due

    def next_due_at(self, after: datetime) -> tuple[bool, datetime | None]:
        """Return whether it is known what comes next after a look, and when it is due."""
        if not self._is_fresh(after) or not self.follows(after):
            return False, None
        due_at = next((due_at for due_at, _ in self._rows.values()), None)
        return due_at is not None or self._before is _FOREVER, due_at

    def _is_fresh(self, now: datetime) -> bool:
        # Reading on does not count as a look: whatever is overdue in the file is found by one of those alone.
        old_at = self.looked_at + timedelta(seconds=MAX_AGE_S)
        return self._saved_meanwhile is None and self._after <= now < old_at


def _due_at(row: Row) -> datetime:
    due_at = moment(row[2])
    assert due_at is not None
    return due_at
