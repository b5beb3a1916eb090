"""The timer and its only legal transitions.

(none)    ── schedule ──▶ Scheduled     generation 1
(none)    ── cancel ────▶ Cancelled     remembered, generation 0
Scheduled ── schedule ──▶ Scheduled     next generation where the due time differs
Scheduled ── cancel ────▶ Cancelled
Scheduled ── reached ───▶ Reached       final
Cancelled ── schedule ──▶ Scheduled     next generation

State, due time, correlation id and trace are set by the newest command that says anything about them,
in whatever order commands come. The generation counts what this timer has seen of that.

Commands of the stream are applied, requests are decided: two ways to the same transitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from timer_service.domain.callback import Callback, NoCallback, Sink
from timer_service.domain.messages import (
    CancelTimer,
    Command,
    CorrelationId,
    DueTimeReached,
    Keyed,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    TimerKey,
    Trace,
)


class TimerState(StrEnum):
    """Where a timer is in its life."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    CANCELLED = "Cancelled"


class Outcome(StrEnum):
    """What a command did to its timer."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    UNCHANGED = "unchanged"
    CANCELLED = "cancelled"
    ALREADY_CANCELLED = "already_cancelled"
    ALREADY_REACHED = "already_reached"
    NOT_FOUND = "not_found"
    """A cancel of a timer that was never scheduled; it is remembered."""
    SUPERSEDED = "superseded"
    """An old command delivered again, or overtaken by a newer one."""
    DUE = "due"
    """A request that came when the timer was due: whether its event is out is not known yet."""


_SETS_A_DUE_TIME: Final = frozenset({Outcome.SCHEDULED, Outcome.RESCHEDULED})
_TAKES_A_CALLBACK: Final = _SETS_A_DUE_TIME | {Outcome.UNCHANGED}


@dataclass(frozen=True, slots=True)
class Timer(Keyed):
    """One timer of one tenant, for its whole life."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    state: TimerState
    due_at: datetime | None
    """None only if a cancel came before any schedule."""
    generation: int
    """Counts the due times this timer has had; an event names the one it belongs to."""
    registered_at: datetime
    correlation_id: CorrelationId | None
    reached_at: datetime | None
    cancelled_at: datetime | None
    position: Position
    """The newest command that was applied: it has set the state."""
    trace: Trace | None = None
    due_position: Position | None = None
    """The command that has set the due time; None if there is none."""
    correlation_position: Position | None = None
    """The command that has set the correlation id."""
    trace_position: Position | None = None
    """The command that has set the trace."""
    sink: Sink = Sink.BUS
    callback_revision: int = 0
    """Counts the callbacks that this timer has had."""


