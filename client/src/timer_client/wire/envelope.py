"""The messages on the bus: commands and events, and the trace context beside them."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field, ValidationError

from timer_client.wire.json import fields_of, read_object, write_json
from timer_client.wire.rules import (
    CorrelationText,
    Model,
    Opaque,
    ServiceCallText,
    TenantText,
    Time,
    UuidText,
    WireError,
    explain,
    format_time,
    quoted,
)
from timer_client.wire.wanted import Wanted

SCHEDULE_TIMER: Final = "ScheduleTimer"
CANCEL_TIMER: Final = "CancelTimer"
DUE_TIME_REACHED: Final = "DueTimeReached"
TIMER_EXPIRED: Final = "TimerExpired"
COMMAND_TYPES: Final = (SCHEDULE_TIMER, CANCEL_TIMER)
EVENT_TYPES: Final = (DUE_TIME_REACHED, TIMER_EXPIRED)

_json_string: Final = json.encoder.encode_basestring
LAST_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
_MAX_TRACESTATE: Final = 512
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[ -~]{0,64})?")
_PRINTABLE: Final = re.compile(r"[ -~]+")


Timestamp = Annotated[int, Field(ge=0, le=LAST_TIMESTAMP_MS)]


class Envelope(Model):
    """What every message has; the payload is read once the type is known."""

    id: UuidText
    type: Opaque
    tenant_id: TenantText = Field(alias="tenantId")
    timestamp_ms: Timestamp = Field(alias="timestampMs")
    payload: dict[str, Any]
    aggregate_id: Opaque | None = Field(default=None, alias="aggregateId")
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    causation_id: Opaque | None = Field(default=None, alias="causationId")


class CancelTimerPayload(Model):
    """The payload of CancelTimer."""

    tag: Opaque | None = Field(default=None, alias="_tag")
    tenant_id: TenantText = Field(alias="tenantId")
    service_call_id: ServiceCallText = Field(alias="serviceCallId")


class ScheduleTimerPayload(CancelTimerPayload, Wanted):
    """The payload of ScheduleTimer."""


class FiringPayload(CancelTimerPayload):
    """What our events have in common, for those who read them."""

    due_at: Time = Field(alias="dueAt")
    generation: int = Field(ge=1)


class DueTimeReachedPayload(FiringPayload):
    """The payload of DueTimeReached."""

    reached_at: Time = Field(alias="reachedAt")


class TimerExpiredPayload(FiringPayload):
    """The payload of TimerExpired."""

    expired_at: Time = Field(alias="expiredAt")


_PAYLOADS: Final[dict[str, type[CancelTimerPayload]]] = {
    SCHEDULE_TIMER: ScheduleTimerPayload,
    CANCEL_TIMER: CancelTimerPayload,
    DUE_TIME_REACHED: DueTimeReachedPayload,
    TIMER_EXPIRED: TimerExpiredPayload,
}

_MOMENTS: Final = {DUE_TIME_REACHED: "reachedAt", TIMER_EXPIRED: "expiredAt"}
"""When an event was handled, under the name that its type has for it."""


def read_envelope(body: bytes) -> Envelope:
    """Read the part that all messages share; raise WireError if a rule is broken."""
    return read_object(Envelope, body)


def read_payload(envelope: Envelope) -> CancelTimerPayload:
    """Read the payload by the envelope's type; raise WireError if a rule is broken."""
    model = _PAYLOADS.get(envelope.type)
    if model is None:
        raise unknown_type(envelope.type)
    try:
        payload = model.model_validate(envelope.payload)
    except ValidationError as error:
        raise WireError("invalid", explain(error, "payload")) from error
    if payload.tag is not None and payload.tag != envelope.type:
        raise WireError(
            "invalid",
            f"payload._tag: must equal the type {envelope.type!r}, or be absent (got {quoted(payload.tag)})",
        )
    if payload.tenant_id != envelope.tenant_id:
        raise WireError(
            "tenant_mismatch",
            f"payload.tenantId {payload.tenant_id!r} must equal the envelope's, {envelope.tenant_id!r}",
        )
    return payload


def unknown_type(name: str) -> WireError:
    """Return the error for a message type that we do not know."""
    return WireError("unknown_type", f"type: must be one of {', '.join(COMMAND_TYPES)} (got {quoted(name)})")


def write_command(
    *,
    message_id: UUID,
    timestamp_ms: int,
    tenant_id: str,
    service_call_id: str,
    wanted: Wanted | None,
    correlation_id: str | None,
) -> bytes:
    """Write the envelope of ScheduleTimer, or of CancelTimer if no timer is wanted."""
    command_type = CANCEL_TIMER if wanted is None else SCHEDULE_TIMER
    payload = {"_tag": command_type, "tenantId": tenant_id, "serviceCallId": service_call_id}
    if wanted is not None:
        payload |= fields_of(wanted)
    envelope: dict[str, Any] = {
        "id": str(message_id),
        "type": command_type,
        "tenantId": tenant_id,
        "timestampMs": timestamp_ms,
        "aggregateId": service_call_id,
    }
    if correlation_id is not None:
        envelope["correlationId"] = correlation_id
    return write_json({**envelope, "payload": payload})


_format_moment: Final = lru_cache(maxsize=8)(format_time)
"""All of a batch are reached at one moment, and those of a burst are due at one."""


def write_event(
    event_type: str,
    *,
    message_id: str,
    timestamp_ms: int,
    tenant_id: str,
    service_call_id: str,
    due_at: datetime,
    at: datetime,
    generation: int,
    correlation_id: str | None,
) -> bytes:
    """Write the envelope of an event; as text, because there are many and few parts of it differ."""
    call = _json_string(service_call_id)
    correlation = "" if correlation_id is None else f'"correlationId":{_json_string(correlation_id)},'
    return (
        f'{{"id":"{message_id}","type":"{event_type}","tenantId":"{tenant_id}",'
        f'"timestampMs":{timestamp_ms},"aggregateId":{call},{correlation}"payload":{{'
        f'"_tag":"{event_type}","tenantId":"{tenant_id}","serviceCallId":{call},'
        f'"dueAt":"{_format_moment(due_at)}","{_MOMENTS[event_type]}":"{_format_moment(at)}",'
        f'"generation":{generation}}}}}'
    ).encode()


def read_trace(headers: Mapping[str, str] | None) -> tuple[str, str | None] | None:
    """Return the W3C trace context in the headers; one that breaks its rules counts as absent."""
    if not headers:
        return None
    parent = headers.get("traceparent") or headers.get("Traceparent")
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return None
    state = headers.get("tracestate") or headers.get("Tracestate")
    if state is not None and (len(state) > _MAX_TRACESTATE or _PRINTABLE.fullmatch(state) is None):
        state = None
    return parent, state
