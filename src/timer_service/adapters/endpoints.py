"""What each endpoint of the API does and how it fails, whatever the transport."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from timer_client import wire
from timer_service.adapters.codec import timer_view
from timer_service.adapters.cursor import read_cursor, write_cursor
from timer_service.adapters.explanation_view import explanation_view
from timer_service.domain.errors import RequestRefused, TimerNotFound, TimerServiceError, TransientError
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId, Trace
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import TimerQuery
from timer_service.timers import Timers

PAGE_MARGIN_BYTES: Final = wire.MAX_CURSOR + 64
"""Room in an answer for all that is not a timer."""
TIMERS_PER_REQUEST: Final = 20
"""A list counts as one more request for each group of this many timers that it asks for."""
EXPLAIN_COST: Final = 20
"""An explanation counts as this many more requests: it may read a part of a stream."""
FULL_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApiError:
    """What a caller is told in place of an answer; details of the service stay in its log."""

    code: str
    """As in HTTP."""
    text: str
    retry_after_s: float = 0.0


BUSY: Final = ApiError("503", "try again: the service is handling too many requests", FULL_RETRY_S)
STOPPING: Final = ApiError("503", "try again: the service is stopping")
UNEXPECTED: Final = ApiError("500", TimerServiceError.public)


class AnswerTooLarge(Exception):
    """The transport cannot carry the answer; the text is for the caller."""


_ERRORS: Final[tuple[tuple[type[Exception], str, Callable[[Any], str]], ...]] = (
    (wire.WireError, "400", lambda error: error.detail),
    (RequestRefused, "400", lambda error: error.public),
    (TimerNotFound, "404", lambda error: error.public),
    (TransientError, "503", lambda error: f"try again: {error.public}"),
    (AnswerTooLarge, "500", str),
    (TimerServiceError, "500", lambda error: error.public),
)


def error_of(error: Exception) -> ApiError:
    """Return what a caller is told of an error; UNEXPECTED if nobody has thought of it."""
    for kind, code, text in _ERRORS:
        if isinstance(error, kind):
            return ApiError(code, text(error))
    return UNEXPECTED


def too_many(retry_after_s: float) -> ApiError:
    """Return what a tenant is told that asks too often."""
    return ApiError(
        "429", "too many requests of this tenant: try again after the seconds in Retry-After", retry_after_s
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read and found valid."""

    tenant_id: TenantId
    """As the transport knows it, the only one that counts; empty if an operator asks."""
    request: wire.Model
    trace: Trace | None
    max_bytes: int
    """As much as an answer may take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back, and how it is counted."""

    body: bytes
    outcome: str = "ok"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One thing that can be asked for."""

    name: str
    handler: Callable[[Timers, Asked], Awaitable[Answer]]
    request: type[wire.Model]
    answer: type[wire.Model]
    of_tenants: bool = True
    """Otherwise it is an operator's, and every instance answers for itself."""


def extra_cost(request: wire.Model) -> int:
    """Return for how many more requests this one counts."""
    if isinstance(request, wire.ExplainRequest):
        return EXPLAIN_COST
    return request.limit // TIMERS_PER_REQUEST if isinstance(request, wire.ListRequest) else 0


async def _get(timers: Timers, asked: Asked) -> Answer:
    assert isinstance(asked.request, wire.GetRequest)
    timer = await timers.get(asked.tenant_id, ServiceCallId(asked.request.service_call_id))
    return _answer(wire.GetAnswer(timer=timer_view(timer)))


async def _explain(timers: Timers, asked: Asked) -> Answer:
    assert isinstance(asked.request, wire.ExplainRequest)
    explanation = await timers.explain(asked.tenant_id, ServiceCallId(asked.request.service_call_id))
    return _answer(explanation_view(explanation))


async def _list(timers: Timers, asked: Asked) -> Answer:
    """Show a page of a tenant's timers, as much of it as fits into one message."""
    request = asked.request
    assert isinstance(request, wire.ListRequest)
    query = TimerQuery(
        tenant_id=asked.tenant_id,
        state=None if request.state is None else TimerState(request.state),
        correlation_id=None if request.correlation_id is None else CorrelationId(request.correlation_id),
        due_from=request.due_from,
        due_before=request.due_before,
        after=None if request.cursor is None else read_cursor(request.cursor),
        limit=request.limit,
    )
    found = await timers.list(query)
    views = [timer_view(timer) for timer in found]
    answer = _page(found, views, request.limit)
    if len(answer.body) <= asked.max_bytes:
        return answer
    return _page(found, _fitting(views, asked.max_bytes - PAGE_MARGIN_BYTES), request.limit)


