"""Tenants: who has timers, and how many are to come."""

from datetime import timedelta
from typing import Any, Final

from timer_service.adapters.http.pages.visit import Screen, Visit, address
from timer_service.domain.messages import TenantId
from timer_service.ports.timer_insight import TimerFilter, TimerInsight

PAGE: Final = 50
MAX_COUNTED: Final = 1_000
"""Enough to tell who is large; a count of every tenant's timers would cost what there is."""
HOUR: Final = timedelta(hours=1)


class TenantsScreen:
    """The tenants, by name."""

    def __init__(self, insight: TimerInsight) -> None:
        self._insight = insight

    async def show(self, visit: Visit) -> Screen:
        """Show a page of tenants."""
        after = visit.tenant(visit.query.get("after"))
        if visit.user.tenants is None:
            names = list(await self._insight.tenants(PAGE + 1, after))
        else:
            names = sorted(tenant for tenant in visit.user.tenants if tenant > (after or ""))
        more = len(names) > PAGE
        names = names[:PAGE]
        model = {
            "tenants": [await self._tenant(tenant, visit) for tenant in names],
            "max_counted": MAX_COUNTED,
            "next": address("tenants", after=names[-1]) if more else None,
            "first": address("tenants") if after else None,
        }
        return Screen("tenants.html", model, "Tenants", "timer-service list --tenant TENANT")

    async def _tenant(self, tenant_id: TenantId, visit: Visit) -> dict[str, Any]:
        only = frozenset({tenant_id})
        nearest = await self._insight.page(TimerFilter(only), 1)
        return {
            "tenant_id": tenant_id,
            "pending": await self._insight.count(TimerFilter(only), MAX_COUNTED),
            "overdue": await self._insight.count(TimerFilter(only, until=visit.now), MAX_COUNTED),
            "next_hour": await self._insight.count(
                TimerFilter(only, since=visit.now, until=visit.now + HOUR), MAX_COUNTED
            ),
            "next_due_at": nearest.timers[0].due_at if nearest.timers else None,
        }
