"""The JSON on the bus: strict about what we know, tolerant of what we do not.

This module knows neither the domain nor the transport. docs/messages.md describes the same for callers.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar
from uuid import UUID

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, from_json

SCHEDULE_TIMER: Final = "ScheduleTimer"
CANCEL_TIMER: Final = "CancelTimer"
DUE_TIME_REACHED: Final = "DueTimeReached"
COMMAND_TYPES: Final = (SCHEDULE_TIMER, CANCEL_TIMER)

MAX_COMMAND_BYTES: Final = 65_536
MAX_NESTING: Final = 32
_MAX_QUOTED: Final = 80
_json_string: Final = json.encoder.encode_basestring
_LAST_MS_OF_9999: Final = 253_402_300_799_999

TENANT_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ -"
SERVICE_CALL_RULE: Final = "1 to 255 characters, no whitespace or control characters"
CORRELATION_RULE: Final = "1 to 255 characters, no control characters"
TIME_RULE: Final = (
    "an ISO 8601 date and time with an offset or Z, such as 2026-12-01T09:00:00+01:00, "
    "in the years 0001 to 9999 in UTC"
)
UUID_RULE: Final = "a UUID such as 0192f0c1-2345-7abc-8def-0123456789ab"

MAX_PAGE: Final = 500
MAX_CURSOR: Final = 1_396
"""Base64 of a time, a space and an id of 255 characters of four bytes."""
_MAX_TRACESTATE: Final = 512

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[ -~]{0,64})?")
_PRINTABLE: Final = re.compile(r"[ -~]+")
_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SERVICE_CALL: Final = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}")
_CORRELATION: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]"
    r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?"
    r"(?:([Zz])|([+-])([0-9]{2})(?::?([0-9]{2}))?)"
)


class WireError(ValueError):
    """A message that breaks a rule; `kind` is the dead letter's reason."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


def is_tenant_id(text: str) -> bool:
    """Tell whether the text may stand as a tenant, in a message or in a subject."""
    return _TENANT.fullmatch(text) is not None


def is_service_call_id(text: str) -> bool:
    """Tell whether the text may name a timer."""
    return _SERVICE_CALL.fullmatch(text) is not None


def is_correlation_id(text: str) -> bool:
    """Tell whether the text may stand as a correlation id."""
    return _CORRELATION.fullmatch(text) is not None


