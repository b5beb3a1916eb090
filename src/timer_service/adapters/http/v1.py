"""The API in the service's own words: /v1."""

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from pydantic import Field

from timer_client import wire
from timer_client.wire.rules import CorrelationText, Time
from timer_service.adapters import codec
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.adapters.http import bodies, conditions
from timer_service.adapters.http.api import Answer, Request
from timer_service.adapters.http.problems import Problem, invalid
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import (
    CancelTimer,
    CorrelationId,
    ScheduleTimer,
    ServiceCallId,
    Versions,
    epoch_ms,
)
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import Decided, TimerQuery
from timer_service.timers import NEWEST, Timers

PATCH_TRIES: Final = 10
_UNSETTLED: Final = {
    Outcome.DUE: "the timer is due and its firing is not confirmed yet",
    Outcome.SUPERSEDED: "newer commands for this timer are still coming in",
}


class ListQuery(bodies.Body):
    """Which timers to list."""

    state: wire.StateText | None = None
    correlation_id: CorrelationText | None = Field(default=None, alias="correlationId")
    due_from: Time | None = Field(default=None, alias="dueFrom")
    due_before: Time | None = Field(default=None, alias="dueBefore")
    limit: int = Field(default=100, ge=1, le=wire.MAX_PAGE, strict=False)
    cursor: str | None = None


