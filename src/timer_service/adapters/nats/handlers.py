"""From a request that was read to the answer: what each endpoint of the API does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from nats.micro.request import ServiceError
from pydantic import BaseModel

from timer_client import wire
from timer_service.adapters import codec
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId, Trace
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_calls import CallAnswer, TimerCalls
from timer_service.ports.timer_store import TimerQuery

PAGE_MARGIN_BYTES: Final = wire.MAX_CURSOR + 64
"""Room in an answer for all that is not a timer."""
TIMERS_PER_REQUEST: Final = 20
"""A list counts as one more request for each so many timers that it asks for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read and found valid."""

    tenant_id: TenantId
    """Of the subject, the only one that counts; empty where an operator asks."""
    request: BaseModel
    trace: Trace | None
    max_bytes: int
    """As much as an answer may take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back, and how it is counted."""

    body: bytes
    outcome: str = "ok"


Handler = Callable[[TimerCalls, Asked], Awaitable[Answer]]


def extra_cost(request: BaseModel) -> int:
    """Return for how many more requests this one counts."""
    return request.limit // TIMERS_PER_REQUEST if isinstance(request, wire.ListRequest) else 0


async def get(calls: TimerCalls, asked: Asked) -> Answer:
    """Show one timer."""
    assert isinstance(asked.request, wire.GetRequest)
    name = ServiceCallId(asked.request.service_call_id)
    timer = await calls.get(asked.tenant_id, name)
    if timer is None:
        raise ServiceError("404", f"there is no timer {name!r}")
    return _answer({"timer": codec.timer_fields(timer)})


async def list_timers(calls: TimerCalls, asked: Asked) -> Answer:
    """Show a page of a tenant's timers, as much of it as fits into one message."""
    call = asked.request
    assert isinstance(call, wire.ListRequest)
    query = TimerQuery(
        tenant_id=asked.tenant_id,
        state=None if call.state is None else TimerState(call.state),
        correlation_id=None if call.correlation_id is None else CorrelationId(call.correlation_id),
        due_from=call.due_from,
        due_before=call.due_before,
        after=None if call.cursor is None else read_cursor(call.cursor),
        limit=call.limit,
    )
    timers = await calls.list_timers(query)
    fields = [codec.timer_fields(timer) for timer in timers]
    answer = _page(timers, fields, call.limit)
    if len(answer.body) <= asked.max_bytes:
        return answer
    return _page(timers, _fitting(fields, asked.max_bytes - PAGE_MARGIN_BYTES), call.limit)


async def schedule(calls: TimerCalls, asked: Asked) -> Answer:
    """Schedule or move a timer."""
    call = asked.request
    assert isinstance(call, wire.ScheduleRequest)
    correlation = None if call.correlation_id is None else CorrelationId(call.correlation_id)
    name = ServiceCallId(call.service_call_id)
    return _told(await calls.schedule(asked.tenant_id, name, call.due_at, correlation, asked.trace))


async def cancel(calls: TimerCalls, asked: Asked) -> Answer:
    """Cancel a timer."""
    assert isinstance(asked.request, wire.GetRequest)
    return _told(await calls.cancel(asked.tenant_id, ServiceCallId(asked.request.service_call_id)))


async def status(calls: TimerCalls, _: Asked) -> Answer:
    """Say how this instance is."""
    return _answer(await calls.status())


async def accept_clock_step(calls: TimerCalls, _: Asked) -> Answer:
    """Take a leap of this instance's wall clock for right."""
    return _answer({"instance": calls.instance, "acceptedStepSeconds": await calls.accept_clock_step()})


def _page(timers: list[Timer], shown: list[dict[str, Any]], limit: int) -> Answer:
    answer: dict[str, Any] = {"timers": shown}
    last = timers[len(shown) - 1] if len(shown) == limit or len(shown) < len(timers) else None
    if last is not None and last.due_at is not None:
        answer["cursor"] = write_cursor(last.due_at, last.service_call_id)
    return _answer(answer)


def _fitting(timers: list[dict[str, Any]], max_bytes: int) -> list[dict[str, Any]]:
    """Return as many timers as fit; the first one in any case, so that every page leads on."""
    sizes = accumulate(len(wire.write_json(timer)) + 1 for timer in timers)
    return timers[: max(1, sum(size <= max_bytes for size in sizes))]


def _told(answer: CallAnswer) -> Answer:
    # To be cancelled already is what the caller asked for.
    outcome = Outcome.CANCELLED if answer.outcome is Outcome.ALREADY_CANCELLED else answer.outcome
    return _answer({"outcome": outcome.value, "timer": codec.timer_fields(answer.timer)}, outcome.value)


def _answer(fields: dict[str, Any], outcome: str = "ok") -> Answer:
    return Answer(wire.write_json(fields), outcome)
