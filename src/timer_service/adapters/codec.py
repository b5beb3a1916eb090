"""Subjects and bytes into domain commands, domain events into subjects and bytes.

Shared by every bus adapter, so that each refuses and accepts exactly the same.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters.plain_commands import read_plain_command
from timer_service.domain.errors import CommandRefused, RefusalReason
from timer_service.domain.messages import (
    EPOCH,
    CancelTimer,
    Command,
    CorrelationId,
    Event,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    Trace,
    epoch_ms,
)
from timer_service.domain.timer import Timer
from timer_service.ports.command_source import Refusal

_MAX_DETAIL: Final = 2_000

_epoch_ms_of_batch: Final = lru_cache(maxsize=8)(epoch_ms)


def decode_command(
    subjects: Subjects,
    subject: str,
    body: bytes,
    position: Position,
    headers: Mapping[str, str] | None = None,
    delays_from: datetime | None = None,
) -> Command:
    """Return the command in a message, or raise CommandRefused with the reason.

    A delay counts from the broker's time of storing, which is the same when the command is delivered again,
    unless another moment is given.
    """
    try:
        tenant_id, command_type = _read_subject(subjects, subject)
        trace = read_trace(headers) if headers else None
        # A tenth of the price, and enough for nearly all.
        plain = read_plain_command(body, tenant_id, command_type, position, trace)
        return plain or decode_carefully(body, tenant_id, command_type, position, trace, delays_from)
    except wire.WireError as error:
        raise CommandRefused(RefusalReason(error.kind), error.detail[:_MAX_DETAIL]) from error


def decode_carefully(
    body: bytes,
    tenant_id: TenantId,
    command_type: str,
    position: Position,
    trace: Trace | None,
    delays_from: datetime | None = None,
) -> Command:
    """Return the command step by step, or raise WireError with what is wrong."""
    envelope = wire.read_envelope(body)
    if envelope.type not in wire.COMMAND_TYPES:
        raise wire.unknown_type(envelope.type)
    if envelope.type != command_type:
        raise wire.WireError(
            "invalid", f"type: must equal the subject's last token {command_type!r} (got {envelope.type!r})"
        )
    # The subject is the authority: permissions are granted on it, so it is what the sender may claim.
    if envelope.tenant_id != tenant_id:
        raise wire.WireError(
            "tenant_mismatch",
            f"tenantId {envelope.tenant_id!r} must equal the tenant of the subject, {tenant_id!r}",
        )
    payload = wire.read_payload(envelope)
    service_call = ServiceCallId(payload.service_call_id)
    if isinstance(payload, wire.ScheduleTimerPayload):
        correlation = envelope.correlation_id and CorrelationId(envelope.correlation_id)
        return ScheduleTimer(
            tenant_id,
            service_call,
            payload.due_from(delays_from or EPOCH + timedelta(microseconds=position.stored_us)),
            correlation or None,
            position,
            trace,
            if_absent=payload.if_absent or False,
            expires_after_ms=payload.expires_after_ms,
        )
    return CancelTimer(tenant_id, service_call, position)


@lru_cache(maxsize=4_096)  # A tenant's commands all come on the same two.
def _read_subject(subjects: Subjects, subject: str) -> tuple[TenantId, str]:
    allowed = f"{subjects.commands_prefix}<tenantId>.<{' or '.join(wire.COMMAND_TYPES)}>"
    tokens = subject.removeprefix(subjects.commands_prefix).split(".")
    known = subject.startswith(subjects.commands_prefix) and len(tokens) == 2
    if not known or not wire.is_tenant_id(tokens[0]):
        raise wire.WireError(
            "invalid", f"subject: must be {allowed}, with a tenantId of {wire.TENANT_RULE} (got {subject!r})"
        )
    if tokens[1] not in wire.COMMAND_TYPES:
        raise wire.WireError("unknown_type", f"subject: must be {allowed} (got {subject!r})")
    return TenantId(tokens[0]), tokens[1]


def encode_event(event: Event, message_id: str) -> bytes:
    """Return the envelope of an event; its time of publication is the time it was handled."""
    return wire.write_event(
        type(event).__name__,
        message_id=message_id,
        timestamp_ms=_epoch_ms_of_batch(event.at),
        tenant_id=event.tenant_id,
        service_call_id=event.service_call_id,
        due_at=event.due_at,
        at=event.at,
        generation=event.generation,
        correlation_id=event.correlation_id,
    )


def read_trace(headers: Mapping[str, str] | None) -> Trace | None:
    """Return the trace context that the headers carry."""
    found = wire.read_trace(headers)
    return Trace(*found) if found else None


def event_headers(event: Event, message_id: str) -> dict[str, str]:
    """Return the headers of an event: its own id, and the trace of its command."""
    headers = {"Nats-Msg-Id": message_id}
    if event.trace is not None:
        headers["traceparent"] = event.trace.parent
        if event.trace.state is not None:
            headers["tracestate"] = event.trace.state
    return headers


def timer_view(timer: Timer) -> wire.TimerView:
    """Return a timer as the API shows it."""
    # Not validated: what is in the store was, and a page has hundreds of them.
    return wire.TimerView.model_construct(
        tenant_id=timer.tenant_id,
        service_call_id=timer.service_call_id,
        state=timer.state.value,
        due_at=timer.due_at,
        generation=timer.generation,
        registered_at=timer.registered_at,
        correlation_id=timer.correlation_id,
        reached_at=timer.reached_at,
        cancelled_at=timer.cancelled_at,
        expires_after_ms=timer.expires_after_ms,
        expired_at=timer.expired_at,
        traceparent=timer.trace.parent if timer.trace else None,
    )


def timer_fields(timer: Timer) -> dict[str, Any]:
    """Return the same as the JSON has it; written out, because a batch answers with a thousand of them."""
    times = {
        "dueAt": timer.due_at,
        "registeredAt": timer.registered_at,
        "reachedAt": timer.reached_at,
        "cancelledAt": timer.cancelled_at,
        "expiredAt": timer.expired_at,
    }
    fields = {
        "tenantId": timer.tenant_id,
        "serviceCallId": timer.service_call_id,
        "state": timer.state.value,
        "generation": timer.generation,
        "correlationId": timer.correlation_id,
        "expiresAfterMs": timer.expires_after_ms,
        "traceparent": timer.trace.parent if timer.trace else None,
        **{name: wire.format_time(at) for name, at in times.items() if at is not None},
    }
    return {name: value for name, value in fields.items() if value is not None}


def encode_dead_letter(
    refusal: Refusal,
    *,
    stream: str,
    received_at: datetime,
    body: bytes,
    max_bytes: int,
) -> bytes:
    """Return a dead letter of at most `max_bytes`; a body too large for a letter is cut."""
    return wire.write_letter(
        reason=refusal.reason.value,
        detail=refusal.detail,
        subject=refusal.subject,
        stream=stream,
        sequence=refusal.sequence,
        received_at=received_at,
        body=body,
        max_bytes=max_bytes,
    )