@dataclass(frozen=True, slots=True)
class DueTimer(Keyed):
    """What firing needs of a due timer."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    due_at: datetime
    generation: int
    correlation_id: CorrelationId | None
    trace: Trace | None = None

    def reached(self, at: datetime) -> DueTimeReached:
        """Return the event of this firing."""
        return DueTimeReached(
            self.tenant_id,
            self.service_call_id,
            self.due_at,
            at,
            self.generation,
            self.correlation_id,
            self.trace,
        )


Rule = Callable[[Timer | None, Command, datetime], tuple[Timer, Outcome]]
"""What becomes of a timer, and what the command did: `apply` or `decide`."""


def apply(timer: Timer | None, command: Command, now: datetime) -> tuple[Timer, Outcome]:
    """Return the timer as it is after a command of the stream, and what the command did."""
    if timer is None:
        return _first(command, now)
    if timer.state is TimerState.REACHED:
        return timer, Outcome.ALREADY_REACHED
    if command.position > timer.position:
        return _change(timer, command, now)
    return _complete(timer, command), Outcome.SUPERSEDED


def decide(timer: Timer | None, request: Command, now: datetime) -> tuple[Timer, Outcome]:
    """Return the timer as it is after a request, whose sender waits for the answer, and what it did.

    A request has the position of the newest command at its time, and counts as newer than that one. One that
    was overtaken all the same changes nothing: it comes again.
    """
    if timer is None:
        return _first(request, now)
    if timer.state is TimerState.REACHED:
        return timer, Outcome.ALREADY_REACHED
    if request.position < timer.position:
        return timer, Outcome.SUPERSEDED
    if _is_due(timer, now):
        return timer, Outcome.DUE
    return _change(timer, request, now)


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
        if isinstance(command, ScheduleTimer) and outcome in _TAKES_A_CALLBACK
    ]


def mark_reached(timer: Timer, generation: int, at: datetime) -> Timer:
    """Return the timer as reached, or as it is if that generation no longer stands."""
    if timer.state is not TimerState.SCHEDULED or timer.generation != generation:
        return timer
    return replace(timer, state=TimerState.REACHED, reached_at=at)


def _is_due(timer: Timer, now: datetime) -> bool:
    return timer.state is TimerState.SCHEDULED and timer.due_at is not None and timer.due_at <= now


def _first(command: Command, now: datetime) -> tuple[Timer, Outcome]:
    at = command.position
    if isinstance(command, ScheduleTimer):
        correlation_id, trace = command.correlation_id, command.trace
        return Timer(
            tenant_id=command.tenant_id,
            service_call_id=command.service_call_id,
            state=TimerState.SCHEDULED,
            due_at=command.due_at,
            generation=1,
            registered_at=now,
            correlation_id=correlation_id,
            reached_at=None,
            cancelled_at=None,
            position=at,
            trace=trace,
            due_position=at,
            correlation_position=None if correlation_id is None else at,
            trace_position=None if trace is None else at,
            **_target(command),
        ), Outcome.SCHEDULED
    # A cancel of an unknown timer is remembered: the schedule that it overtook must not fire.
    return Timer(
        tenant_id=command.tenant_id,
        service_call_id=command.service_call_id,
        state=TimerState.CANCELLED,
        due_at=None,
        generation=0,
        registered_at=now,
        correlation_id=None,
        reached_at=None,
        cancelled_at=now,
        position=at,
    ), Outcome.NOT_FOUND


def _change(timer: Timer, command: Command, now: datetime) -> tuple[Timer, Outcome]:
    if isinstance(command, ScheduleTimer):
        return _schedule(timer, command)
    return _cancel(timer, command, now)


def _schedule(timer: Timer, command: ScheduleTimer) -> tuple[Timer, Outcome]:
    again = timer.state is TimerState.CANCELLED
    moved = again or timer.due_at != command.due_at
    scheduled = replace(
        timer,
        **_values(command),
        **_target(command, timer.callback_revision),
        state=TimerState.SCHEDULED,
        generation=timer.generation + 1 if moved else timer.generation,
        cancelled_at=None,
        # Even if nothing else changes: a command that this one overtook must not undo it.
        position=command.position,
    )
    if again:
        return scheduled, Outcome.SCHEDULED
    return scheduled, Outcome.RESCHEDULED if moved else Outcome.UNCHANGED


def _cancel(timer: Timer, command: CancelTimer, now: datetime) -> tuple[Timer, Outcome]:
    if timer.state is TimerState.CANCELLED:
        return replace(timer, position=command.position), Outcome.ALREADY_CANCELLED
    cancelled = replace(timer, state=TimerState.CANCELLED, cancelled_at=now, position=command.position)
    return cancelled, Outcome.CANCELLED


def _complete(timer: Timer, command: Command) -> Timer:
    """Take from a command that was overtaken what no newer one has set."""
    if isinstance(command, CancelTimer):
        return timer
    values = _values(command, timer.due_position, timer.correlation_position, timer.trace_position)
    if not values:
        return timer
    moved = values.get("due_at", timer.due_at) != timer.due_at
    return replace(timer, **values, generation=timer.generation + 1 if moved else timer.generation)


def _target(command: ScheduleTimer, revision: int = 0) -> dict[str, Any]:
    """Return where a timer fires from now on, if the command says so."""
    if command.callback is None:
        return {}
    if isinstance(command.callback, NoCallback):
        return {"sink": Sink.BUS}
    return {"sink": Sink.HTTP, "callback_revision": revision + 1}


def _values(
    command: ScheduleTimer,
    due: Position | None = None,
    correlation: Position | None = None,
    trace: Position | None = None,
) -> dict[str, Any]:
    """Return the due time, correlation id and trace of a command, each unless a newer command has set it."""
    at = command.position
    values: dict[str, Any] = {}
    if due is None or at > due:
        values |= {"due_at": command.due_at, "due_position": at}
    if command.correlation_id is not None and (correlation is None or at > correlation):
        values |= {"correlation_id": command.correlation_id, "correlation_position": at}
    if command.trace is not None and (trace is None or at > trace):
        values |= {"trace": command.trace, "trace_position": at}
    return values