def parse_time(text: str) -> datetime:
    """Read a time with a zone as UTC, rounded up to the millisecond; raise ValueError otherwise."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"must be {TIME_RULE}")
    year, month, day, hour, minute, second, fraction, _zulu, sign, offset_h, offset_m = match.groups()
    try:
        offset = _offset(sign, int(offset_h), int(offset_m or 0)) if sign else timedelta()
        local = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC
        )
        # In one step: the local time may lie outside the years that the result is inside of.
        return local + (_round_up(fraction) - offset)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"must be {TIME_RULE}: {error}") from error


def format_time(moment: datetime) -> str:
    """Write a UTC time with three decimals and `Z`."""
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"


def _offset(sign: str, hours: int, minutes: int) -> timedelta:
    if hours > 23 or minutes > 59:
        raise ValueError("offset must be from -23:59 to +23:59")
    span = timedelta(hours=hours, minutes=minutes)
    return -span if sign == "-" else span


def _round_up(fraction: str | None) -> timedelta:
    if fraction is None:
        return timedelta()
    milliseconds = int(fraction[:3].ljust(3, "0"))
    # Up, never down: half a millisecond early is early.
    return timedelta(milliseconds=milliseconds + 1 if fraction[3:].strip("0") else milliseconds)


def _broken(rule: str, value: object) -> NoReturn:
    raise PydanticCustomError("rule", "{rule}", {"rule": f"must be {rule} (got {_quoted(value)})"})


def _quoted(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"


def _matching(pattern: re.Pattern[str], rule: str) -> Any:
    def check(value: object) -> object:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            _broken(rule, value)
        return value

    return BeforeValidator(check)


def _schema(rule: str, **keywords: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": rule, **keywords})


def _time(value: object) -> datetime:
    if not isinstance(value, str):
        _broken(TIME_RULE, value)
    try:
        return parse_time(value)
    except ValueError as error:
        message = str(error).removeprefix("must be ")
        _broken(message, value)


TenantText = Annotated[
    str, _matching(_TENANT, TENANT_RULE), _schema(TENANT_RULE, pattern="^[A-Za-z0-9_-]{1,64}$")
]
ServiceCallText = Annotated[
    str, _matching(_SERVICE_CALL, SERVICE_CALL_RULE), _schema(SERVICE_CALL_RULE, minLength=1, maxLength=255)
]
CorrelationText = Annotated[
    str, _matching(_CORRELATION, CORRELATION_RULE), _schema(CORRELATION_RULE, minLength=1, maxLength=255)
]
UuidText = Annotated[str, _matching(_UUID, UUID_RULE), _schema(UUID_RULE, format="uuid")]
Time = Annotated[datetime, BeforeValidator(_time), _schema(TIME_RULE, format="date-time")]
Opaque = Annotated[str, StringConstraints(strict=True)]


class Model(BaseModel):
    """Any part of a message: strict about what we know, tolerant of what we do not."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Envelope(Model):
    """What every message has; the payload is read once the type is known."""

    id: UuidText
    type: Opaque
    tenant_id: TenantText = Field(alias="tenantId")
    timestamp_ms: int = Field(alias="timestampMs", ge=0, le=_LAST_MS_OF_9999)
    payload: dict[str, Any]
    aggregate_id: Opaque | None = Field(default=None, alias="aggregateId")
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    causation_id: Opaque | None = Field(default=None, alias="causationId")


class CancelTimerPayload(Model):
    """The payload of CancelTimer."""

    tag: Opaque | None = Field(default=None, alias="_tag")
    tenant_id: TenantText = Field(alias="tenantId")
    service_call_id: ServiceCallText = Field(alias="serviceCallId")


class ScheduleTimerPayload(CancelTimerPayload):
    """The payload of ScheduleTimer."""

    due_at: Time = Field(alias="dueAt")


class DueTimeReachedPayload(ScheduleTimerPayload):
    """The payload of DueTimeReached, for those who read our events."""

    reached_at: Time = Field(alias="reachedAt")
    generation: int = Field(ge=1)


_PAYLOADS: Final[dict[str, type[CancelTimerPayload]]] = {
    SCHEDULE_TIMER: ScheduleTimerPayload,
    CANCEL_TIMER: CancelTimerPayload,
    DUE_TIME_REACHED: DueTimeReachedPayload,
}


def parse_json(body: bytes) -> Any:
    """Read JSON text; raise WireError for what is not JSON or nested too deep."""
    # Each level costs one opening bracket, so few brackets need no closer look.
    deep = body.count(b"{") + body.count(b"[") > MAX_NESTING
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        detail = str(error)
        if "recursion" in detail:
            raise _too_deep() from error
        if _only_has_lone_surrogates(body):
            raise WireError("invalid", f"the body must not hold lone surrogates: {detail}") from error
        raise WireError("not_json", f"the body must be JSON in UTF-8: {detail}") from error
    if deep and _depth(value) > MAX_NESTING:
        raise _too_deep()
    return value


