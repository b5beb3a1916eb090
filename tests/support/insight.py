"""The questions that the page asks a store, for tests of what each of them costs."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from tests.support.timers import at, call, correlation
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_insight import Insight, TimerFilter

FEW, MANY = 2_400, 7_200
"""Pending timers and as many that have fired; more than are looked through for one page."""
BIG, SMALL = TenantId("big"), TenantId("small")
REACHED, CANCELLED = TimerState.REACHED, TimerState.CANCELLED
_SPAN = (at(0), at(0) + timedelta(minutes=100))
_DEEP = at(60 * FEW // 2), BIG, call("")


def of(*tenants: TenantId, state: TimerState = TimerState.SCHEDULED) -> TimerFilter:
    """Return what is listed for some tenants; for all if none is named."""
    return TimerFilter(frozenset(tenants) or None, state)


QUESTIONS: dict[str, Callable[[Insight], Awaitable[object]]] = {
    "page": lambda insight: insight.page(of(), 50),
    "deep": lambda insight: insight.page(of(), 50, after=_DEEP),
    "back": lambda insight: insight.page(of(), 50, before=_DEEP),
    "page of tenant": lambda insight: insight.page(of(BIG), 50, after=_DEEP),
    "fired": lambda insight: insight.page(of(state=REACHED), 50),
    "cancelled": lambda insight: insight.page(of(state=CANCELLED), 50),
    "fired of tenant": lambda insight: insight.page(of(BIG, state=REACHED), 50),
    "request": lambda insight: insight.page(TimerFilter(correlation_id=correlation("request-1")), 50),
    "count": lambda insight: insight.count(of(), 1_000),
    "count of tenants": lambda insight: insight.count(of(BIG, SMALL), 200),
    "count fired": lambda insight: insight.count(of(state=REACHED), 1_000),
    "load": lambda insight: insight.load(_SPAN, None),
    "load of tenant": lambda insight: insight.load(_SPAN, frozenset({BIG})),
    "shares": lambda insight: insight.shares(_SPAN, 10),
    "glance": lambda insight: insight.glance([BIG, SMALL], *_SPAN, 100),
    "get": lambda insight: insight.get([(BIG, call(f"Scheduled-{n}")) for n in range(1, 100)]),
    "find": lambda insight: insight.find(call("Scheduled-9"), None, 50),
    "search": lambda insight: insight.search(BIG, "Sched", 50),
    "failing": lambda insight: insight.failing(None, 100),
    "tenants": lambda insight: insight.tenants(50),
}
"""Each about a part that is the same with some timers and with more: one is due in each minute."""
