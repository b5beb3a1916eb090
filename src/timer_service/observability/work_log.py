"""Log what the loops have done: often enough to follow it, not once for each batch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.errors import RefusalReason
from timer_service.domain.messages import TimerExpired
from timer_service.observability.log_summary import Later, LogSummary, on_this_loop
from timer_service.ports.command_source import Refusal
from timer_service.workflows.catch_up import CatchUpChange
from timer_service.workflows.deliver_callbacks import Attempted
from timer_service.workflows.fire_due_timers import FireReport
from timer_service.workflows.schedule_timers import ScheduleReport

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Applied:
    batches: int
    redelivered: int
    outcomes: Counter[str]


@dataclass(frozen=True, slots=True)
class _Refused:
    messages: int
    example: Refusal


@dataclass(frozen=True, slots=True)
class _Fired:
    batches: int
    timers: int
    expired: int
    superseded: int
    max_lateness_ms: int


@dataclass(frozen=True, slots=True)
class _Delivered:
    attempts: int
    outcomes: Counter[str]
    max_lateness_ms: int


class WorkLog:
    """The lines about commands, firings and callbacks."""

    def __init__(self, later: Later = on_this_loop) -> None:
        self._applied = LogSummary(_tell_applied, _add_applied, later)
        self._fired = LogSummary(_tell_fired, _add_fired, later)
        self._delivered = LogSummary(_tell_delivered, _add_delivered, later)
        self._ended_badly = LogSummary(_tell_ended_badly, _keep_first, later)
        self._refused = {reason: LogSummary(_tell_refused, _add_refused, later) for reason in RefusalReason}

    def scheduled(self, report: ScheduleReport) -> None:
        """Log a batch of commands."""
        if report.commands:
            outcomes = Counter[str]()
            for (_, outcome), count in sorted(report.commands.items()):
                outcomes[outcome.value] += count
            self._applied.note(_Applied(1, report.redelivered, outcomes))
        for refusal in report.refusals:
            self._refused[refusal.reason].note(_Refused(1, refusal))

    def fired(self, report: FireReport) -> None:
        """Log a batch of due timers, and at once what began or ceased to fail."""
        if report.confirmed:
            oldest = min(event.due_at for event in report.confirmed)
            self._fired.note(
                _Fired(
                    batches=1,
                    timers=len(report.confirmed),
                    expired=sum(isinstance(event, TimerExpired) for event in report.confirmed),
                    superseded=len(report.confirmed) - report.marked,
                    max_lateness_ms=round((report.confirmed_at - oldest).total_seconds() * 1000),
                )
            )
        _tell_failures(report)
        _tell_catch_up(report.catch_up)

    def delivered(self, group: Sequence[Attempted]) -> None:
        """Log attempts whose outcomes are kept, and callbacks that ended without success."""
        outcomes = Counter(made.finished.after.state.value.lower() for made in group)
        lateness = (made.started_at - made.finished.before.due_at for made in group)
        max_lateness_ms = round(max(lateness).total_seconds() * 1000)
        attempts = sum(made.result is not None for made in group)
        self._delivered.note(_Delivered(attempts, outcomes, max_lateness_ms))
        for made in group:
            if made.finished.after.state is DeliveryState.FAILED:
                self._ended_badly.note((1, made.finished.after))

    def close(self) -> None:
        """Log what is left."""
        self._delivered.close()
        self._ended_badly.close()
        self._applied.close()
        self._fired.close()
        for refused in self._refused.values():
            refused.close()


def _add_applied(one: _Applied, other: _Applied) -> _Applied:
    return _Applied(
        one.batches + other.batches, one.redelivered + other.redelivered, one.outcomes + other.outcomes
    )


def _add_refused(one: _Refused, other: _Refused) -> _Refused:
    return _Refused(one.messages + other.messages, one.example)


def _add_fired(one: _Fired, other: _Fired) -> _Fired:
    return _Fired(
        one.batches + other.batches,
        one.timers + other.timers,
        one.expired + other.expired,
        one.superseded + other.superseded,
        max(one.max_lateness_ms, other.max_lateness_ms),
    )


def _tell_applied(found: _Applied) -> None:
    log.info("commands.applied", batches=found.batches, redelivered=found.redelivered, **found.outcomes)


def _tell_refused(found: _Refused) -> None:
    log.warning(
        "command.refused",
        messages=found.messages,
        reason=found.example.reason.value,
        detail=found.example.detail,
        subject=found.example.subject,
        sequence=found.example.sequence,
    )


def _tell_fired(found: _Fired) -> None:
    log.info(
        "batch.fired",
        batches=found.batches,
        timers=found.timers,
        expired=found.expired,
        superseded=found.superseded,
        max_lateness_ms=found.max_lateness_ms,
    )


def _add_delivered(one: _Delivered, other: _Delivered) -> _Delivered:
    return _Delivered(
        one.attempts + other.attempts,
        one.outcomes + other.outcomes,
        max(one.max_lateness_ms, other.max_lateness_ms),
    )


def _tell_delivered(found: _Delivered) -> None:
    log.info(
        "callbacks.attempted",
        attempts=found.attempts,
        max_lateness_ms=found.max_lateness_ms,
        **found.outcomes,
    )


def _keep_first(one: tuple[int, Delivery], other: tuple[int, Delivery]) -> tuple[int, Delivery]:
    return one[0] + other[0], one[1]


def _tell_ended_badly(found: tuple[int, Delivery]) -> None:
    count, delivery = found
    log.warning(
        "callback.given_up",
        callbacks=count,
        tenant_id=delivery.tenant_id,
        service_call_id=delivery.service_call_id,
        origin=delivery.origin,
        attempts=delivery.attempts,
        detail=delivery.error,
    )


def _tell_catch_up(change: CatchUpChange) -> None:
    if change.given_up:
        log.warning(
            "catch_up.given_up",
            tenants=len(change.given_up),
            tenant_id=change.given_up[0],
            timers=change.let_go,
        )
    if change.recovered:
        log.info("catch_up.recovered")
    if change.stream_given_up:
        log.warning("command_stream.given_up", timers=change.let_go)
    if change.stream_recovered:
        log.info("command_stream.recovered")


def _tell_failures(report: FireReport) -> None:
    change = report.hold_back
    if change.held or change.stopped:
        event, result = report.failed[0]
        log.warning(
            "publish.failed",
            timers=len(report.failed),
            kind=result.outcome.name.lower(),
            detail=change.stopped or result.detail,
            tenant_id=event.tenant_id,
            service_call_id=event.service_call_id,
        )
    if change.freed or change.resumed:
        log.info("publish.recovered", freed=change.freed)
