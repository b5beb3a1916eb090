"""The delivery of a callback: all attempts of one firing, and what becomes of it after each.

Waiting ── 2xx ─────────────────────────▶ Delivered
Waiting ── any other end of an attempt ─▶ Waiting     until the schedule of the callback is over
Waiting ── our own store was busy ──────▶ Waiting     that was not an attempt
Waiting ── over, or of no use to repeat ▶ Failed
Waiting ── abandoned by its owner ──────▶ Abandoned
Failed, Abandoned ── replay ────────────▶ Waiting     the same id; attempts are counted on
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from timer_service.domain.callback import Callback, RetryPolicy
from timer_service.domain.messages import CorrelationId, DueTimeReached, Keyed, ServiceCallId, TenantId, Trace
from timer_service.domain.values import value

MAX_JITTER: Final = 0.25
"""The part of a delay that chance may add. It never shortens one: a promised pause is kept."""
MAX_RETRY_AFTER: Final = timedelta(hours=24)
STORE_PAUSE: Final = timedelta(seconds=1)
"""After an attempt that could not be made because the store was busy."""
MAX_ERROR_CHARS: Final = 500
MAX_ANSWER_BYTES: Final = 1_024
"""Of an answer that did not take a callback, where that is kept."""
KEPT_ATTEMPTS: Final = 20
"""How many failed attempts of a delivery are kept: the newest."""
_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

_OF_NO_USE: Final = frozenset({410, 413, 414, 431, 489})
"""Statuses that the same request would always get."""
_SLOW_DOWN: Final = frozenset({429, 503})


class DeliveryState(StrEnum):
    """How far a delivery is."""

    WAITING = "Waiting"
    DELIVERED = "Delivered"
    FAILED = "Failed"
    ABANDONED = "Abandoned"


@value(frozen=True, slots=True)
class Answered:
    """The receiver answered."""

    status: int
    retry_after: str | None = None
    """The header as it came."""
    final: bool = False
    """Whether the receiver asked for no other attempt (`webhook-retry: no`)."""
    location: str | None = None
    """Where a redirect pointed; it is not followed."""
    said: str | None = None
    """How a body began that came without success, if that is to be kept; without our secrets."""


@value(frozen=True, slots=True)
class TimedOut:
    """No whole answer within the time limit; the request may have arrived."""

    after: timedelta


class Trouble(StrEnum):
    """Where the way to the receiver ended."""

    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    RESET = "reset"
    SECRET = "secret"  # noqa: S105 - the word for what is missing
    STORE = "store"
    """Our own, for a while: what it takes to make a request could not be read."""


@value(frozen=True, slots=True)
class Unreachable:
    """No answer: the receiver was not found, not reached or hung up."""

    trouble: Trouble
    detail: str = ""


@value(frozen=True, slots=True)
class Blocked:
    """The address is not one that may be called; nothing was sent."""

    detail: str = ""


CallResult = Answered | TimedOut | Unreachable | Blocked


class AttemptOutcome(StrEnum):
    """How an attempt ended, for metrics and logs."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    """Any answer but 2xx."""
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    BLOCKED = "blocked"


@value(frozen=True, slots=True)
class Delivery(Keyed):
    """All attempts of one firing."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    id: UUID
    """The id of the firing."""
    generation: int
    state: DeliveryState
    origin: str
    due_at: datetime
    opened_at: datetime
    """When the timer was found due and handed over."""
    next_attempt_at: datetime | None
    """None once it has ended."""
    expires_after: timedelta | None = None
    """No attempt begins later than this after the due time."""
    attempts: int = 0
    """How many were made, in all."""
    series_from: int = 0
    """How many were made before the last replay: the schedule begins there."""
    last_attempt_at: datetime | None = None
    ended_at: datetime | None = None
    status: int | None = None
    """Of the last answer, if there was one."""
    error: str | None = None
    """Why the last attempt failed, without secrets."""

    def has_expired(self, at: datetime) -> bool:
        """Return whether no attempt may begin at a moment."""
        return self.expires_after is not None and at - self.due_at > self.expires_after


@value(frozen=True, slots=True)
class Attempt:
    """One attempt that failed."""

    number: int
    started_at: datetime
    duration: timedelta
    status: int | None
    error: str
    answer: str | None = None
    """How the body of its answer began, if that is kept."""


