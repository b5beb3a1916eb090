"""Attempts before they are made: what each one sends, and when it may begin."""

from collections.abc import Iterator
from datetime import datetime

from timer_service.domain.callback import Callback, RetryPolicy
from timer_service.domain.delivery import (
    CallbackRequest,
    Delivery,
    Trouble,
    Unreachable,
    after_attempt,
    open_delivery,
)
from timer_service.domain.messages import CorrelationId, DueTimeReached, ScheduleTimer, Trace


def next_request(
    delivery: Delivery,
    callback: Callback,
    correlation_id: CorrelationId | None,
    trace: Trace | None,
    sent_at: datetime,
) -> CallbackRequest:
    """Return the next attempt of a delivery, as it is sent at a moment."""
    return CallbackRequest(
        tenant_id=delivery.tenant_id,
        service_call_id=delivery.service_call_id,
        callback=callback,
        id=delivery.id,
        generation=delivery.generation,
        due_at=delivery.due_at,
        reached_at=delivery.opened_at,
        attempt=delivery.attempts + 1,
        sent_at=sent_at,
        correlation_id=correlation_id,
        trace=trace,
    )


def delivery_ahead(command: ScheduleTimer, callback: Callback, now: datetime) -> Delivery:
    """Return the delivery of a timer that is not there yet, opened the moment it is due."""
    key, due_at = command.key, command.due_at
    firing = DueTimeReached(*key, due_at, max(due_at, now), 1, command.correlation_id, command.trace)
    return open_delivery(firing, callback)


def earliest_attempts(delivery: Delivery, retry: RetryPolicy) -> Iterator[datetime]:
    """Yield when each attempt may begin if all before it fail at once; chance and `Retry-After` only add."""
    while (at := delivery.next_attempt_at) is not None and not delivery.has_expired(at):
        yield at
        delivery = after_attempt(delivery, retry, Unreachable(Trouble.CONNECT), at, at, lambda: 0.0)
