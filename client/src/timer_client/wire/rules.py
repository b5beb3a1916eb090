"""The rules for ids and times, for the parts of every message, and how a broken one is told."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NoReturn

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

TENANT_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ -"
SERVICE_CALL_RULE: Final = "1 to 255 characters, no whitespace or control characters"
CORRELATION_RULE: Final = "1 to 255 characters, no control characters"
TIME_RULE: Final = (
    "an ISO 8601 date and time with an offset or Z, such as 2026-12-01T09:00:00+01:00, "
    "in the years 0001 to 9999 in UTC"
)
UUID_RULE: Final = "a UUID such as 0192f0c1-2345-7abc-8def-0123456789ab"

_MAX_QUOTED: Final = 80
_TWO: Final = [f"{number:02}" for number in range(60)]
_THREE: Final = [f"{number:03}" for number in range(1_000)]
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
    """Return whether `text` is a valid tenant id, in a message or in a subject."""
    return _TENANT.fullmatch(text) is not None


def is_service_call_id(text: str) -> bool:
    """Return whether `text` is a valid service call id: the name of a timer."""
    return _SERVICE_CALL.fullmatch(text) is not None


def is_correlation_id(text: str) -> bool:
    """Return whether `text` is a valid correlation id."""
    return _CORRELATION.fullmatch(text) is not None


def is_uuid(text: str) -> bool:
    """Return whether `text` is a UUID, of any version."""
    return _UUID.fullmatch(text) is not None


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
    # By tables, because every timer has a few of these: `isoformat` asks for the offset and takes three times
    # as long.
    date = f"{moment.year:04}-{_TWO[moment.month]}-{_TWO[moment.day]}"
    time = f"{_TWO[moment.hour]}:{_TWO[moment.minute]}:{_TWO[moment.second]}"
    return f"{date}T{time}.{_THREE[moment.microsecond // 1000]}Z"


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


def quoted(value: object) -> str:
    """Return a value as an error shows it: in ASCII, and not at length."""
    text = ascii(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"


def explain(error: ValidationError, where: str = "") -> str:
    """Say in one line which fields broke which rule."""
    lines = []
    for problem in error.errors(include_url=False):
        path = ".".join([where, *map(str, problem["loc"])]).strip(".")
        if problem["type"] in ("rule", "missing"):
            text = problem["msg"] if problem["type"] == "rule" else "is required"
        else:
            text = f"{problem['msg']} (got {quoted(problem['input'])})"
        lines.append(f"{path}: {text}" if path else f"the body {text}")
    return "; ".join(lines)


def broken(rule: str, value: object) -> NoReturn:
    """Say that a value breaks a rule, as `explain` shows it."""
    raise PydanticCustomError("rule", "{rule}", {"rule": f"must be {rule} (got {quoted(value)})"})


def _matching(pattern: re.Pattern[str], rule: str) -> Any:
    def check(value: object) -> object:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            broken(rule, value)
        return value

    return BeforeValidator(check)


def _schema(rule: str, **keywords: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": rule, **keywords})


def _time(value: object) -> datetime:
    if not isinstance(value, str):
        broken(TIME_RULE, value)
    try:
        return parse_time(value)
    except ValueError as error:
        message = str(error).removeprefix("must be ")
        broken(message, value)


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
Time = Annotated[
    datetime,
    BeforeValidator(_time),
    PlainSerializer(format_time, return_type=str, when_used="json"),
    _schema(TIME_RULE, format="date-time"),
]
Opaque = Annotated[str, StringConstraints(strict=True)]


class Model(BaseModel):
    """Any part of a message: strict about what we know, tolerant of what we do not."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
