"""Load: what is going to be due, how much of it can be fired in time, and how late timers were."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from timer_service.adapters.http.pages.charts import BarChart, bar_chart, heat_map
from timer_service.adapters.http.pages.counting import Due, DueDesk
from timer_service.adapters.http.pages.render import written
from timer_service.adapters.http.pages.visit import PageError, Screen, Visit, by_curl
from timer_service.domain.forecast import Forecast, Span, Step, forecast
from timer_service.domain.spoken import count_text, span_text
from timer_service.ports.health import LatenessHistory, Recent
from timer_service.ports.timer_insight import TimerFilter, TimerInsight

MAX_STACKED: Final = 4
"""Tenants that have a shade of their own; all others share one."""
MIN_PEAK_PER_S: Final = 100
"""A smaller peak says how little there was to do, not how much could be done."""
MAX_OVERDUE: Final = 100_000
"""What is counted of a backlog."""
MAX_DRAWN: Final = 16
"""Charts that are kept."""


class LoadScreen:
    """The forecast and the heat map."""

    def __init__(
        self,
        desk: DueDesk,
        insight: TimerInsight,
        recent: Callable[[], Recent],
        history: Callable[[], LatenessHistory],
    ) -> None:
        self._desk = desk
        self._insight = insight
        self._recent = recent
        self._history = history
        self._drawn: dict[tuple[Span, str | None], tuple[Due, tuple[float, int], Forecast, BarChart]] = {}

    async def show(self, visit: Visit) -> Screen:
        """Show what is due from now on, in minutes, hours or days."""
        span = visit.query.get("span") or Span.HOUR.value
        if span not in list(Span):
            raise PageError(400, f"The span must be one of {', '.join(Span)}.")
        tenant = visit.tenant(visit.query.get("tenant"))
        scope = visit.user.tenants if tenant is None else frozenset({tenant})
        due = await self._desk.due(visit.now, Span(span), scope)
        peak = self._recent().peak_per_s
        capacity = float(peak) if peak >= MIN_PEAK_PER_S else 0.0
        ahead, chart = _NOTHING, bar_chart(_NOTHING, tenant)
        if due is not None:
            # What is overdue goes first; a bound, because it may be very many.
            overdue = await self._insight.count(TimerFilter(scope, until=due.edges[0]), MAX_OVERDUE)
            ahead, chart = self._chart(due, capacity, overdue, Span(span), tenant)
        await asyncio.sleep(0)  # What is due goes first; each of these takes half a millisecond.
        heat = heat_map(self._history(), visit.now) if visit.user.tenants is None else None
        model = {
            "span": span,
            "spans": [(each.value, _SPANS[each]) for each in Span],
            "tenant": tenant or "",
            "summary": BEING_COUNTED
            if due is None
            else summary(ahead, lambda moment: written(moment, visit.look)),
            "counted_at": None if due is None else due.at,
            "chart": chart,
            "names": [name or "others" for name, _ in ahead.steps[0].by_tenant] if ahead.steps else [],
            "capacity_per_s": capacity or None,
            "steps": [_row(step) for step in ahead.steps if step.total],
            "heat": heat,
        }
        refresh = {"refresh": "1"} if due is None else {}
        return Screen("load.html", model, "Load", by_curl("load", span=span, tenant=tenant), headers=refresh)

    def _chart(
        self, due: Due, capacity: float, overdue: int, span: Span, tenant: str | None
    ) -> tuple[Forecast, BarChart]:
        """Return what was drawn of this count before, for all who look at it; else draw it."""
        drawn = self._drawn.get((span, tenant))
        if drawn is None or drawn[0] is not due or drawn[1] != (capacity, overdue):
            largest = due.largest(MAX_STACKED)
            ahead = forecast(due.edges, due.totals, largest, capacity_per_s=capacity, overdue=overdue)
            drawn = due, (capacity, overdue), ahead, bar_chart(ahead, tenant)
            if len(self._drawn) >= MAX_DRAWN:
                self._drawn.clear()
            self._drawn[span, tenant] = drawn
        return drawn[2:]


BEING_COUNTED: Final = "This is being counted; the page shows it in a moment."
_NOTHING: Final = Forecast((), 0.0)
_SPANS: Final = {Span.HOUR: "next hour", Span.TWO_DAYS: "next 2 days", Span.MONTH: "next 30 days"}


def summary(ahead: Forecast, told_at: Callable[[datetime], str]) -> str:
    """Return the forecast in words: the peak, and whether it can be fired in time."""
    peak = ahead.peak
    if peak is None:
        return "Nothing is due in this time."
    length = span_text(peak.end - peak.start)
    told = (
        f"{count_text(ahead.total, 'timer')} due; the most in {length} is {peak.total:,}, "
        f"from {told_at(peak.start)}. "
    )
    if not ahead.capacity_per_s:
        return told + "How many can be fired per second was not measured yet: there was no burst so far."
    told += f"Up to {ahead.capacity_per_s:,.0f} per second were fired. "
    late = ahead.latest
    if late is not None:
        return told + f"The last ones before {told_at(late.end)} are about {late.late_s:,.0f} s late."
    worst = max(step.at_once_late_s for step in ahead.steps)
    if worst < 1:
        return told + "Nothing is expected to be late."
    return (
        told + f"Nothing is expected to be late, unless a step is due all at once: then up to {worst:,.0f} s."
    )


def _row(step: Step) -> dict[str, Any]:
    return {
        "start": step.start,
        "end": step.end,
        "total": step.total,
        "by_tenant": [(name or "others", count) for name, count in step.by_tenant if count],
        "backlog": step.backlog,
        "late_s": step.late_s,
    }
