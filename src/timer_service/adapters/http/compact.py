"""A smaller dialect over the same use cases: /timers, /health, {code, message, data}, five statuses."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import Field

from timer_client import wire
from timer_client.wire.rules import Time
from timer_service.adapters import codec
from timer_service.adapters.endpoints import TIMERS_PER_REQUEST
from timer_service.adapters.http import bodies, conditions
from timer_service.adapters.http.api import Answer, Request
from timer_service.adapters.http.builder import CommandBuilder, name_in, new_id
from timer_service.adapters.http.callbacks import CallbackBody, CallbackDesk, CallbackPatch, read_payload
from timer_service.adapters.http.pending import PendingLimit
from timer_service.adapters.http.problems import FieldError, Problem, invalid, invalid_parameter
from timer_service.deliveries import Deliveries
from timer_service.domain.callback_status import CallbackStatus, callback_status
from timer_service.domain.errors import TimerNotFound, TransientError
from timer_service.domain.messages import CancelTimer, ScheduleTimer, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.callback_list import CallbackQuery, ListOrder
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.ports.timer_store import TimerQuery
from timer_service.timers import NEWEST, Timers

MAX_OFFSET: Final = 10_000
"""How far into a list a page may begin, and how far it is counted; /v1 reads page by page."""
_ORDERS: Final = {"created_at": ListOrder.CREATED, "execute_at": ListOrder.DUE}
SKIPPED_PER_REQUEST: Final = 500
"""Timers before a page, which are read as well; as many count as one more request."""
READ_AT_ONCE: Final = 20
"""Callbacks of a page that are in memory together, bodies and all, of which a list shows nothing."""
UPDATE_TRIES: Final = 10
HEALTH_TIMEOUT_S: Final = 4.0
"""A store that takes longer to answer counts as gone: callers of this dialect wait five seconds."""
_MESSAGES: Final = {"not-found": "timer not found", "unauthorized": "unauthorized"}
_CALLBACK: Final = {
    "callback_url": "url",
    "callback_method": "method",
    "callback_headers": "headers",
    "callback_payload": "body",
    "metadata": "metadata",
}
_POINTERS: Final = {f"/callback/{name}": f"/{field}" for field, name in _CALLBACK.items()} | {
    "/callback/retry/maxAttempts": "/max_attempts"
}
"""Where the fields of a callback are in this dialect."""


class UpdateBody(bodies.Body):
    """What is to change of a timer."""

    execute_at: Time | None = None
    callback_url: str | None = None
    callback_method: Literal["POST", "PUT", "PATCH"] | None = None
    callback_headers: dict[str, str] | None = None
    callback_payload: Any = None
    metadata: Any = None
    max_attempts: int | None = Field(default=None, ge=1, le=50)


class CreateBody(UpdateBody):
    """A new timer."""

    execute_at: Time
    callback_url: str


class CompactQuery(bodies.Body):
    """Which timers to list."""

    status: Literal["pending", "executing", "completed", "failed", "canceled"] | None = None
    limit: int = Field(default=50, ge=1, le=200, strict=False)
    offset: int = Field(default=0, ge=0, strict=False)
    sort: Literal["created_at", "execute_at"] = "created_at"
    order: Literal["asc", "desc"] = "desc"


class CompactHandlers:
    """What each request of this dialect does; the tenant is that of the key."""

    def __init__(
        self,
        timers: Timers,
        deliveries: Deliveries,
        desk: CallbackDesk,
        pending: PendingLimit,
        now: Callable[[], datetime],
        *,
        min_lead: timedelta = timedelta(),
        health_timeout_s: float = HEALTH_TIMEOUT_S,
    ) -> None:
        self._timers = timers
        self._deliveries = deliveries
        self._desk = desk
        self._pending = pending
        self._now = now
        self._min_lead = min_lead
        self._health_timeout_s = health_timeout_s
        self._builder = CommandBuilder(desk, now, has_broker=False)

    async def create(self, request: Request) -> Answer:
        """Create a timer; one attempt is made unless the request asks for more."""
        value = bodies.parsed(request.body)
        body = bodies.read_value(CreateBody, value)
        key = conditions.idempotency_key(request.headers)
        tenant_id = request.caller.tenant_id
        name = new_id() if key is None else conditions.id_from_key(tenant_id, key)
        if key is None or not await self._is_known(tenant_id, name):
            self._check_future(body.execute_at)
        callback = self._desk.read(
            (tenant_id, name), CallbackBody.model_validate(_callback(body)), attempts=1
        )
        fingerprint = None if key is None else conditions.fingerprint_of(key, value)
        command = ScheduleTimer(
            *(tenant_id, name, body.execute_at, None, NEWEST, codec.read_trace(request.headers)),
            callback=callback,
            expected=frozenset(),
            fingerprint=fingerprint,
        )
        await self._pending.admit([command])
        settled = await self._timers.carry_out(command)
        if settled.outcome is not Outcome.SCHEDULED and settled.timer.fingerprint != fingerprint:
            raise conditions.reused()
        shown = _brief(settled.timer, await self._record(settled.timer))
        return _answer(201, "timer created successfully", shown, settled.outcome.value)

    async def show(self, request: Request) -> Answer:
        """Show one timer; header values are masked."""
        timer = await self._get(request)
        return _answer(200, "success", self._whole(timer, await self._record(timer)))

    async def list_page(self, request: Request) -> Answer:
        """Show a page of timers with their number."""
        asked = bodies.read_query(CompactQuery, request.query)
        if asked.offset > MAX_OFFSET:
            raise invalid_parameter("offset", f"must be at most {MAX_OFFSET}: /v1/timers has a cursor")
        page = await self._deliveries.timers(
            CallbackQuery(
                request.caller.tenant_id,
                None if asked.status is None else CallbackStatus(asked.status),
                _ORDERS[asked.sort],
                newest_first=asked.order == "desc",
                offset=asked.offset,
                limit=asked.limit,
                count_up_to=MAX_OFFSET,
            )
        )
        shown: list[dict[str, Any]] = []
        for first in range(0, len(page.timers), READ_AT_ONCE):
            some = page.timers[first : first + READ_AT_ONCE]
            records = await self._deliveries.records([timer.key for timer in some])
            shown += [_brief(timer, records.get(timer.key)) for timer in some]
        data: dict[str, Any] = {
            "timers": shown,
            "total": min(page.total, MAX_OFFSET),
            "limit": asked.limit,
            "offset": asked.offset,
        }
        answer = _answer(200, "success", data | ({"total_capped": True} if page.total > MAX_OFFSET else {}))
        cost = len(page.timers) // TIMERS_PER_REQUEST + asked.offset // SKIPPED_PER_REQUEST
        return replace(answer, extra_cost=cost)

    async def update(self, request: Request) -> Answer:
        """Change what the request names of a pending timer."""
        body = bodies.read_body(UpdateBody, request.body)
        if body.execute_at is not None:
            self._check_future(body.execute_at)
        for _ in range(UPDATE_TRIES):
            timer = await self._get(request)
            record = await self._record(timer)
            if timer.state is not TimerState.SCHEDULED or timer.due_at is None:
                raise invalid(f"cannot update timer with status '{status_of(timer, record)}'")
            if record is None:
                raise invalid("cannot update timer without a callback: it fires on the bus")
            patch = CallbackPatch.model_validate(_callback(body))
            before = record.callback if patch.headers is None else replace(record.callback, headers=())
            callback = self._desk.read(timer.key, patch, before=before)
            settled = await self._timers.carry_out(
                ScheduleTimer(
                    *(timer.tenant_id, timer.service_call_id, body.execute_at or timer.due_at, None, NEWEST),
                    callback=callback,
                    expected=frozenset({timer.version}),
                    expires_after_ms=timer.expires_after_ms,
                )
            )
            if settled.outcome is not Outcome.CHANGED:
                record = await self._record(settled.timer)
                updated_at = wire.format_time(_last_change(settled.timer, record))
                shown = _brief(settled.timer, record) | {"updated_at": updated_at}
                return _answer(200, "timer updated successfully", shown, settled.outcome.value)
        raise Problem(
            "unavailable", "other requests keep changing the timer: try again", headers={"retry-after": "1"}
        )

    async def cancel(self, request: Request) -> Answer:
        """Cancel a pending timer."""
        timer = await self._get(request)
        settled = await self._timers.carry_out(CancelTimer(timer.tenant_id, timer.service_call_id, NEWEST))
        if settled.timer.state is not TimerState.CANCELLED:
            status = status_of(settled.timer, await self._record(settled.timer))
            raise invalid(f"cannot cancel timer with status '{status}'")
        data = {"id": timer.service_call_id, "status": "canceled"}
        return _answer(200, "timer canceled successfully", data, settled.outcome.value)

    async def health(self, _: Request) -> Answer:
        """Say whether the store answers."""
        data = {"status": "up", "database": "connected", "timestamp": wire.format_time(self._now())}
        try:
            async with asyncio.timeout(self._health_timeout_s):
                await self._timers.list(TimerQuery(TenantId("health"), limit=1))
        except (TransientError, TimeoutError):
            data |= {"status": "degraded", "database": "disconnected"}
            return Answer(
                500, wire.write_json({"code": 1, "message": "database connection failed", "data": data})
            )
        return _answer(200, "healthy", data)

    def _check_future(self, execute_at: datetime) -> None:
        if execute_at <= self._now() + self._min_lead:
            ahead = f"more than {self._min_lead.total_seconds():g} s in" if self._min_lead else "in"
            detail = f"execute_at must be {ahead} the future"
            # As this dialect has always said it, without the pointer before it.
            raise Problem("bad-request", detail, (FieldError("/execute_at", detail),))

    async def _get(self, request: Request) -> Timer:
        return await self._timers.get(request.caller.tenant_id, name_in(request))

    async def _is_known(self, tenant_id: TenantId, name: ServiceCallId) -> bool:
        try:
            await self._timers.get(tenant_id, name)
        except TimerNotFound:
            return False
        return True

    async def _record(self, timer: Timer) -> CallbackRecord | None:
        return (await self._deliveries.records([timer.key])).get(timer.key)

    def _whole(self, timer: Timer, record: CallbackRecord | None) -> dict[str, Any]:
        callback = record and record.callback
        body = callback.body if callback else None
        return _brief(timer, record) | {
            "updated_at": wire.format_time(_last_change(timer, record)),
            "callback_headers": dict(self._desk.view(timer.key, callback)["headers"]) if callback else {},
            "callback_payload": _json_or_none(body),
            "last_error": record.delivery.error if record and record.delivery else None,
            "metadata": json.loads(callback.metadata) if callback and callback.metadata else None,
        }


def status_of(timer: Timer, record: CallbackRecord | None) -> str:
    """Return which of the five statuses a timer has: a view of its state and that of its delivery."""
    delivery = None if record is None else record.delivery
    return callback_status(timer.state, None if delivery is None else delivery.state)


def as_compact(problem: Problem) -> Answer:
    """Answer a problem in this dialect."""
    message = problem.detail
    errors = [replace(error, pointer=_pointer(error.pointer)) for error in problem.errors]
    for old, new in zip(problem.errors, errors, strict=True):
        if old.pointer != new.pointer:
            message = message.replace(f"{old.pointer}: ", f"{new.pointer}: ")
    content = replace(problem, errors=errors).content()
    shown = {"code": content["code"], "message": _MESSAGES.get(problem.kind, message), "data": None}
    if errors:
        shown["errors"] = content["errors"]
    return Answer(problem.status, wire.write_json(shown), problem.headers, outcome=str(problem.status))


def _pointer(pointer: str) -> str:
    for theirs, ours in _POINTERS.items():
        if pointer == theirs or pointer.startswith(f"{theirs}/"):
            return ours + pointer.removeprefix(theirs)
    return pointer


def _callback(body: UpdateBody) -> Mapping[str, Any]:
    # Null is a field that is not given: typed clients of this dialect write all that they have.
    values = {_CALLBACK[name]: value for name in _CALLBACK if (value := getattr(body, name)) is not None}
    if isinstance(body, CreateBody) and "body" not in values:
        values["bodyBase64"] = ""  # No body at all, in the place of the event that /v1 sends.
    if body.max_attempts is not None:
        values["retry"] = {"maxAttempts": body.max_attempts}
    return values


def _brief(timer: Timer, record: CallbackRecord | None) -> dict[str, Any]:
    ended_at = record.delivery.ended_at if record and record.delivery else None
    return {
        "id": timer.service_call_id,
        "created_at": wire.format_time(timer.registered_at),
        "execute_at": wire.format_time(timer.due_at) if timer.due_at else None,
        "callback_url": record.callback.url if record else None,
        "callback_method": record.callback.method.value if record else None,
        "status": status_of(timer, record),
        "executed_at": wire.format_time(ended_at) if ended_at else None,
    }


def _last_change(timer: Timer, record: CallbackRecord | None) -> datetime:
    """Return when a timer, its callback or its delivery was last changed."""
    changes = [timer.registered_at, timer.cancelled_at, timer.reached_at, timer.expired_at]
    if record is not None:
        changes.append(record.updated_at)
    if record is not None and record.delivery is not None:
        changes += [record.delivery.last_attempt_at, record.delivery.ended_at]
    return max(change for change in changes if change is not None)


def _json_or_none(body: bytes | None) -> Any:
    try:
        return read_payload(body) if body else None
    except ValueError:
        return None


def _answer(status: int, message: str, data: Mapping[str, Any], outcome: str = "ok") -> Answer:
    return Answer(status, wire.write_json({"code": 0, "message": message, "data": data}), outcome=outcome)