class TimerHandlers:
    """What each request does; the tenant is that of the key."""

    def __init__(self, timers: Timers, now: Callable[[], datetime], *, has_broker: bool) -> None:
        self._timers = timers
        self._now = now
        self._has_broker = has_broker

    async def create(self, request: Request) -> Answer:
        """Create a timer; a repeated request with the same key finds the timer as it is now."""
        value = bodies.parsed(request.body)
        body = bodies.read_value(bodies.NewTimerBody, value)
        key = conditions.idempotency_key(request.headers)
        if body.service_call_id is not None:
            name = ServiceCallId(body.service_call_id)
        else:
            name = self._new_id() if key is None else conditions.id_from_key(request.caller.tenant_id, key)
        fingerprint = None if key is None else conditions.fingerprint_of(value)
        command = self._schedule(request, name, body, expected=frozenset(), fingerprint=fingerprint)
        settled = await self._timers.carry_out(command)
        if settled.outcome is Outcome.SCHEDULED:
            return self._settled(201, settled.outcome, settled.timer, is_ordered=settled.is_ordered)
        return self._found(settled.timer, fingerprint)

    def _found(self, timer: Timer, fingerprint: str | None) -> Answer:
        """Answer a creation whose timer is there already."""
        if fingerprint is None:
            raise Problem("already-exists", "there is a timer with this id", more={"timer": view(timer)})
        if timer.fingerprint != fingerprint:
            raise conditions.reused()
        return self._settled(200, Outcome.UNCHANGED, timer, {"idempotency-replayed": "true"})

    async def show(self, request: Request) -> Answer:
        """Show one timer."""
        timer = await self._get(request)
        etag = conditions.etag_of(timer)
        if conditions.is_unchanged(request.headers, etag):
            return Answer(304, headers={"etag": etag})
        return Answer(200, wire.write_json({"timer": view(timer)}), {"etag": etag})

    async def list(self, request: Request) -> Answer:
        """Show a page of timers."""
        asked = bodies.read_query(ListQuery, request.query)
        correlation_id = asked.correlation_id
        query = TimerQuery(
            tenant_id=request.caller.tenant_id,
            state=None if asked.state is None else TimerState(asked.state),
            correlation_id=None if correlation_id is None else CorrelationId(correlation_id),
            due_from=asked.due_from,
            due_before=asked.due_before,
            after=None if asked.cursor is None else read_cursor(asked.cursor),
            limit=asked.limit,
        )
        found = await self._timers.list(query)
        content: dict[str, Any] = {"timers": [view(timer) for timer in found]}
        if len(found) == asked.limit and found[-1].due_at is not None:
            content["cursor"] = write_cursor(found[-1].due_at, found[-1].service_call_id)
        return Answer(200, wire.write_json(content))

    async def replace(self, request: Request) -> Answer:
        """Create a timer, or put another one in its place."""
        body = bodies.read_body(bodies.TimerBody, request.body)
        expected = await self._expected(request)
        settled = await self._timers.carry_out(
            self._schedule(request, _name(request), body, expected=expected)
        )
        self._refuse(settled.outcome, settled.timer)
        status = 201 if settled.outcome is Outcome.SCHEDULED and settled.timer.generation == 1 else 200
        return self._settled(status, settled.outcome, settled.timer, is_ordered=settled.is_ordered)

    async def patch(self, request: Request) -> Answer:
        """Change what the request names, and nothing else."""
        body = bodies.read_body(bodies.PatchBody, request.body)
        if "correlation_id" in body.model_fields_set and body.correlation_id is None:
            raise invalid("cannot be removed, only replaced", "/correlationId")
        if body.due_at is None and "due_at" in body.model_fields_set:
            raise invalid("cannot be removed: DELETE cancels the timer", "/dueAt")
        wanted = await self._expected(request)
        for _ in range(PATCH_TRIES):
            timer = await self._get(request)
            if wanted is not None and timer.version not in wanted:
                raise _not_as_expected(timer)
            if timer.state is not TimerState.SCHEDULED or timer.due_at is None:
                raise _conflict(timer, "only a scheduled timer can be changed: PUT schedules it again")
            # Only as it was read: what others change meanwhile is not undone.
            command = self._schedule(
                request, _name(request), body, default=timer.due_at, expected=frozenset({timer.version})
            )
            settled = await self._timers.carry_out(command)
            if settled.outcome is not Outcome.CHANGED:
                self._refuse(settled.outcome, settled.timer)
                return self._settled(200, settled.outcome, settled.timer, is_ordered=settled.is_ordered)
        raise Problem(
            "unavailable", "the timer is changed by others all the time", headers={"retry-after": "1"}
        )

    async def cancel(self, request: Request) -> Answer:
        """Cancel a timer: if the answer says so, it never fires."""
        expected = await self._expected(request)
        # A timer that there is not is not remembered as cancelled: no command can be on its way to it.
        timer = await self._get(request)
        settled = await self._timers.carry_out(
            CancelTimer(timer.tenant_id, timer.service_call_id, NEWEST, expected)
        )
        self._refuse(settled.outcome, settled.timer)
        return self._settled(200, Outcome.CANCELLED, settled.timer, is_ordered=settled.is_ordered)

    async def create_many(self, request: Request) -> Answer:
        """Create timers in one transaction, with a result for each."""
        values = bodies.read_body(bodies.BatchBody, request.body).timers
        results: list[dict[str, Any] | None] = [None] * len(values)
        commands: dict[ServiceCallId, tuple[int, ScheduleTimer]] = {}
        for index, value in enumerate(values):
            pointer = f"/timers/{index}"
            try:
                body = bodies.read_value(bodies.NewTimerBody, value, pointer)
                name = ServiceCallId(body.service_call_id) if body.service_call_id else self._new_id()
                if name in commands:
                    raise invalid("is the id of another timer of the batch", f"{pointer}/serviceCallId")
                command = self._schedule(request, name, body, expected=frozenset(), pointer=pointer)
                commands[name] = (index, command)
            except Problem as problem:
                results[index] = _failed(problem)
        decided = await self._timers.carry_out_all([command for _, command in commands.values()])
        for (index, _), each in zip(commands.values(), decided, strict=True):
            results[index] = _batch_result(each)
        return Answer(200, wire.write_json({"results": results}))

    async def _get(self, request: Request) -> Timer:
        return await self._timers.get(request.caller.tenant_id, _name(request))

    async def _expected(self, request: Request) -> Versions | None:
        """Return what the timer has to be like; whether it is is decided where it is changed."""
        expected = conditions.expected_versions(request.headers)
        if conditions.must_exist(request.headers):
            try:
                await self._get(request)
            except TimerNotFound as error:
                raise Problem("precondition-failed", "If-Match: there is no such timer") from error
        return expected

    def _schedule(
        self,
        request: Request,
        name: ServiceCallId,
        body: bodies.PatchBody | bodies.TimerBody,
        *,
        expected: Versions | None,
        default: datetime | None = None,
        fingerprint: str | None = None,
        pointer: str = "",
    ) -> ScheduleTimer:
        due_at = bodies.due_at(body, self._now(), pointer) or default
        if due_at is None:
            raise invalid("one of dueAt and delayMs is required", f"{pointer}/dueAt")
        return ScheduleTimer(
            tenant_id=request.caller.tenant_id,
            service_call_id=name,
            due_at=due_at,
            correlation_id=None if body.correlation_id is None else CorrelationId(body.correlation_id),
            position=NEWEST,
            trace=codec.read_trace(request.headers),
            expected=expected,
            fingerprint=fingerprint,
        )

    def _refuse(self, outcome: Outcome, timer: Timer) -> None:
        """Raise what is told if a request has changed nothing."""
        if outcome is Outcome.CHANGED:
            raise _not_as_expected(timer)
        if outcome is Outcome.ALREADY_REACHED:
            raise _conflict(timer, "the due time was reached: nothing changes it any more")

    def _settled(
        self,
        status: int,
        outcome: Outcome,
        timer: Timer,
        headers: Mapping[str, str] | None = None,
        *,
        is_ordered: bool = True,
    ) -> Answer:
        content: dict[str, Any] = {"outcome": outcome.value, "timer": view(timer)}
        if not is_ordered:
            content["ordered"] = False
        more = {"etag": conditions.etag_of(timer), **(headers or {})}
        if status == 201:
            more["location"] = f"/v1/timers/{quote(timer.service_call_id, safe='')}"
        return Answer(status, wire.write_json(content), more, outcome=outcome.value)

    def _new_id(self) -> ServiceCallId:
        """Return a new UUIDv7."""
        chance = int.from_bytes(secrets.token_bytes(10), "big")
        low = (chance >> 68) << 64 | chance & ((1 << 62) - 1)
        return ServiceCallId(str(UUID(int=epoch_ms(self._now()) << 80 | 0x7 << 76 | 0b10 << 62 | low)))


