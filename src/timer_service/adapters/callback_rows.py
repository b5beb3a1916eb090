"""Callbacks, deliveries and attempts as rows and back: the columns, once for every database."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from timer_service.adapters.rows import Row, moment, moment_of_burst, text
from timer_service.domain.callback import Callback, Method, RetryPolicy, Signing
from timer_service.domain.delivery import Attempt, Delivery, DeliveryState
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId, TimerKey, Trace
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import CallbackRecord, ClaimedDelivery, DeliveryQuery, WaitingDelivery
from timer_service.ports.sealed_headers import StoredHeaders

CALLBACK_COLUMNS: Final = (
    "tenant_id, service_call_id, url, origin, method, headers, body, content_type, retry_delays_ms, "
    "timeout_ms, expires_after_ms, signing, metadata, fingerprint, updated_at"
)
DELIVERY_COLUMNS: Final = (
    "tenant_id, service_call_id, delivery_id, generation, state, origin, due_at, opened_at, next_attempt_at, "
    "expires_after_ms, attempts, series_from, last_attempt_at, ended_at, status, error"
)
ATTEMPT_COLUMNS: Final = "tenant_id, service_call_id, attempt, started_at, duration_ms, status, error, answer"
WAITING_COLUMNS: Final = "tenant_id, service_call_id, origin, next_attempt_at"
CONTEXT_COLUMNS: Final = "correlation_id, traceparent, tracestate"
"""What a callback carries of its timer."""
OUTCOME_COLUMNS: Final = (
    "state",
    "next_attempt_at",
    "attempts",
    "last_attempt_at",
    "ended_at",
    "status",
    "error",
)
"""What an attempt changes."""

_DELIVERY_WIDTH: Final = 16
_CALLBACK_WIDTH: Final = 15
_MS: Final = timedelta(milliseconds=1)
# Much quicker than to ask the enumerations.
_METHODS: Final = {each.value: each for each in Method}
_SIGNINGS: Final = {each.value: each for each in Signing}
_STATES: Final = {each.value: each for each in DeliveryState}


def callback_row(key: TimerKey, callback: Callback, now: datetime) -> tuple[Any, ...]:
    """Return a callback as CALLBACK_COLUMNS."""
    return (
        *key,
        callback.url,
        callback.origin,
        callback.method.value,
        json.dumps(callback.headers) if callback.headers else "[]",
        callback.body,
        callback.content_type,
        _delays_text(callback.retry),
        callback.timeout // _MS,
        None if callback.expires_after is None else callback.expires_after // _MS,
        callback.signing.value,
        callback.metadata,
        callback.fingerprint,
        text(now),
    )


@lru_cache(maxsize=64)
def _delays_text(retry: RetryPolicy) -> str:
    """Return the delays as they are kept; most callbacks have the same."""
    return json.dumps([delay // _MS for delay in retry.delays])


@lru_cache(maxsize=64)
def _retry_policy(text: str) -> RetryPolicy:
    return RetryPolicy(tuple(delay * _MS for delay in json.loads(text)))


def callback(row: Row) -> Callback:
    """Return the callback of a row that holds CALLBACK_COLUMNS."""
    return Callback(
        url=row[2],
        method=_METHODS[row[4]],
        headers=_headers(row[5]),
        body=row[6],
        content_type=row[7],
        retry=_retry_policy(row[8]),
        timeout=row[9] * _MS,
        expires_after=None if row[10] is None else row[10] * _MS,
        signing=_SIGNINGS[row[11]],
        metadata=row[12],
        fingerprint=row[13],
    )


def delivery(row: Row) -> Delivery:
    """Return the delivery of a row that holds DELIVERY_COLUMNS."""
    due_at, opened_at = moment_of_burst(row[6]), moment_of_burst(row[7])
    assert due_at is not None
    assert opened_at is not None
    is_new = row[8] == row[7]  # Its first attempt is to begin when it was opened.
    return Delivery(
        tenant_id=TenantId(row[0]),
        service_call_id=ServiceCallId(row[1]),
        id=row[2] if isinstance(row[2], UUID) else UUID(row[2]),
        generation=row[3],
        state=_STATES[row[4]],
        origin=row[5],
        due_at=due_at,
        opened_at=opened_at,
        next_attempt_at=opened_at if is_new else moment(row[8]),
        expires_after=None if row[9] is None else row[9] * _MS,
        attempts=row[10],
        series_from=row[11],
        last_attempt_at=moment(row[12]),
        ended_at=moment(row[13]),
        status=row[14],
        error=row[15],
    )


def delivery_row(delivery: Delivery) -> tuple[Any, ...]:
    """Return a delivery as DELIVERY_COLUMNS."""
    return (
        *delivery.key,
        str(delivery.id),
        delivery.generation,
        delivery.state.value,
        delivery.origin,
        text(delivery.due_at),
        text(delivery.opened_at),
        _text(delivery.next_attempt_at),
        None if delivery.expires_after is None else delivery.expires_after // _MS,
        delivery.attempts,
        delivery.series_from,
        _text(delivery.last_attempt_at),
        _text(delivery.ended_at),
        delivery.status,
        delivery.error,
    )


def outcome_row(delivery: Delivery) -> tuple[Any, ...]:
    """Return what an attempt has changed as OUTCOME_COLUMNS."""
    return (
        delivery.state.value,
        _text(delivery.next_attempt_at),
        delivery.attempts,
        _text(delivery.last_attempt_at),
        _text(delivery.ended_at),
        delivery.status,
        delivery.error,
    )


def attempt_row(key: TimerKey, attempt: Attempt) -> tuple[Any, ...]:
    """Return an attempt as ATTEMPT_COLUMNS."""
    duration_ms = attempt.duration // _MS
    started_at = text(attempt.started_at)
    return (*key, attempt.number, started_at, duration_ms, attempt.status, attempt.error, attempt.answer)


def attempt(row: Row) -> Attempt:
    """Return the attempt of a row that holds ATTEMPT_COLUMNS."""
    started_at = moment(row[3])
    assert started_at is not None
    return Attempt(row[2], started_at, row[4] * _MS, row[5], row[6], row[7])


def waiting(row: Row) -> WaitingDelivery:
    """Return what waits of a row that holds WAITING_COLUMNS."""
    next_attempt_at = moment_of_burst(row[3])
    assert next_attempt_at is not None
    return WaitingDelivery(TenantId(row[0]), ServiceCallId(row[1]), row[2], next_attempt_at)


def claimed(row: tuple[Any, ...]) -> ClaimedDelivery:
    """Return the claim of a row that holds DELIVERY_COLUMNS, CALLBACK_COLUMNS and CONTEXT_COLUMNS."""
    correlation_id, parent, state = row[_DELIVERY_WIDTH + _CALLBACK_WIDTH :]
    return ClaimedDelivery(
        delivery(row),
        callback(row[_DELIVERY_WIDTH:]),
        None if correlation_id is None else CorrelationId(correlation_id),
        None if parent is None else Trace(parent, state),
    )


def records(
    callbacks: list[Any], deliveries: list[Any], attempts: list[Any]
) -> Mapping[TimerKey, CallbackRecord]:
    """Return what is kept of some callbacks from the rows of the three tables, attempts in their order."""
    by_key = {each.key: each for each in map(delivery, deliveries)}
    failed: dict[TimerKey, list[Attempt]] = {}
    for row in attempts:
        failed.setdefault((row[0], row[1]), []).append(attempt(row))
    return {
        (key := (TenantId(row[0]), ServiceCallId(row[1]))): CallbackRecord(
            callback(row), by_key.get(key), tuple(failed.get(key, ())), moment(row[14])
        )
        for row in callbacks
    }


def archived(
    timers: Iterable[Timer], records: Mapping[TimerKey, CallbackRecord]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the rows of callbacks, deliveries and attempts that belong to some timers."""
    found = [(timer, records[timer.key]) for timer in timers if timer.key in records]
    return (
        [
            callback_row(timer.key, record.callback, record.updated_at or timer.registered_at)
            for timer, record in found
        ],
        [delivery_row(record.delivery) for _, record in found if record.delivery is not None],
        [attempt_row(timer.key, each) for timer, record in found for each in record.attempts],
    )


def states_to_list(query: DeliveryQuery) -> list[str]:
    """Return the states that a list looks for."""
    return [state.value for state in (DeliveryState if query.state is None else (query.state,))]


def _text(value: datetime | None) -> str | None:
    return None if value is None else text(value)


def stored_headers(row: Row) -> StoredHeaders:
    """Return the headers of a row that holds a key and headers."""
    return StoredHeaders(TenantId(row[0]), ServiceCallId(row[1]), _headers(row[2]))


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    return () if text == "[]" else tuple((name, value) for name, value in json.loads(text))