def _only_has_lone_surrogates(body: bytes) -> bool:
    """Tell whether a refused body is JSON all the same, as the more lenient standard library reads it."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        json.loads(body.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def read_envelope(body: bytes) -> Envelope:
    """Read the part that all messages share; raise WireError where a rule is broken."""
    if len(body) > MAX_COMMAND_BYTES:
        raise WireError("too_large", f"the body must be at most {MAX_COMMAND_BYTES} bytes (got {len(body)})")
    value = parse_json(body)
    if not isinstance(value, dict):
        raise WireError("invalid", f"the body must be a JSON object (got {_quoted(value)})")
    try:
        return Envelope.model_validate(value)
    except ValidationError as error:
        raise WireError("invalid", _explain(error)) from error


def read_payload(envelope: Envelope) -> CancelTimerPayload:
    """Read the payload by the envelope's type; raise WireError where a rule is broken."""
    model = _PAYLOADS.get(envelope.type)
    if model is None:
        raise unknown_type(envelope.type)
    try:
        payload = model.model_validate(envelope.payload)
    except ValidationError as error:
        raise WireError("invalid", _explain(error, "payload")) from error
    if payload.tag is not None and payload.tag != envelope.type:
        raise WireError(
            "invalid",
            f"payload._tag: must equal the type {envelope.type!r}, or be absent (got {_quoted(payload.tag)})",
        )
    if payload.tenant_id != envelope.tenant_id:
        raise WireError(
            "tenant_mismatch",
            f"payload.tenantId {payload.tenant_id!r} must equal the envelope's, {envelope.tenant_id!r}",
        )
    return payload


def unknown_type(name: str) -> WireError:
    """Return the error for a message type that we do not know."""
    return WireError("unknown_type", f"type: must be one of {', '.join(COMMAND_TYPES)} (got {_quoted(name)})")


def write_command(
    *,
    message_id: UUID,
    timestamp_ms: int,
    tenant_id: str,
    service_call_id: str,
    due_at: datetime | None,
    correlation_id: str | None,
) -> bytes:
    """Write the envelope of ScheduleTimer, or of CancelTimer where there is no due time."""
    command_type = CANCEL_TIMER if due_at is None else SCHEDULE_TIMER
    payload = {"_tag": command_type, "tenantId": tenant_id, "serviceCallId": service_call_id}
    if due_at is not None:
        payload["dueAt"] = format_time(due_at)
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


def write_due_time_reached(
    *,
    message_id: str,
    timestamp_ms: int,
    tenant_id: str,
    service_call_id: str,
    due_at: datetime,
    reached_at: datetime,
    generation: int,
    correlation_id: str | None,
) -> bytes:
    """Write the envelope of DueTimeReached; as text, because there are many and few parts of it differ."""
    call = _json_string(service_call_id)
    correlation = "" if correlation_id is None else f'"correlationId":{_json_string(correlation_id)},'
    return (
        f'{{"id":"{message_id}","type":"{DUE_TIME_REACHED}","tenantId":"{tenant_id}",'
        f'"timestampMs":{timestamp_ms},"aggregateId":{call},{correlation}"payload":{{'
        f'"_tag":"{DUE_TIME_REACHED}","tenantId":"{tenant_id}","serviceCallId":{call},'
        f'"dueAt":"{format_time(due_at)}","reachedAt":"{format_time(reached_at)}",'
        f'"generation":{generation}}}}}'
    ).encode()


class GetCall(Model):
    """The request of `get` and `cancel`."""

    service_call_id: ServiceCallText = Field(alias="serviceCallId")


class ScheduleCall(GetCall):
    """The request of `schedule`."""

    due_at: Time = Field(alias="dueAt")
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")


class ListCall(Model):
    """The request of `list`; every field narrows the list."""

    state: Literal["Scheduled", "Reached", "Cancelled"] | None = None
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    due_from: Time | None = Field(default=None, alias="dueFrom")
    due_before: Time | None = Field(default=None, alias="dueBefore")
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)
    cursor: Annotated[str, StringConstraints(strict=True, max_length=MAX_CURSOR)] | None = None


class NoRequest(Model):
    """The request of a call that asks for nothing."""


class TimerView(Model):
    """A timer in an answer; what is not set is absent."""

    tenant_id: TenantText = Field(alias="tenantId")
    service_call_id: ServiceCallText = Field(alias="serviceCallId")
    state: Literal["Scheduled", "Reached", "Cancelled"]
    due_at: Time | None = Field(default=None, alias="dueAt")
    generation: int = Field(ge=0)
    registered_at: Time = Field(alias="registeredAt")
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    reached_at: Time | None = Field(default=None, alias="reachedAt")
    cancelled_at: Time | None = Field(default=None, alias="cancelledAt")
    traceparent: str | None = None


