"""What is sent to the API, and what it answers."""

import json
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, Field, StringConstraints, WithJsonSchema

from timer_client.wire.json import Read, read_object
from timer_client.wire.rules import CorrelationText, Model, ServiceCallText, TenantText, Time
from timer_client.wire.wanted import Wanted

MAX_PAGE: Final = 500
MAX_CURSOR: Final = 1_396
"""Base64 of a time, a space and an id of 255 characters of four bytes."""
MAX_ADVANCE_MS: Final = 10_000 * 366 * 86_400_000
"""Farther than time goes."""

StateText = Literal["Scheduled", "Reached", "Cancelled", "Expired"]


def _one_of(*words: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "description": f"{', '.join(words)}; newer services may add to it"}
    )


# Words in answers are not checked: a newer service may have more of them.
AnyState = Annotated[str, _one_of(*get_args(StateText))]
Scheduling = Annotated[
    str,
    _one_of(
        *("scheduled", "rescheduled", "unchanged", "already_reached", "already_expired", "already_cancelled")
    ),
]
Cancelling = Annotated[str, _one_of("cancelled", "already_reached", "already_expired", "not_found")]


CAUSES: Final = (
    "not_due",
    "being_fired",
    "broker_away",
    "no_broker",
    "store_trouble",
    "clock_held",
    "worker_stuck",
    "stream_refuses",
    "tenant_held_back",
    "timer_held_back",
    "waits_for_commands",
    "commands_silent",
    "backlog",
    "unexplained",
    "fired",
    "expired",
    "cancelled",
    "callback_waiting",
    "callback_retrying",
    "receiver_away",
    "callback_delivered",
    "callback_failed",
    "callback_abandoned",
    "refused",
    "commands_waiting",
    "not_found",
)
"""Why a timer is as it is."""


class GetRequest(Model):
    """The request of `get` and `cancel`."""

    service_call_id: ServiceCallText = Field(alias="serviceCallId")


class ExplainRequest(GetRequest):
    """The request of `explain`."""


class ScheduleRequest(GetRequest, Wanted):
    """The request of `schedule`."""

    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")


class ListRequest(Model):
    """The request of `list`; every field narrows the list."""

    state: StateText | None = None
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    due_from: Time | None = Field(default=None, alias="dueFrom")
    due_before: Time | None = Field(default=None, alias="dueBefore")
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)
    cursor: Annotated[str, StringConstraints(strict=True, max_length=MAX_CURSOR)] | None = None


class EmptyRequest(Model):
    """What an endpoint takes that needs to be told nothing."""


class TimerView(Model):
    """A timer in an answer; what is not set is absent."""

    tenant_id: TenantText = Field(alias="tenantId")
    service_call_id: ServiceCallText = Field(alias="serviceCallId")
    state: AnyState
    due_at: Time | None = Field(default=None, alias="dueAt")
    generation: int = Field(ge=0)
    registered_at: Time = Field(alias="registeredAt")
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    reached_at: Time | None = Field(default=None, alias="reachedAt")
    cancelled_at: Time | None = Field(default=None, alias="cancelledAt")
    expires_after_ms: int | None = Field(default=None, alias="expiresAfterMs")
    expired_at: Time | None = Field(default=None, alias="expiredAt")
    traceparent: str | None = None


class GetAnswer(Model):
    """The answer of `get`."""

    timer: TimerView


class LetterView(Model):
    """A dead letter in an answer."""

    letter: int
    reason: str
    detail: str
    received_at: Time = Field(alias="receivedAt")


class ConsumerView(Model):
    """How far a durable consumer is with an event."""

    name: str
    reading: Annotated[str, _one_of("acknowledged", "delivered", "waiting", "began_later")]


class ExplainAnswer(Model):
    """The answer of `explain`: why a timer is as it is, also where there is none."""

    cause: Annotated[str, _one_of(*CAUSES)]
    text: str
    is_well: bool = Field(alias="isWell")
    at: Time
    since: Time | None = None
    timer: TimerView | None = None
    letters: list[LetterView] | None = None
    stream: str | None = None
    sequence: int | None = None
    consumers: list[ConsumerView] | None = None
    unknown: list[str] | None = None


class ScheduleAnswer(Model):
    """The answer of `schedule`."""

    outcome: Scheduling
    timer: TimerView


class CancelAnswer(Model):
    """The answer of `cancel`."""

    outcome: Cancelling
    timer: TimerView


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


class AdvanceRequest(Model):
    """The request of `advance` to a virtual clock: exactly one of the three says how far."""

    to: Time | None = None
    by_ms: int | None = Field(default=None, alias="byMs", ge=0, le=MAX_ADVANCE_MS)
    next: Literal[True] | None = None


class VirtualTimeAnswer(Model):
    """The answer of `now` of a virtual clock."""

    now: Time


class AdvanceAnswer(VirtualTimeAnswer):
    """The answer of `advance`: where time stands, where it was to go, how many events that has published."""

    to: Time
    published: int = Field(ge=0)
    arrived: bool
    """If not, ask again with the same `to`: one request moves time for a few seconds only."""


def read_request(model: type[Read], body: bytes) -> Read:
    """Read what is sent to an endpoint; an empty body counts as an empty object."""
    return read_object(model, body or b"{}")


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
