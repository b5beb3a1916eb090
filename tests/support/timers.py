"""Commands and timers for tests of the core: only what a test is about is spelled out."""

from datetime import datetime, timedelta

from timer_service.domain.messages import (
    CancelTimer,
    Command,
    CorrelationId,
    DueTimeReached,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    TimerExpired,
    Trace,
)
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import TimerStore
from timer_service.testing import START

ACME = TenantId("acme")
GLOBEX = TenantId("globex")


def at(seconds: float) -> datetime:
    """Return a moment so far from the start of the test's clock, on a whole millisecond."""
    return START + timedelta(milliseconds=round(seconds * 1000))


def call(name: str) -> ServiceCallId:
    return ServiceCallId(name)


def correlation(name: str) -> CorrelationId:
    return CorrelationId(name)


def schedule(
    name: str = "order-1",
    due_s: float = 60,
    *,
    tenant: str = ACME,
    number: int = 1,
    stream: int = 1,
    correlation: str | None = None,
    trace: str | None = None,
    if_absent: bool = False,
    expires_after_s: float | None = None,
) -> ScheduleTimer:
    """Return a ScheduleTimer, the `number`th message of its stream."""
    return ScheduleTimer(
        tenant_id=TenantId(tenant),
        service_call_id=ServiceCallId(name),
        due_at=at(due_s),
        correlation_id=None if correlation is None else CorrelationId(correlation),
        position=Position(stream, number),
        trace=None if trace is None else Trace(trace, None),
        if_absent=if_absent,
        expires_after_ms=None if expires_after_s is None else round(expires_after_s * 1000),
    )


def cancel(name: str = "order-1", *, tenant: str = ACME, number: int = 2, stream: int = 1) -> CancelTimer:
    """Return a CancelTimer, the `number`th message of its stream."""
    return CancelTimer(TenantId(tenant), ServiceCallId(name), Position(stream, number))


def scheduled_timer(
    name: str = "order-1",
    due_s: float = 60,
    *,
    tenant: str = ACME,
    generation: int = 1,
    registered_s: float = 0,
    correlation: str | None = None,
    number: int = 1,
    stream: int = 1,
    correlated_by: int | None = None,
) -> Timer:
    """Return a timer that waits for its due time; its newest command has set all that it is, unless said."""
    position = Position(stream, number)
    return Timer(
        tenant_id=TenantId(tenant),
        service_call_id=ServiceCallId(name),
        state=TimerState.SCHEDULED,
        due_at=at(due_s),
        generation=generation,
        registered_at=at(registered_s),
        correlation_id=None if correlation is None else CorrelationId(correlation),
        reached_at=None,
        cancelled_at=None,
        position=position,
        due_position=position,
        correlation_position=None if correlation is None else Position(stream, correlated_by or number),
    )


def reached(
    name: str = "order-1",
    due_s: float = 0,
    *,
    tenant: str = ACME,
    reached_s: float = 0,
    generation: int = 1,
    correlation: str | None = None,
) -> DueTimeReached:
    """Return the event of one firing."""
    return DueTimeReached(
        tenant_id=TenantId(tenant),
        service_call_id=ServiceCallId(name),
        due_at=at(due_s),
        at=at(reached_s),
        generation=generation,
        correlation_id=None if correlation is None else CorrelationId(correlation),
    )


def expired(
    name: str = "order-1", due_s: float = 0, *, expired_s: float, generation: int = 1
) -> TimerExpired:
    """Return the event in place of one firing."""
    return TimerExpired(ACME, ServiceCallId(name), at(due_s), at(expired_s), generation, None)


async def asked(store: TimerStore, *commands: Command, now: datetime) -> list[Outcome]:
    """Make requests of a store together, and return what each did."""
    return [decided.outcome for decided in await store.decide(commands, now)]
