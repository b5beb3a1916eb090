"""The short way from bytes to a command: one compiled pass over what is plain.

It reads only what the careful reader of the wire format reads in the same way, and has no rule of its own:
all else, right or wrong, it leaves to that one, which also says what is wrong.
"""

import re
from datetime import datetime
from typing import Annotated, Final

from msgspec import DecodeError, Meta, Struct, field
from msgspec.json import Decoder

from timer_client import wire
from timer_service.domain.messages import (
    CancelTimer,
    Command,
    CorrelationId,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    Trace,
)

_PLAIN_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?(?:Z|\+00:00)"
)
"""As most senders write it. Python reads no more than this in the way that our rules ask for."""


# Whatever has more than these fields is left to the careful reader: it may be new, deep or not a number.
class _Payload(Struct, forbid_unknown_fields=True, gc=False):
    tenant_id: str = field(name="tenantId")
    service_call_id: ServiceCallId = field(name="serviceCallId")
    due_at: str | None = field(name="dueAt", default=None)
    tag: str | None = field(name="_tag", default=None)


class _Envelope(Struct, forbid_unknown_fields=True, gc=False):
    id: str
    type: str
    tenant_id: str = field(name="tenantId")
    timestamp_ms: Annotated[int, Meta(ge=0, le=wire.LAST_TIMESTAMP_MS)] = field(name="timestampMs")
    payload: _Payload
    aggregate_id: str | None = field(name="aggregateId", default=None)
    correlation_id: CorrelationId | None = field(name="correlationId", default=None)
    causation_id: str | None = field(name="causationId", default=None)


_decode: Final = Decoder(_Envelope).decode


def read_plain_command(
    body: bytes, tenant_id: TenantId, command_type: str, position: Position, trace: Trace | None
) -> Command | None:
    """Read a plain command of this tenant and type; None if the careful reader has to look at it."""
    if len(body) > wire.MAX_COMMAND_BYTES:
        return None
    try:
        envelope = _decode(body)
    except (DecodeError, UnicodeDecodeError):
        return None
    payload, correlation_id = envelope.payload, envelope.correlation_id
    is_ours = (
        envelope.type == command_type
        and envelope.tenant_id == payload.tenant_id == tenant_id
        and (payload.tag is None or payload.tag == command_type)
    )
    is_valid = (
        wire.is_uuid(envelope.id)
        and wire.is_service_call_id(payload.service_call_id)
        and (correlation_id is None or wire.is_correlation_id(correlation_id))
    )
    if not is_ours or not is_valid:
        return None
    if command_type == wire.CANCEL_TIMER:
        return CancelTimer(tenant_id, payload.service_call_id, position)
    due_at = _read_time(payload.due_at)
    if due_at is None:
        return None
    return ScheduleTimer(tenant_id, payload.service_call_id, due_at, correlation_id, position, trace)


def _read_time(text: str | None) -> datetime | None:
    # Hours are compared because Python 3.13 reads 24:00 as the next day.
    if text is None or _PLAIN_TIME.fullmatch(text) is None or text[11:13] > "23":
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