@value(frozen=True, slots=True)
class CallbackRequest(Keyed):
    """One attempt: all that a sender needs to know."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    callback: Callback
    id: UUID
    """The id of the firing, the same at every attempt."""
    generation: int
    due_at: datetime
    reached_at: datetime
    attempt: int
    """Counts from 1, also over replays."""
    sent_at: datetime
    correlation_id: CorrelationId | None = None
    trace: Trace | None = None


def open_delivery(event: DueTimeReached, callback: Callback) -> Delivery:
    """Return the delivery that a firing begins with."""
    return Delivery(
        tenant_id=event.tenant_id,
        service_call_id=event.service_call_id,
        id=event.id,
        generation=event.generation,
        state=DeliveryState.WAITING,
        origin=callback.origin,
        due_at=event.due_at,
        opened_at=event.at,
        next_attempt_at=event.at,
        expires_after=callback.expires_after,
    )


def after_attempt(
    delivery: Delivery,
    retry: RetryPolicy,
    result: CallResult,
    started_at: datetime,
    now: datetime,
    chance: Callable[[], float],
) -> Delivery:
    """Return the delivery as it is after an attempt that ended now."""
    if is_postponed(result):
        again_at = _later(now, _to_ms(STORE_PAUSE * (1 + MAX_JITTER * chance())))
        return replace(delivery, next_attempt_at=again_at)
    if is_success(result):
        ended = {"state": DeliveryState.DELIVERED, "next_attempt_at": None, "ended_at": now}
        return _tried(delivery, result, started_at, **ended)
    tried = _tried(delivery, result, started_at)
    made = tried.attempts - tried.series_from
    if _is_final(result) or made >= retry.max_attempts:
        return _ended(tried, DeliveryState.FAILED, now)
    delay = retry.delays[made - 1] * (1 + MAX_JITTER * chance())
    next_attempt_at = _later(now, _to_ms(max(delay, _asked_for(result, now))))
    if tried.has_expired(next_attempt_at):
        return _ended(tried, DeliveryState.FAILED, now)
    return replace(tried, next_attempt_at=next_attempt_at)


def expire(delivery: Delivery, now: datetime) -> Delivery | None:
    """Return the delivery as failed if no attempt may begin any more; None if one may."""
    if not delivery.has_expired(now):
        return None
    expired = replace(delivery, error="expired: no attempt could begin in time")
    return _ended(expired, DeliveryState.FAILED, now)


def replay(delivery: Delivery, now: datetime) -> Delivery:
    """Return an ended delivery as waiting again: same id, a schedule from its beginning, no end in time."""
    if delivery.state is DeliveryState.WAITING:
        return delivery
    return replace(
        delivery,
        state=DeliveryState.WAITING,
        next_attempt_at=now,
        series_from=delivery.attempts,
        expires_after=None,
        ended_at=None,
    )


def abandon(delivery: Delivery, now: datetime) -> Delivery:
    """Return a waiting delivery as given up; an attempt under way may still arrive."""
    if delivery.state is not DeliveryState.WAITING:
        return delivery
    return _ended(delivery, DeliveryState.ABANDONED, now)


def is_success(result: CallResult) -> bool:
    """Return whether the receiver took the callback."""
    return isinstance(result, Answered) and 200 <= result.status < 300


def asks_to_slow_down(result: CallResult) -> bool:
    """Return whether the receiver is overloaded."""
    return isinstance(result, TimedOut) or (isinstance(result, Answered) and result.status in _SLOW_DOWN)


def is_postponed(result: CallResult) -> bool:
    """Return whether no attempt was made, and another time one can be."""
    return isinstance(result, Unreachable) and result.trouble is Trouble.STORE


def says_nothing(result: CallResult) -> bool:
    """Return whether no request was sent, so that nothing is known about the receiver."""
    if isinstance(result, Unreachable):
        return result.trouble in {Trouble.SECRET, Trouble.STORE}
    return isinstance(result, Blocked)


def is_unwell(result: CallResult) -> bool:
    """Return whether the receiver itself is in trouble; an answer such as 404 is for the caller to fix."""
    if isinstance(result, Answered):
        return result.status in _SLOW_DOWN or result.status >= 500
    return not says_nothing(result)


def outcome_of(result: CallResult) -> AttemptOutcome:
    """Return how an attempt ended."""
    if isinstance(result, Answered):
        return AttemptOutcome.DELIVERED if is_success(result) else AttemptOutcome.REFUSED
    return {
        TimedOut: AttemptOutcome.TIMED_OUT,
        Unreachable: AttemptOutcome.UNREACHABLE,
        Blocked: AttemptOutcome.BLOCKED,
    }[type(result)]


def describe(result: CallResult) -> str:
    """Say in a line why an attempt failed."""
    match result:
        case Answered(status=status, location=location):
            said = f"the receiver answered {status}"
            text = f"{said}, redirects are not followed: {location}" if location else said
        case TimedOut(after=after):
            text = f"no answer within {after.total_seconds():g} s"
        case Unreachable(trouble=Trouble.SECRET, detail=detail):
            text = f"not sent: {detail}" if detail else "not sent: a secret is missing"
        case Unreachable(trouble=trouble, detail=detail):
            text = f"unreachable ({trouble}): {detail}" if detail else f"unreachable ({trouble})"
        case Blocked(detail=detail):
            text = f"blocked: {detail}" if detail else "blocked"
    return text[:MAX_ERROR_CHARS]


def _is_final(result: CallResult) -> bool:
    if isinstance(result, Answered):
        return result.final or result.status in _OF_NO_USE
    return isinstance(result, Blocked)


def _asked_for(result: CallResult, now: datetime) -> timedelta:
    """Return the pause that the receiver asked for; none if its header makes no sense."""
    text = result.retry_after.strip() if isinstance(result, Answered) and result.retry_after else ""
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=min(int(text[:9]), MAX_RETRY_AFTER.total_seconds())), MAX_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return timedelta()
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    return max(timedelta(), min(moment - now, MAX_RETRY_AFTER))


def _tried(delivery: Delivery, result: CallResult, started_at: datetime, **more: Any) -> Delivery:
    return replace(
        delivery,
        attempts=delivery.attempts + 1,
        last_attempt_at=started_at,
        status=result.status if isinstance(result, Answered) else None,
        error=None if is_success(result) else describe(result),
        **more,
    )


def _ended(delivery: Delivery, state: DeliveryState, now: datetime) -> Delivery:
    return replace(delivery, state=state, next_attempt_at=None, ended_at=now)


def _to_ms(span: timedelta) -> timedelta:
    """Return a span in whole milliseconds, never shorter."""
    return timedelta(milliseconds=-(-span // timedelta(milliseconds=1)))


def _later(moment: datetime, span: timedelta) -> datetime:
    return moment + span if span <= _LATEST - moment else _LATEST
