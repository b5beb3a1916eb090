"""The timer and its only legal transitions.

(none)    ── schedule ──▶ Scheduled     generation 1
(none)    ── cancel ────▶ Cancelled     remembered, generation 0
Scheduled ── schedule ──▶ Scheduled     next generation where the due time differs
Scheduled ── cancel ────▶ Cancelled
Scheduled ── reached ───▶ Reached       final
Scheduled ── expired ───▶ Expired       final: its event would have come too late to be of use
Cancelled ── schedule ──▶ Scheduled     next generation

State, due time, correlation id and trace are set by the newest command that says anything about them,
in whatever order commands come. The generation counts what this timer has seen of that.

A schedule "if absent" counts only as the oldest command of its timer: it is dropped where there is an older
one, and what it has set is taken back when an older one comes in after it.

Commands of the stream are applied, requests are decided: two ways to the same transitions.
"""

from collections.abc import Callable
from dataclasses import field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from timer_service.domain.callback import NoCallback, Sink
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import (
    CancelTimer,
    Command,
    CorrelationId,
    Event,
    Keyed,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    TimerExpired,
    Trace,
    short_digest,
)
from timer_service.domain.values import value


class TimerState(StrEnum):
    """Where a timer is in its life."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    CANCELLED = "Cancelled"
    EXPIRED = "Expired"


class Outcome(StrEnum):
    """What a command did to its timer."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    UNCHANGED = "unchanged"
    CANCELLED = "cancelled"
    ALREADY_CANCELLED = "already_cancelled"
    ALREADY_REACHED = "already_reached"
    ALREADY_EXPIRED = "already_expired"
    NOT_FOUND = "not_found"
    """A cancel of a timer that was never scheduled; it is remembered."""
    SUPERSEDED = "superseded"
    """An old command delivered again, or overtaken by a newer one."""
    CHANGED = "changed"
    """A request for another version of the timer than it has."""
    DUE = "due"
    """A request that came when the timer was due: whether its event is out is not known yet."""


FINAL: Final = {TimerState.REACHED: Outcome.ALREADY_REACHED, TimerState.EXPIRED: Outcome.ALREADY_EXPIRED}
"""States that are final, and the outcome of a command for such a timer."""


@value(frozen=True, slots=True)
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
    """The command that has set the due time and the time to expire; None if there is none."""
    correlation_position: Position | None = None
    """The command that has set the correlation id."""
    trace_position: Position | None = None
    """The command that has set the trace."""
    sink: Sink = Sink.BUS
    callback_revision: int = 0
    """Counts the callbacks that this timer has had."""
    first_position: Position | None = field(default=None, compare=False)
    """The oldest command that was applied; None if it is the newest as well."""
    first_if_absent: bool = False
    """Whether the oldest command counts only as long as there is no older one."""
    expires_after_ms: int | None = None
    """How long after the due time the event is still of use; None if forever."""
    expired_at: datetime | None = None
    verdict: TimerState | None = None
    """Of a timer that can expire: which event may be out for this generation; None if neither."""
    fingerprint: str | None = None
    """Of the request that made the timer, if it came with a key."""

    @property
    def version(self) -> str:
        """Names the timer as it is: another one after every change that a caller can see."""
        fires = (self.due_at, self.sink, self.callback_revision, self.expires_after_ms)
        return short_digest(self.state, self.generation, self.correlation_id, *fires)

    @property
    def oldest(self) -> Position:
        """The position of the oldest command that was applied."""
        return self.first_position or self.position


Rule = Callable[[Timer | None, Command, datetime], tuple[Timer, Outcome]]
"""What becomes of a timer, and what the command did: `apply` or `decide`."""


def apply(timer: Timer | None, command: Command, now: datetime) -> tuple[Timer, Outcome]:
    """Return the timer as it is after a command of the stream, and what the command did."""
    if timer is None:
        return _first(command, now)
    if timer.state in FINAL:
        return timer, FINAL[timer.state]
    if command.position < timer.oldest:
        return _precede(timer, command, now)
    if _is_conditional(command):
        return timer, _as_it_is(timer)
    if command.position > timer.position:
        return _change(timer, command, now)
    return _complete(timer, command), Outcome.SUPERSEDED


def decide(timer: Timer | None, request: Command, now: datetime) -> tuple[Timer, Outcome]:
    """Return the timer as it is after a request, whose sender waits for the answer, and what it did.

    A request has the position of the newest command at its time, and counts as newer than that one. One that
    was overtaken all the same changes nothing: it comes again. What it did stands: no command that is older
    takes it back. Raises TimerNotFound if it is about a version of a timer that there is not.
    """
    if timer is None:
        if request.expected:
            raise TimerNotFound(request.service_call_id)
        first, outcome = _first(request, now)
        return replace(first, first_if_absent=False) if first.first_if_absent else first, outcome
    if request.expected is not None and timer.version not in request.expected:
        return timer, Outcome.CHANGED
    if timer.state in FINAL:
        return timer, FINAL[timer.state]
    is_conditional = _is_conditional(request)
    if request.position < timer.position and not is_conditional:
        return timer, Outcome.SUPERSEDED
    if _is_due(timer, now):
        return timer, Outcome.DUE
    if is_conditional:
        return timer, _as_it_is(timer)
    changed, outcome = _change(timer, request, now)
    is_first = timer.first_if_absent and timer.oldest < request.position
    return replace(changed, first_if_absent=is_first), outcome


