"""What is sent to the REST API, and how it is read: strictly, with a pointer to each wrong field."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from timer_client import wire
from timer_client.wire.rules import Time
from timer_service.adapters.cursor import read_cursor
from timer_service.adapters.http.problems import invalid, invalid_body, invalid_parameters

MAX_DELAY_MS: Final = 10 * 365 * 86_400_000
MAX_OBJECTS: Final = 50_000
"""Of a body, arrays too: each takes as long to read as a hundred bytes of text, and the event loop waits."""
MAX_MEMBERS: Final = 100
"""Of an object whose members we know; each that we do not know costs more to refuse than to send."""
_FREE: Final = frozenset({"body", "callback_payload", "metadata"})
"""Members that hold what the caller likes."""

Read = TypeVar("Read", bound=BaseModel)


def _cursor(text: str) -> str:
    try:
        read_cursor(text)
    except wire.WireError as error:
        raise ValueError(error.detail.removeprefix("cursor: ")) from error
    return text


CursorText = Annotated[str, AfterValidator(_cursor)]
"""Where a page begins: a wrong one is named as any other field."""


class Body(BaseModel):
    """Any part of a body: what we do not know is refused, so that a misspelt field is never lost."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=False)


class When(Body):
    """When a timer is due."""

    due_at: Time | None = Field(default=None, alias="dueAt")
    delay_ms: int | None = Field(
        default=None,
        alias="delayMs",
        ge=0,
        le=MAX_DELAY_MS,
        description="Instead of dueAt: so long after now",
    )


def read_body(model: type[Read], body: bytes) -> Read:
    """Read a JSON body by its model; raise Problem if a rule is broken."""
    return read_value(model, parsed(body))


def parsed(body: bytes) -> Any:
    """Read a body as JSON; raise Problem if it is none."""
    # With those in texts: to tell them apart, the body would have to be read.
    if body.count(b"{") + body.count(b"[") > MAX_OBJECTS:
        raise invalid(f"must have at most {MAX_OBJECTS} objects and arrays: send fewer timers at once")
    try:
        return wire.parse_json(body)
    except wire.WireError as error:
        raise invalid(error.detail) from error


def read_value(model: type[Read], value: Any, pointer: str = "") -> Read:
    """Read what JSON held by its model; raise Problem if a rule is broken."""
    if not isinstance(value, dict):
        raise invalid("must be a JSON object", pointer)
    _check_width(value, pointer)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_body(error, pointer) from error


def _check_width(value: dict[str, Any], pointer: str) -> None:
    if len(value) > MAX_MEMBERS:
        raise invalid(f"must have at most {MAX_MEMBERS} members", pointer)
    for name, member in value.items():
        if isinstance(member, dict) and name not in _FREE:
            _check_width(member, f"{pointer}/{name}")


def read_query(model: type[Read], query: Any) -> Read:
    """Read query parameters by their model; raise Problem if a rule is broken."""
    try:
        return model.model_validate(query)
    except ValidationError as error:
        raise invalid_parameters(error) from error


def due_at(when: When, delays_from: Callable[[], datetime], pointer: str = "") -> datetime | None:
    """Return when a timer is to be due; None if nothing is said of it. Raises Problem."""
    if when.due_at is not None and when.delay_ms is not None:
        raise invalid("only one of dueAt and delayMs may be given", f"{pointer}/delayMs")
    if when.delay_ms is None:
        return when.due_at
    try:
        return delays_from() + timedelta(milliseconds=when.delay_ms)
    except OverflowError as error:
        raise invalid("must not go beyond the year 9999", f"{pointer}/delayMs") from error
