"""Bodies of requests into commands."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import uuid6

from timer_client import wire
from timer_client.wire.rules import quoted
from timer_service.adapters import codec
from timer_service.adapters.http import bodies, conditions
from timer_service.adapters.http.api import Request
from timer_service.adapters.http.callbacks import CallbackDesk, CallbackPatch
from timer_service.adapters.http.problems import invalid, invalid_parameter
from timer_service.adapters.http.timer_bodies import NewTimerBody, PatchBody, TimerBody
from timer_service.domain.callback import NO_CALLBACK, Callback, NoCallback
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import (
    CorrelationId,
    ScheduleTimer,
    ServiceCallId,
    Versions,
)
from timer_service.domain.timer import Timer
from timer_service.timers import NEWEST


class CommandBuilder:
    """Makes commands of what was asked for; the tenant is that of the key."""

    def __init__(self, desk: CallbackDesk, delays_from: Callable[[], datetime], *, has_broker: bool) -> None:
        self._desk = desk
        self._delays_from = delays_from
        self._has_broker = has_broker

    def whole(
        self,
        request: Request,
        name: ServiceCallId,
        body: TimerBody,
        *,
        expected: Versions | None,
        fingerprint: str | None = None,
        pointer: str = "",
    ) -> ScheduleTimer:
        """Return the command for a whole timer: what the body does not name is not there afterwards."""
        due_at = bodies.due_at(body, self._delays_from, pointer)
        if due_at is None:
            raise invalid("one of dueAt and delayMs is required", f"{pointer}/dueAt")
        callback: Callback | NoCallback = NO_CALLBACK
        if body.callback is not None:
            callback = self._desk.read(
                (request.caller.tenant_id, name),
                body.callback,
                expires_after_ms=body.expires_after_ms,
                pointer=f"{pointer}/callback",
            )
        self.check_target(callback, pointer)
        on_bus = callback is NO_CALLBACK
        return ScheduleTimer(
            tenant_id=request.caller.tenant_id,
            service_call_id=name,
            due_at=due_at,
            correlation_id=_correlation(body.correlation_id),
            position=NEWEST,
            trace=codec.read_trace(request.headers),
            callback=callback,
            expected=expected,
            fingerprint=fingerprint,
            if_absent=body.if_absent,
            expires_after_ms=body.expires_after_ms if on_bus else None,
        )

    def creation(
        self,
        request: Request,
        name: ServiceCallId,
        body: TimerBody,
        *,
        fingerprint: str | None,
        pointer: str = "",
    ) -> ScheduleTimer:
        """Return the command for a timer that is not there yet."""
        expected: Versions | None = None if body.if_absent else frozenset()
        return self.whole(request, name, body, expected=expected, fingerprint=fingerprint, pointer=pointer)

    def changed(
        self, request: Request, timer: Timer, before: Callback | None, body: PatchBody
    ) -> ScheduleTimer:
        """Return the command for a change: what the body does not name stays as it is."""
        due_at = bodies.due_at(body, self._delays_from) or timer.due_at
        assert due_at is not None
        callback: Callback | NoCallback | None = None
        names_expiry = "expires_after_ms" in body.model_fields_set
        forgets_expiry = names_expiry and body.expires_after_ms is None
        expires_ms = body.expires_after_ms if names_expiry else _expires_after_ms(timer, before)
        patch = body.callback
        if patch is None and before is not None and names_expiry and "callback" not in body.model_fields_set:
            patch = CallbackPatch()  # Where a timer calls its callback, its time to expire is kept there.
        if patch is not None:
            if before is None and patch.url is None:
                raise invalid("is required", "/callback/url")
            if before is not None and forgets_expiry:
                before = replace(before, expires_after=None)
            callback = self._desk.read(timer.key, patch, before=before, expires_after_ms=expires_ms)
            expires_ms = None
        elif "callback" in body.model_fields_set:
            callback = NO_CALLBACK
            self.check_target(callback)
        elif before is not None:
            expires_ms = timer.expires_after_ms
        return ScheduleTimer(
            tenant_id=timer.tenant_id,
            service_call_id=timer.service_call_id,
            due_at=due_at,
            correlation_id=_correlation(body.correlation_id),
            position=NEWEST,
            trace=codec.read_trace(request.headers),
            callback=callback,
            expected=frozenset({timer.version}),
            expires_after_ms=expires_ms,
        )

    def check_target(self, callback: object, pointer: str = "") -> None:
        """Raise Problem if a timer could fire nowhere."""
        if callback is NO_CALLBACK and not self._has_broker:
            raise invalid("is required: this service has no broker to publish on", f"{pointer}/callback")

    def name_for(self, request: Request, body: NewTimerBody, index: int | None = None) -> ServiceCallId:
        """Return the id of a new timer, in a batch by its index: the one in the body, or one of ours."""
        if body.service_call_id is not None:
            return ServiceCallId(body.service_call_id)
        key = conditions.idempotency_key(request.headers)
        if key is None:
            return new_id()
        # No key holds a line break: a batch has ids of its own.
        place = key if index is None else f"{key}\n{index}"
        return conditions.id_from_key(request.caller.tenant_id, place)


def new_id() -> ServiceCallId:
    """Return an id for a timer whose caller gave none."""
    return ServiceCallId(str(uuid6.uuid7()))


def check_patch(body: PatchBody) -> None:
    """Raise Problem if a patch takes away what a timer must have."""
    if "correlation_id" in body.model_fields_set and body.correlation_id is None:
        raise invalid("cannot be removed, only replaced", "/correlationId")
    if body.due_at is None and "due_at" in body.model_fields_set:
        raise invalid("cannot be removed: DELETE cancels the timer", "/dueAt")


def name_in(request: Request) -> ServiceCallId:
    """Return the id in the path; one that no timer can have is not found."""
    if not wire.is_service_call_id(request.name):
        raise TimerNotFound(request.name)
    return ServiceCallId(request.name)


def new_name_in(request: Request) -> ServiceCallId:
    """Return the id in the path for a timer that may be created. Raises Problem."""
    if not wire.is_service_call_id(request.name):
        raise invalid_parameter("id", f"must be {wire.SERVICE_CALL_RULE} (got {quoted(request.name)})")
    return ServiceCallId(request.name)


def _expires_after_ms(timer: Timer, callback: Callback | None) -> int | None:
    """Return how long after its due time a timer is still of use, wherever it fires."""
    if callback is None or callback.expires_after is None:
        return timer.expires_after_ms
    return callback.expires_after // timedelta(milliseconds=1)


def _correlation(text: str | None) -> CorrelationId | None:
    return None if text is None else CorrelationId(text)