def view(timer: Timer) -> dict[str, Any]:
    """Return a timer as the API shows it."""
    return wire.fields_of(codec.timer_view(timer))


def _name(request: Request) -> ServiceCallId:
    if not wire.is_service_call_id(request.name):
        raise TimerNotFound(request.name)  # There cannot be one.
    return ServiceCallId(request.name)


def _batch_result(decided: Decided) -> dict[str, Any]:
    timer, outcome = decided.timer, decided.outcome
    if timer is None or outcome in _UNSETTLED:
        return _failed(Problem("unavailable", _UNSETTLED[outcome]))
    if outcome is not Outcome.SCHEDULED:
        return _failed(
            Problem("already-exists", "there is a timer with this id", more={"timer": view(timer)})
        )
    return {"status": 201, "outcome": outcome.value, "timer": view(timer)}


def _failed(problem: Problem) -> dict[str, Any]:
    return {"status": problem.status, "problem": problem.content()}


def _not_as_expected(timer: Timer) -> Problem:
    etag = conditions.etag_of(timer)
    return Problem(
        "precondition-failed",
        "the timer is not as If-Match or If-None-Match says",
        headers={"etag": etag},
        more={"timer": view(timer)},
    )


def _conflict(timer: Timer, detail: str) -> Problem:
    return Problem("conflict", detail, more={"timer": view(timer)})
