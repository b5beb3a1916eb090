"""The short way from bytes to a command: one pass of a compiled validator over what is plain.

It reads only what the careful reader of `envelope` reads in the same way, and knows no rule of its own: all
else, right or wrong, it leaves to that one, which also says what is wrong.
"""

from datetime import datetime
from typing import Annotated, Final

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from timer_client.wire.envelope import CANCEL_TIMER, SCHEDULE_TIMER, Timestamp
from timer_client.wire.json import MAX_COMMAND_BYTES
from timer_client.wire.rules import Model, Opaque

# Narrower than the rules, so that no other engine for patterns can take them in another way: ASCII only, and
# times as most senders write them.
_Id = Annotated[Opaque, StringConstraints(pattern="^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
_ServiceCall = Annotated[Opaque, StringConstraints(pattern="^[!-~]{1,255}$")]
_Correlation = Annotated[Opaque, StringConstraints(pattern="^[ -~]{1,255}$")]
_Time = Annotated[
    Opaque,
    StringConstraints(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?(?:Z|\+00:00)$"
    ),
]


class _Plain(Model):
    # Whatever has more than these fields is left to the careful reader: it may be new, deep or not a number.
    model_config = ConfigDict(extra="forbid")


class _PlainPayload(_Plain):
    tag: Opaque | None = Field(default=None, alias="_tag")
    tenant_id: Opaque = Field(alias="tenantId")
    service_call_id: _ServiceCall = Field(alias="serviceCallId")
    due_at: _Time | None = Field(default=None, alias="dueAt")


class PlainCommand(_Plain):
    """A command as the careful reader would read it."""

    id: _Id
    type: Opaque
    tenant_id: Opaque = Field(alias="tenantId")
    timestamp_ms: Timestamp = Field(alias="timestampMs")
    payload: _PlainPayload
    aggregate_id: Opaque | None = Field(default=None, alias="aggregateId")
    correlation_id: _Correlation | None = Field(default=None, alias="correlationId")
    causation_id: Opaque | None = Field(default=None, alias="causationId")


_validate: Final = PlainCommand.__pydantic_validator__.validate_json
"""What `model_validate_json` calls, without the way there."""


def read_plain_command(body: bytes, tenant_id: str, command_type: str) -> PlainCommand | None:
    """Read a plain command of this tenant and type; None if the careful reader has to look at it."""
    if len(body) > MAX_COMMAND_BYTES:
        return None
    try:
        command: PlainCommand = _validate(body)
    except ValidationError:
        return None
    payload = command.payload
    is_plain = (
        command.type == command_type
        and command.tenant_id == payload.tenant_id == tenant_id
        and (payload.tag is None or payload.tag == command_type)
        and (command_type == CANCEL_TIMER or (command_type == SCHEDULE_TIMER and payload.due_at is not None))
    )
    return command if is_plain else None


def read_plain_time(text: str) -> datetime | None:
    """Read the time of a plain command; None if the careful reader has to look at it."""
    # Hours are compared because Python 3.13 reads 24:00 as the next day.
    if text[11:13] > "23":
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
