"""What is going to be due, and how late it will be: a queue that drains at a known pace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class Span(StrEnum):
    """How far ahead to look."""

    HOUR = "hour"
    TWO_DAYS = "2days"
    MONTH = "month"


STEPS: Final[Mapping[Span, tuple[timedelta, int]]] = {
    Span.HOUR: (timedelta(minutes=1), 60),
    Span.TWO_DAYS: (timedelta(hours=1), 48),
    Span.MONTH: (timedelta(days=1), 30),
}
"""How long each step is, and how many there are."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is due in one step of time."""

    start: datetime
    end: datetime
    by_tenant: tuple[tuple[str, int], ...]
    """Whose, in a fixed order; the empty name stands for all others."""
    total: int
    backlog: int = 0
    """What is left over at its end, if the pace is known."""
    late_s: float = 0.0
    """How late the last one of it is, if what is due spreads over the step evenly."""
    at_once_late_s: float = 0.0
    """How late the last one is at worst: if all are due at the same moment."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is going to be due, step by step."""

    steps: tuple[Step, ...]
    capacity_per_s: float
    """The pace that was measured; 0 if none was."""

    @property
    def total(self) -> int:
        """How many timers are due in all steps."""
        return sum(step.total for step in self.steps)

    @property
    def peak(self) -> Step | None:
        """The busiest step; None if nothing is due."""
        return max(self.steps, key=lambda step: step.total) if self.total else None

    @property
    def latest(self) -> Step | None:
        """The step with the largest lateness; None if nothing is expected to be late."""
        late = [step for step in self.steps if step.late_s > 0]
        return max(late, key=lambda step: step.late_s, default=None)


def edges(now: datetime, span: Span) -> list[datetime]:
    """Return where steps begin and end: at whole minutes, hours or days of UTC, the first of them now."""
    step, count = STEPS[span]
    first = now.replace(second=0, microsecond=0)
    if span is not Span.HOUR:
        first = first.replace(minute=0)
    if span is Span.MONTH:
        first = first.replace(hour=0)
    room = (datetime.max - first.replace(tzinfo=None)) // step
    return [first + step * number for number in range(min(count, room) + 1)]


def forecast(
    moments: Sequence[datetime],
    totals: Sequence[int],
    of_tenants: Mapping[str, Sequence[int]],
    *,
    capacity_per_s: float = 0.0,
    overdue: int = 0,
) -> Forecast:
    """Return steps with their predicted lateness; `overdue` timers stand before all that is to come."""
    steps, left = [], float(overdue)
    for index, total in enumerate(totals):
        start, end = moments[index], moments[index + 1]
        known = [(name, counts[index]) for name, counts in of_tenants.items()]
        others = max(0, total - sum(count for _, count in known))
        late_s = at_once_s = 0.0
        if capacity_per_s > 0:
            at_once_s = (left + total) / capacity_per_s if total else 0.0
            left = max(0.0, left + total - capacity_per_s * (end - start).total_seconds())
            late_s = left / capacity_per_s
        shares = tuple(known) + ((("", others),) if others or not known else ())
        steps.append(Step(start, end, shares, total, round(left), late_s, at_once_s))
    return Forecast(tuple(steps), capacity_per_s)