def mark(timer: Timer, event: Event) -> Timer:
    """Return the timer as reached or expired, or as it is if that generation no longer stands."""
    if timer.state is not TimerState.SCHEDULED or timer.generation != event.generation:
        return timer
    if isinstance(event, TimerExpired):
        return replace(timer, state=TimerState.EXPIRED, expired_at=event.at)
    return replace(timer, state=TimerState.REACHED, reached_at=event.at)


def state_of(event: Event) -> TimerState:
    """Return the state of a timer whose event is out."""
    return TimerState.EXPIRED if isinstance(event, TimerExpired) else TimerState.REACHED


def _is_conditional(command: Command) -> bool:
    return isinstance(command, ScheduleTimer) and command.if_absent


def _as_it_is(timer: Timer) -> Outcome:
    return Outcome.ALREADY_CANCELLED if timer.state is TimerState.CANCELLED else Outcome.UNCHANGED


def _is_due(timer: Timer, now: datetime) -> bool:
    return timer.state is TimerState.SCHEDULED and timer.due_at is not None and timer.due_at <= now


def _first(command: Command, now: datetime) -> tuple[Timer, Outcome]:
    at = command.position
    if isinstance(command, ScheduleTimer):
        correlation_id, trace = command.correlation_id, command.trace
        sink, revision = _target(command)
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
            fingerprint=command.fingerprint,
            sink=sink,
            callback_revision=revision,
            first_if_absent=command.if_absent,
            expires_after_ms=command.expires_after_ms,
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
    values = _values(command)
    moved = again or _moves(timer, values)
    sink, revision = _target(command, timer.sink, timer.callback_revision)
    scheduled = replace(
        timer,
        sink=sink,
        callback_revision=revision,
        **values,
        **(_next_generation(timer) if moved else {}),
        state=TimerState.SCHEDULED,
        cancelled_at=None,
        # Even if nothing else changes: a command that this one overtook must not undo it.
        **_newest(timer, command.position),
    )
    if again:
        return scheduled, Outcome.SCHEDULED
    return scheduled, Outcome.RESCHEDULED if moved else Outcome.UNCHANGED


def _cancel(timer: Timer, command: CancelTimer, now: datetime) -> tuple[Timer, Outcome]:
    newest = _newest(timer, command.position)
    if timer.state is TimerState.CANCELLED:
        return replace(timer, **newest), Outcome.ALREADY_CANCELLED
    return replace(timer, state=TimerState.CANCELLED, cancelled_at=now, **newest), Outcome.CANCELLED


def _newest(timer: Timer, position: Position) -> dict[str, Any]:
    return {"position": position, "first_position": None if timer.oldest == position else timer.oldest}


def _precede(timer: Timer, command: Command, now: datetime) -> tuple[Timer, Outcome]:
    """Return the timer after a command that is older than all that were applied."""
    if_absent = _is_conditional(command)
    if timer.first_if_absent:
        is_alone = timer.first_position is None
        timer = _without_oldest(timer)
        if is_alone:
            changed, outcome = _change(timer, command, now)
            return replace(changed, first_position=None, first_if_absent=if_absent), outcome
    completed = replace(_complete(timer, command), first_position=command.position, first_if_absent=if_absent)
    return completed, Outcome.SUPERSEDED


def _without_oldest(timer: Timer) -> Timer:
    """Return the timer without what its oldest command has set, except for the state."""
    gone: dict[str, Any] = {}
    if timer.due_position == timer.oldest:
        gone |= {"due_at": None, "due_position": None, "expires_after_ms": None}
    if timer.correlation_position == timer.oldest:
        gone |= {"correlation_id": None, "correlation_position": None}
    if timer.trace_position == timer.oldest:
        gone |= {"trace": None, "trace_position": None}
    return replace(timer, **gone)


def _complete(timer: Timer, command: Command) -> Timer:
    """Take from a command that was overtaken what no newer one has set."""
    if isinstance(command, CancelTimer):
        return timer
    values = _values(command, timer.due_position, timer.correlation_position, timer.trace_position)
    if not values:
        return timer
    return replace(timer, **values, **(_next_generation(timer) if _moves(timer, values) else {}))


def _moves(timer: Timer, values: dict[str, Any]) -> bool:
    """Return whether values of a command make another firing: an event that is out is not theirs."""
    before = (timer.due_at, timer.expires_after_ms)
    return before != (values.get("due_at", before[0]), values.get("expires_after_ms", before[1]))


def _next_generation(timer: Timer) -> dict[str, Any]:
    return {"generation": timer.generation + 1, "verdict": None}


def _target(command: ScheduleTimer, sink: Sink = Sink.BUS, revision: int = 0) -> tuple[Sink, int]:
    """Return where a timer fires from now on, which is as before unless the command says so."""
    if command.callback is None:
        return sink, revision
    if isinstance(command.callback, NoCallback):
        return Sink.BUS, revision
    return Sink.HTTP, revision + 1


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
        values |= {"due_at": command.due_at, "due_position": at, "expires_after_ms": command.expires_after_ms}
    if command.correlation_id is not None and (correlation is None or at > correlation):
        values |= {"correlation_id": command.correlation_id, "correlation_position": at}
    if command.trace is not None and (trace is None or at > trace):
        values |= {"trace": command.trace, "trace_position": at}
    return values
