"""What a group of commands changed together."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, TypeVar

from timer_service.domain.callback import Callback, NoCallback
from timer_service.domain.messages import Command, ScheduleTimer, TimerKey
from timer_service.domain.timer import Outcome

DECIDED_AT_ONCE: Final = 250
"""Of many requests in one transaction: between two groups the event loop turns to everything else."""

T = TypeVar("T")

_SETS_A_DUE_TIME: Final = frozenset({Outcome.SCHEDULED, Outcome.RESCHEDULED})
_TAKES_A_CALLBACK: Final = _SETS_A_DUE_TIME | {Outcome.UNCHANGED}


def in_groups(items: Sequence[T], most: int = DECIDED_AT_ONCE) -> Iterator[Sequence[T]]:
    """Yield items in their order, so many at once."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def nearest_due_at(commands: Sequence[Command], outcomes: Sequence[Outcome]) -> datetime | None:
    """Return the earliest due time that some commands have set."""
    due_times = (
        command.due_at
        for command, outcome in zip(commands, outcomes, strict=True)
        if outcome in _SETS_A_DUE_TIME and isinstance(command, ScheduleTimer)
    )
    return min(due_times, default=None)


def accepted_callbacks(commands: Sequence[Command], outcomes: Sequence[Outcome]) -> dict[TimerKey, Callback]:
    """Return the callbacks that some commands have given to their timers."""
    targets = _accepted_targets(commands, outcomes)
    return {key: target for key, target in targets if isinstance(target, Callback)}


def dropped_callbacks(commands: Sequence[Command], outcomes: Sequence[Outcome]) -> list[TimerKey]:
    """Return the timers whose callbacks some commands have taken away."""
    return [key for key, target in _accepted_targets(commands, outcomes) if isinstance(target, NoCallback)]


def _accepted_targets(
    commands: Sequence[Command], outcomes: Sequence[Outcome]
) -> list[tuple[TimerKey, Callback | NoCallback | None]]:
    return [
        (command.key, command.callback)
        for command, outcome in zip(commands, outcomes, strict=True)
        if isinstance(command, ScheduleTimer)
        and outcome in (_SETS_A_DUE_TIME if command.if_absent else _TAKES_A_CALLBACK)
    ]