class GetAnswer(Model):
    """The answer of `get`."""

    timer: TimerView


class ScheduleAnswer(GetAnswer):
    """The answer of `schedule`."""

    outcome: Literal["scheduled", "rescheduled", "unchanged", "already_reached"]


class CancelAnswer(GetAnswer):
    """The answer of `cancel`."""

    outcome: Literal["cancelled", "already_reached", "not_found"]


class ListAnswer(Model):
    """The answer of `list`; a cursor leads to the next page."""

    timers: list[TimerView]
    cursor: str | None = None


class StatusAnswer(Model):
    """The answer of `status`, one of each instance; what is not known is absent."""

    instance: str
    version: str
    broker: str | None = None
    problems: dict[str, str]
    pending: int
    backlog: int
    oldest_overdue_seconds: float = Field(alias="oldestOverdueSeconds")
    next_due_at: Time | None = Field(default=None, alias="nextDueAt")
    database_bytes: int = Field(alias="databaseBytes")
    commands_per_second: float = Field(alias="commandsPerSecond")
    fired_per_second: float = Field(alias="firedPerSecond")
    lateness_p50_seconds: float | None = Field(default=None, alias="latenessP50Seconds")
    lateness_p99_seconds: float | None = Field(default=None, alias="latenessP99Seconds")


class ClockAnswer(Model):
    """The answer of `clock-accept`, one of each instance: by how much its clock went forward."""

    instance: str
    accepted_step_seconds: float = Field(alias="acceptedStepSeconds")


Call = TypeVar("Call", bound=Model)


@cache
def json_schema(model: type[BaseModel]) -> str:
    """Return what a request looks like, for callers who look the service up."""
    return json.dumps(model.model_json_schema(), separators=(",", ":"))


@cache
def answer_schema(model: type[BaseModel]) -> str:
    """Return what an answer looks like: what is not set is absent, never null."""
    return json.dumps(_without_null(model.model_json_schema()), separators=(",", ":"))


def _without_null(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_null(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _without_null(part) for name, part in schema.items() if (name, part) != ("default", None)}
    [*choices] = kept.pop("anyOf", [])
    return kept | (choices[0] if len(choices) == 1 else {"anyOf": choices} if choices else {})


def read_call(model: type[Call], body: bytes) -> Call:
    """Read the request of a call; an empty body counts as an empty object."""
    if len(body) > MAX_COMMAND_BYTES:
        raise WireError("too_large", f"the body must be at most {MAX_COMMAND_BYTES} bytes (got {len(body)})")
    value = parse_json(body) if body else {}
    if not isinstance(value, dict):
        raise WireError("invalid", f"the body must be a JSON object (got {_quoted(value)})")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise WireError("invalid", _explain(error)) from error


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


def write_json(value: object) -> bytes:
    """Write an answer."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _explain(error: ValidationError, where: str = "") -> str:
    """Say in one line which fields broke which rule."""
    lines = []
    for problem in error.errors(include_url=False):
        path = ".".join([where, *map(str, problem["loc"])]).strip(".")
        if problem["type"] in ("rule", "missing"):
            text = problem["msg"] if problem["type"] == "rule" else "is required"
        else:
            text = f"{problem['msg']} (got {_quoted(problem['input'])})"
        lines.append(f"{path}: {text}")
    return "; ".join(lines)


def _too_deep() -> WireError:
    return WireError("invalid", f"the body must not be nested deeper than {MAX_NESTING} levels")


def _depth(value: object) -> int:
    """Return how deep the value is nested, without recursion."""
    deepest, open_values = 0, [(value, 1)]
    while open_values:
        current, depth = open_values.pop()
        if isinstance(current, dict | list):
            deepest = max(deepest, depth)
            children = current.values() if isinstance(current, dict) else current
            open_values.extend((child, depth + 1) for child in children)
    return deepest
