"""What a caller may say of a timer, in a command and in a request alike: when, whether, for how long."""

from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from timer_client.wire.rules import TIME_RULE, Model, Time, WireError, broken

MAX_SPAN_MS: Final = 315_576_000_000
"""Ten years of 365.25 days."""
SPAN_RULE: Final = f"a whole number of milliseconds from 0 to {MAX_SPAN_MS}"
FLAG_RULE: Final = "true or false"


def _span(value: object) -> int:
    # A bool is an int as well, but no number of milliseconds.
    if type(value) is not int or not 0 <= value <= MAX_SPAN_MS:
        broken(SPAN_RULE, value)
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        broken(FLAG_RULE, value)
    return value


Span = Annotated[
    int,
    BeforeValidator(_span),
    WithJsonSchema({"type": "integer", "description": SPAN_RULE, "minimum": 0, "maximum": MAX_SPAN_MS}),
]
Flag = Annotated[bool, BeforeValidator(_flag)]


class Wanted(Model):
    """When a timer is due, whether it may be there already, and how late it is still of use."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["dueAt"]}, {"required": ["delayMs"]}]}
    )

    due_at: Time | None = Field(default=None, alias="dueAt")
    delay_ms: Span | None = Field(default=None, alias="delayMs")
    if_absent: Flag | None = Field(default=None, alias="ifAbsent")
    expires_after_ms: Span | None = Field(default=None, alias="expiresAfterMs")

    @model_validator(mode="after")
    def _has_one_due_time(self) -> "Wanted":
        if (self.due_at is None) == (self.delay_ms is None):
            got = "neither" if self.due_at is None else "both"
            rule = f"must have exactly one of dueAt and delayMs (got {got})"
            raise PydanticCustomError("rule", "{rule}", {"rule": rule})
        return self

    def due_from(self, moment: datetime) -> datetime:
        """Return the due time; a delay counts from this moment, rounded up to the millisecond."""
        if self.due_at is not None:
            return self.due_at
        # Up, never down: half a millisecond early is early.
        finer = timedelta(microseconds=-moment.microsecond % 1000)
        try:
            return moment + (timedelta(milliseconds=self.delay_ms or 0) + finer)
        except OverflowError as error:
            raise WireError("invalid", f"delayMs: the due time must be {TIME_RULE}") from error
