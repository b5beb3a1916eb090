"""Load: what is going to be due, how much of it can be fired in time, and how late timers were."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from timer_service.adapters.http.pages.charts import bar_chart, heat_map
from timer_service.adapters.http.pages.visit import PageError, Screen, Visit
from timer_service.domain.forecast import Forecast, Span, Step, edges, forecast
from timer_service.domain.messages import TenantId
from timer_service.domain.spoken import count_text, moment_text, span_text
from timer_service.ports.health import LatenessHistory, Recent
from timer_service.ports.timer_insight import TimerInsight

MAX_STACKED: Final = 4
"""Tenants that have a shade of their own; all others share one."""
MAX_LOOKED_AT: Final = 20
"""Tenants among which the largest are looked for."""
MIN_PEAK_PER_S: Final = 100
"""A smaller peak says how little there was to do, not how much could be done."""
FRESH_S: Final = 10.0
"""For so long all viewers share what was counted."""
MAX_KEPT: Final = 32

Scope = frozenset[TenantId] | None
_Counted = tuple[Sequence[int], dict[str, Sequence[int]]]


class LoadScreen:
    """The forecast and the heat map."""

    def __init__(
        self,
        insight: TimerInsight,
        recent: Callable[[], Recent],
        history: Callable[[], LatenessHistory],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._insight = insight
        self._recent = recent
        self._history = history
        self._elapsed_s = elapsed_s
        self._kept: dict[tuple[Sequence[datetime], Scope], tuple[float, _Counted]] = {}

    async def show(self, visit: Visit) -> Screen:
        """Show what is due from now on, in minutes, hours or days."""
        span = visit.query.get("span") or Span.HOUR.value
        if span not in list(Span):
            raise PageError(400, f"The span must be one of {', '.join(Span)}.")
        tenant = visit.tenant(visit.query.get("tenant"))
        scope = visit.user.tenants if tenant is None else frozenset({tenant})
        moments = edges(visit.now, Span(span))
        totals, of_tenants = await self._count(tuple(moments), scope)
        peak = self._recent().peak_per_s
        capacity = float(peak) if peak >= MIN_PEAK_PER_S else 0.0
        ahead = forecast(moments, totals, of_tenants, capacity_per_s=capacity)
        heat = heat_map(self._history(), visit.now) if visit.user.tenants is None else None
        model = {
            "span": span,
            "spans": [(each.value, _SPANS[each]) for each in Span],
            "tenant": tenant or "",
            "summary": summary(ahead, visit.now),
            "chart": bar_chart(ahead, tenant),
            "names": [name or "others" for name, _ in ahead.steps[0].by_tenant] if ahead.steps else [],
            "capacity_per_s": capacity or None,
            "steps": [_row(step) for step in ahead.steps if step.total],
            "heat": heat,
        }
        return Screen("load.html", model, "Load", "timer-service status")

    async def _count(self, moments: Sequence[datetime], scope: Scope) -> _Counted:
        """Count once for all viewers of the same scope, and not again for a while."""
        key = (moments, scope)
        kept = self._kept.get(key)
        if kept is not None and self._elapsed_s() - kept[0] < FRESH_S:
            return kept[1]
        totals = await self._insight.load(moments, scope)
        tenants = sorted(scope) if scope is not None else await self._insight.tenants(MAX_LOOKED_AT)
        counted: dict[str, Sequence[int]] = {}
        for each in tenants[:MAX_LOOKED_AT] if len(tenants) > 1 else ():
            counted[each] = await self._insight.load(moments, frozenset({each}))
        largest = sorted(counted, key=lambda name: (-sum(counted[name]), name))[:MAX_STACKED]
        found: dict[str, Sequence[int]] = {name: counted[name] for name in largest if any(counted[name])}
        if len(tenants) == 1:
            found = {tenants[0]: totals}
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = (self._elapsed_s(), (totals, found))
        return totals, found


_SPANS: Final = {Span.HOUR: "next hour", Span.TWO_DAYS: "next 2 days", Span.MONTH: "next 30 days"}


def summary(ahead: Forecast, now: datetime) -> str:
    """Return the forecast in words: the peak, and whether it can be fired in time."""
    peak = ahead.peak
    if peak is None:
        return "Nothing is due in this time."
    length = span_text(peak.end - peak.start)
    told = (
        f"{count_text(ahead.total, 'timer')} due; the most in {length} is {peak.total:,}, "
        f"from {moment_text(peak.start, now)}. "
    )
    if not ahead.capacity_per_s:
        return told + "How many can be fired per second was not measured yet: there was no burst so far."
    told += f"Up to {ahead.capacity_per_s:,.0f} per second were fired. "
    late = ahead.latest
    if late is not None:
        return (
            told + f"The last ones before {moment_text(late.end, now)} are about {late.late_s:,.0f} s late."
        )
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
