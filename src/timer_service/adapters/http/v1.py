"""The API in the service's own words: /v1."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from pydantic import Field

from timer_client import wire
from timer_client.wire.rules import CorrelationText, Time
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.adapters.endpoints import TIMERS_PER_REQUEST
from timer_service.adapters.explanation_view import explanation_view
from timer_service.adapters.http import bodies, conditions
from timer_service.adapters.http.api import Answer, Request
from timer_service.adapters.http.builder import CommandBuilder, check_patch, name_in, new_name_in
from timer_service.adapters.http.callbacks import CallbackDesk
from timer_service.adapters.http.pending import PendingLimit
from timer_service.adapters.http.problems import Problem, invalid
from timer_service.adapters.http.timer_bodies import BatchBody, NewTimerBody, PatchBody, TimerBody
from timer_service.adapters.http.views import TimerViews
from timer_service.deliveries import Deliveries
from timer_service.domain.callback import Sink
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import (
    CancelTimer,
    CorrelationId,
    ScheduleTimer,
    ServiceCallId,
    Versions,
)
from timer_service.domain.outcomes import in_groups
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import Decided, TimerQuery
from timer_service.timers import NEWEST, Timers

PATCH_TRIES: Final = 10
READ_AT_ONCE: Final = 20
"""Timers of a batch that are read in one round of the loop, which everything else waits for."""
ANSWERED_AT_ONCE: Final = 100
"""As many take as long to answer as those to read."""
_ENDED: Final = "the timer has already ended and cannot be changed"
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
    sink: Literal["bus", "http"] | None = None
    limit: int = Field(default=100, ge=1, le=wire.MAX_PAGE, strict=False)
    cursor: bodies.CursorText | None = None


class TimerHandlers:
    """What each request does; the tenant is that of the key."""

    def __init__(
        self,
        timers: Timers,
        deliveries: Deliveries,
        desk: CallbackDesk,
        builder: CommandBuilder,
        pending: PendingLimit,
    ) -> None:
        self._timers = timers
        self._views = TimerViews(deliveries, desk)
        self._builder = builder
        self._pending = pending

    async def create(self, request: Request) -> Answer:
        """Create a timer; a repeated request with the same key finds the timer as it is now."""
        value = bodies.parsed(request.body)
        body = bodies.read_value(NewTimerBody, value)
        key = conditions.idempotency_key(request.headers)
        name = self._builder.name_for(request, body)
        fingerprint = None if key is None else conditions.fingerprint_of(key, value)
        command = self._builder.creation(request, name, body, fingerprint=fingerprint)
        await self._pending.admit([command])
        settled = await self._timers.carry_out(command)
        if settled.outcome is Outcome.SCHEDULED:
            return await self._views.answer(
                201, settled.outcome, settled.timer, is_ordered=settled.is_ordered, change=command
            )
        return await self._found(settled.timer, settled.outcome, command, is_ordered=settled.is_ordered)

    async def _found(
        self, timer: Timer, outcome: Outcome, command: ScheduleTimer, *, is_ordered: bool
    ) -> Answer:
        """Answer a creation whose timer is there already."""
        fingerprint = command.fingerprint
        if not conditions.came_with_key_of(fingerprint, timer):
            if command.if_absent:
                return await self._views.answer(200, outcome, timer, is_ordered=is_ordered)
            raise await self._views.problem("already-exists", "there is a timer with this id", timer)
        if timer.fingerprint != fingerprint:
            raise conditions.reused()
        return await self._views.answer(200, Outcome.UNCHANGED, timer, {"idempotency-replayed": "true"})

    async def show(self, request: Request) -> Answer:
        """Show one timer."""
        timer = await self._get(request)
        record = await self._views.record(timer)
        etag = self._views.tag(timer, record)
        if conditions.is_unchanged(request.headers, etag):
            return Answer(304, headers={"etag": etag})
        return Answer(200, wire.write_json({"timer": self._views.of(timer, record)}), {"etag": etag})

    async def explain(self, request: Request) -> Answer:
        """Say why a timer is as it is, also where there is none."""
        explanation = await self._timers.explain(request.caller.tenant_id, name_in(request))
        return Answer(200, wire.write_model(explanation_view(explanation)))

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
            sink=None if asked.sink is None else Sink[asked.sink.upper()],
            limit=asked.limit,
        )
        found = await self._timers.list(query)
        content: dict[str, Any] = {"timers": [self._views.of(timer) for timer in found]}
        if len(found) == asked.limit and found[-1].due_at is not None:
            content["cursor"] = write_cursor(found[-1].due_at, found[-1].service_call_id)
        return Answer(200, wire.write_json(content), extra_cost=len(found) // TIMERS_PER_REQUEST)

    async def replace(self, request: Request) -> Answer:
        """Create a timer, or put another one in its place."""
        body = bodies.read_body(TimerBody, request.body)
        expected = await self._expected(request)
        command = self._builder.whole(request, new_name_in(request), body, expected=expected)
        await self._pending.admit([command])
        settled = await self._timers.carry_out(command)
        if command.if_absent and settled.outcome not in (Outcome.SCHEDULED, Outcome.CHANGED):
            return await self._found(settled.timer, settled.outcome, command, is_ordered=settled.is_ordered)
        await self._refuse(settled.outcome, settled.timer)
        status = 201 if settled.outcome is Outcome.SCHEDULED and settled.timer.generation == 1 else 200
        return await self._views.answer(
            status, settled.outcome, settled.timer, is_ordered=settled.is_ordered, change=command
        )

    async def patch(self, request: Request) -> Answer:
        """Change what the request names, and nothing else."""
        body = bodies.read_body(PatchBody, request.body)
        check_patch(body)
        wanted = await self._expected(request)
        for _ in range(PATCH_TRIES):
            timer = await self._get(request)
            if wanted is not None and timer.version not in wanted:
                await self._refuse(Outcome.CHANGED, timer)
            if timer.state is not TimerState.SCHEDULED:
                is_over = timer.state is not TimerState.CANCELLED
                detail = _ENDED if is_over else "the timer is cancelled: PUT schedules it again"
                raise await self._views.problem("conflict", detail, timer)
            record = await self._views.record(timer)
            # Only as it was read: what others change meanwhile is not undone.
            command = self._builder.changed(request, timer, None if record is None else record.callback, body)
            settled = await self._timers.carry_out(command)
            if settled.outcome is not Outcome.CHANGED:
                await self._refuse(settled.outcome, settled.timer)
                return await self._views.answer(
                    200, settled.outcome, settled.timer, is_ordered=settled.is_ordered, change=command
                )
        detail = "other requests keep changing the timer: try again"
        raise Problem("unavailable", detail, headers={"retry-after": "1"})

    async def cancel(self, request: Request) -> Answer:
        """Cancel a timer: if the answer says so, it never fires."""
        expected = await self._expected(request)
        # A timer that there is not is not remembered as cancelled: no command can be on its way to it.
        timer = await self._get(request)
        settled = await self._timers.carry_out(
            CancelTimer(timer.tenant_id, timer.service_call_id, NEWEST, expected)
        )
        await self._refuse(settled.outcome, settled.timer)
        return await self._views.answer(200, Outcome.CANCELLED, settled.timer, is_ordered=settled.is_ordered)

    async def create_many(self, request: Request) -> Answer:
        """Create timers in one transaction, with a result for each."""
        values = bodies.read_body(BatchBody, request.body).timers
        key = conditions.idempotency_key(request.headers)
        results: list[dict[str, Any]] = [{}] * len(values)
        commands: dict[ServiceCallId, tuple[int, ScheduleTimer]] = {}
        for index, value in enumerate(values):
            if index and index % READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            pointer = f"/timers/{index}"
            try:
                body = bodies.read_value(NewTimerBody, value, pointer)
                name = self._builder.name_for(request, body, index)
                if name in commands:
                    raise invalid(
                        "is already the id of another timer in the batch", f"{pointer}/serviceCallId"
                    )
                fingerprint = None if key is None else conditions.fingerprint_of(key, value)
                command = self._builder.creation(
                    request, name, body, fingerprint=fingerprint, pointer=pointer
                )
                commands[name] = (index, command)
            except Problem as problem:
                results[index] = _failed(problem)
        wanted = [command for _, command in commands.values()]
        await self._pending.admit(wanted)
        settled = await self._timers.carry_out_all(wanted)
        for number, ((index, command), each) in enumerate(
            zip(commands.values(), settled.decided, strict=True)
        ):
            if number % ANSWERED_AT_ONCE == 0:
                await asyncio.sleep(0)
            results[index] = self._batch_result(each, command)
        content = await _written(results, is_ordered=settled.is_ordered)
        return Answer(200, content, extra_cost=len(values) // TIMERS_PER_REQUEST)

    async def _get(self, request: Request) -> Timer:
        return await self._timers.get(request.caller.tenant_id, name_in(request))

    async def _expected(self, request: Request) -> Versions | None:
        """Return what the timer has to be like; whether it is is decided where it is changed."""
        expected = conditions.expected_versions(request.headers)
        if conditions.must_exist(request.headers):
            try:
                await self._get(request)
            except TimerNotFound as error:
                raise Problem("precondition-failed", "If-Match: there is no such timer") from error
        return expected

    async def _refuse(self, outcome: Outcome, timer: Timer) -> None:
        """Raise what is told if a request has changed nothing."""
        if outcome is Outcome.CHANGED:
            detail = "the timer does not meet If-Match or If-None-Match"
            raise await self._views.problem("precondition-failed", detail, timer)
        if outcome in (Outcome.ALREADY_REACHED, Outcome.ALREADY_EXPIRED):
            raise await self._views.problem("conflict", _ENDED, timer)

    def _batch_result(self, decided: Decided, command: ScheduleTimer) -> dict[str, Any]:
        timer, outcome, fingerprint = decided.timer, decided.outcome, command.fingerprint
        if timer is None or outcome in _UNSETTLED:
            return _failed(Problem("unavailable", _UNSETTLED[outcome]))
        shown = self._views.of(timer)
        if outcome is not Outcome.SCHEDULED and conditions.came_with_key_of(fingerprint, timer):
            if timer.fingerprint != fingerprint:
                return _failed(conditions.reused())
            return {"status": 200, "outcome": Outcome.UNCHANGED.value, "timer": shown}
        if outcome is not Outcome.SCHEDULED and command.if_absent:
            return {"status": 200, "outcome": outcome.value, "timer": shown}
        if outcome is not Outcome.SCHEDULED:
            return _failed(Problem("already-exists", "there is a timer with this id", more={"timer": shown}))
        return {"status": 201, "outcome": outcome.value, "timer": shown}


async def _written(results: Sequence[dict[str, Any]], *, is_ordered: bool) -> bytes:
    """Return the answer to a batch; to write it takes a while, in which others have their turn."""
    written = []
    for some in in_groups(results, ANSWERED_AT_ONCE):
        written.append(msgspec.json.encode(some)[1:-1])
        await asyncio.sleep(0)
    order = b"" if is_ordered else b',"ordered":false'
    return b'{"results":[%s]%s}' % (b",".join(written), order)


def _failed(problem: Problem) -> dict[str, Any]:
    return {"status": problem.status, "problem": problem.content()}