async def _schedule(timers: Timers, asked: Asked) -> Answer:
    request = asked.request
    assert isinstance(request, wire.ScheduleRequest)
    correlation = None if request.correlation_id is None else CorrelationId(request.correlation_id)
    name = ServiceCallId(request.service_call_id)
    settled = await timers.schedule(
        asked.tenant_id,
        name,
        request.due_from(timers.delays_from()),
        correlation,
        asked.trace,
        if_absent=request.if_absent or False,
        expires_after_ms=request.expires_after_ms,
    )
    return _settled(wire.ScheduleAnswer, settled.outcome, settled.timer)


async def _cancel(timers: Timers, asked: Asked) -> Answer:
    assert isinstance(asked.request, wire.GetRequest)
    settled = await timers.cancel(asked.tenant_id, ServiceCallId(asked.request.service_call_id))
    # To be cancelled already is what the caller asked for.
    is_cancelled = settled.outcome is Outcome.ALREADY_CANCELLED
    outcome = Outcome.CANCELLED if is_cancelled else settled.outcome
    return _settled(wire.CancelAnswer, outcome, settled.timer)


async def _status(timers: Timers, _: Asked) -> Answer:
    status = await timers.status()
    return _answer(
        wire.StatusAnswer.model_construct(
            instance=status.instance,
            version=status.version,
            broker=status.broker,
            problems=status.problems,
            pending=status.pending,
            backlog=status.overdue,
            oldest_overdue_seconds=status.oldest_overdue_s,
            next_due_at=status.next_due_at,
            database_bytes=status.store_bytes,
            commands_per_second=status.recent.commands_per_s,
            fired_per_second=status.recent.fired_per_s,
            lateness_p50_seconds=status.recent.lateness_p50_s,
            lateness_p99_seconds=status.recent.lateness_p99_s,
        )
    )


async def _accept_clock_step(timers: Timers, _: Asked) -> Answer:
    step_s = await timers.accept_clock_step()
    return _answer(wire.ClockAnswer.model_construct(instance=timers.instance, accepted_step_seconds=step_s))


ENDPOINTS: Final = (
    Endpoint("get", _get, wire.GetRequest, wire.GetAnswer),
    Endpoint("explain", _explain, wire.ExplainRequest, wire.ExplainAnswer),
    Endpoint("list", _list, wire.ListRequest, wire.ListAnswer),
    Endpoint("schedule", _schedule, wire.ScheduleRequest, wire.ScheduleAnswer),
    Endpoint("cancel", _cancel, wire.GetRequest, wire.CancelAnswer),
    Endpoint("status", _status, wire.EmptyRequest, wire.StatusAnswer, of_tenants=False),
    Endpoint("clock-accept", _accept_clock_step, wire.EmptyRequest, wire.ClockAnswer, of_tenants=False),
)


def _page(found: list[Timer], views: list[wire.TimerView], limit: int) -> Answer:
    cursor = None
    if len(views) == limit or len(views) < len(found):
        last = found[len(views) - 1]
        cursor = None if last.due_at is None else write_cursor(last.due_at, last.service_call_id)
    return _answer(wire.ListAnswer.model_construct(timers=views, cursor=cursor))


def _fitting(views: list[wire.TimerView], max_bytes: int) -> list[wire.TimerView]:
    """Return as many timers as fit; the first one in any case, so that every page leads on."""
    sizes = accumulate(len(wire.write_model(view)) + 1 for view in views)
    return views[: max(1, sum(size <= max_bytes for size in sizes))]


def _settled(model: type[wire.ScheduleAnswer | wire.CancelAnswer], outcome: Outcome, timer: Timer) -> Answer:
    answer = model.model_validate({"outcome": outcome.value, "timer": timer_view(timer)})
    return _answer(answer, outcome.value)


def _answer(model: wire.Model, outcome: str = "ok") -> Answer:
    return Answer(wire.write_model(model), outcome)
