"""The timers that are sent to /v1."""

from typing import Any, Final

from pydantic import Field

from timer_client.wire.rules import CorrelationText, ServiceCallText
from timer_service.adapters.http.bodies import Body, When
from timer_service.adapters.http.callbacks import MAX_EXPIRY_MS, CallbackBody, CallbackPatch

MAX_BATCH: Final = 1_000


class _Common(When):
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    expires_after_ms: int | None = Field(
        default=None,
        alias="expiresAfterMs",
        ge=0,
        le=MAX_EXPIRY_MS,
        description="A firing that could only go out later than this after the due time is of no use",
    )


class TimerBody(_Common):
    """A whole timer."""

    if_absent: bool = Field(
        default=False,
        alias="ifAbsent",
        description="Whether a timer that exists, in whatever state, stays as it is and is the answer",
    )
    callback: CallbackBody | None = None


class NewTimerBody(TimerBody):
    """A whole timer and its id, which we choose if it is not given."""

    service_call_id: ServiceCallText | None = Field(default=None, alias="serviceCallId")


class BatchBody(Body):
    """Many timers."""

    timers: list[Any] = Field(min_length=1, max_length=MAX_BATCH)


class PatchBody(_Common):
    """What is to change of a timer; null takes the callback away."""

    callback: CallbackPatch | None = None
