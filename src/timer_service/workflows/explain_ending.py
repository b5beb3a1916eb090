"""Say what became of a timer that has ended: who has its event, or how its callback went."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from timer_service.domain.callback import Callback
from timer_service.domain.cause import Cause
from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.spoken import count_text, moment_text, span_text
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.ports.event_trail import Reader, Reading, Trail

MAX_NAMED: Final = 5
"""Consumers that are named; the others are only counted."""
_HAS_IT: Final = {
    Reading.ACKNOWLEDGED: "has acknowledged it",
    Reading.DELIVERED: "has received it and not acknowledged everything",
    Reading.WAITING: "has not read it yet",
    Reading.BEGAN_LATER: "was created later and does not get it",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """What a timer came to."""

    cause: Cause
    text: str
    is_well: bool = True


def ending_of(
    timer: Timer,
    record: CallbackRecord | None,
    receiver_back_at: datetime | None,
    trail: Trail | None,
    now: datetime,
) -> Ending:
    """Say what became of a timer that is no longer scheduled."""
    if timer.state is TimerState.CANCELLED:
        return _cancelled(timer, now)
    if timer.state is TimerState.EXPIRED:
        return Ending(Cause.EXPIRED, _expired(timer) + _stored(trail))
    fired = f"Fired {_lateness(timer.due_at, timer.reached_at)}"
    if record is None or record.delivery is None:
        return Ending(Cause.FIRED, fired + _stored(trail), is_well=_is_read(trail))
    ending = _delivery(record.delivery, record.callback, receiver_back_at, now)
    return Ending(ending.cause, f"{fired}; {ending.text}", ending.is_well)


def _cancelled(timer: Timer, now: datetime) -> Ending:
    at = "" if timer.cancelled_at is None else f" at {moment_text(timer.cancelled_at, now)}"
    if timer.due_at is None:
        return Ending(Cause.CANCELLED, f"Cancelled{at}, before any command scheduled it; it does not fire")
    return Ending(Cause.CANCELLED, f"Cancelled{at}; it does not fire")


def _lateness(due_at: datetime | None, at: datetime | None) -> str:
    if due_at is None or at is None or at - due_at < timedelta(milliseconds=1):
        return "on time"
    return f"{span_text(at - due_at)} late"


def _expired(timer: Timer) -> str:
    late = _lateness(timer.due_at, timer.expired_at)
    useful = span_text(timedelta(milliseconds=timer.expires_after_ms or 0))
    return (
        f"Expired, {late}: its event was of use for {useful} after the due time; TimerExpired was published"
    )


def _stored(trail: Trail | None) -> str:
    if trail is None:
        return ""
    stored = f"; stored as {trail.stream} {trail.sequence}"
    if trail.sequence is None:
        return f"; its event was not found in {trail.stream}: it is no longer kept, or stands among many"
    if not trail.readers:
        return f"{stored}; no consumer reads it"
    named = [f"{reader.name} {_HAS_IT[reader.reading]}" for reader in _foremost(trail.readers)]
    others = len(trail.readers) - len(named)
    return "; ".join([stored, *named, *([count_text(others, "other consumer")] if others else [])])


def _foremost(readers: tuple[Reader, ...]) -> list[Reader]:
    """Return the readers, those who have not read it first: they are why somebody asks."""
    order = (Reading.WAITING, Reading.DELIVERED, Reading.ACKNOWLEDGED, Reading.BEGAN_LATER)
    return sorted(readers, key=lambda reader: order.index(reader.reading))[:MAX_NAMED]


def _is_read(trail: Trail | None) -> bool:
    return trail is None or all(
        reader.reading in (Reading.ACKNOWLEDGED, Reading.BEGAN_LATER) for reader in trail.readers
    )


def _delivery(
    delivery: Delivery, callback: Callback, receiver_back_at: datetime | None, now: datetime
) -> Ending:
    tries = count_text(delivery.attempts, "attempt")
    ended = "" if delivery.ended_at is None else f" at {moment_text(delivery.ended_at, now)}"
    if delivery.state is DeliveryState.DELIVERED:
        answer = "" if delivery.status is None else f" with {delivery.status}"
        taken = f"{delivery.origin} took its callback{ended}{answer}, after {tries}"
        return Ending(Cause.CALLBACK_DELIVERED, taken)
    why = f": {delivery.error}" if delivery.error else ""
    if delivery.state is DeliveryState.FAILED:
        return Ending(Cause.CALLBACK_FAILED, f"its callback failed{ended} after {tries}{why}", is_well=False)
    if delivery.state is DeliveryState.ABANDONED:
        return Ending(Cause.CALLBACK_ABANDONED, f"its callback was abandoned{ended} after {tries}")
    return _waiting(delivery, callback, receiver_back_at, now)


def _waiting(
    delivery: Delivery, callback: Callback, receiver_back_at: datetime | None, now: datetime
) -> Ending:
    made = delivery.attempts - delivery.series_from
    failed = f"{count_text(delivery.attempts, 'attempt')} failed, the last with {delivery.error}"
    if receiver_back_at is not None:
        again = span_text(max(timedelta(), receiver_back_at - now))
        told = f"its callback waits: {delivery.origin} keeps failing and is tried next in {again}"
        return Ending(Cause.RECEIVER_AWAY, told, is_well=False)
    if not delivery.attempts:
        return Ending(Cause.CALLBACK_WAITING, "the first attempt of its callback is about to begin")
    next_at = delivery.next_attempt_at
    if next_at is None or next_at <= now:
        return Ending(Cause.CALLBACK_RETRYING, f"{failed}; the next is about to begin", is_well=False)
    number = f"{made + 1} of {callback.retry.max_attempts}"
    again = f"attempt {number} is in {span_text(next_at - now)}"
    return Ending(Cause.CALLBACK_RETRYING, f"{failed}; {again}", is_well=False)
