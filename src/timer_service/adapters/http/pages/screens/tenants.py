"""Tenants: who has timers, and how many are to come."""

from datetime import timedelta
from typing import Final

from timer_service.adapters.http.pages.visit import Screen, Visit, address, by_curl
from timer_service.ports.timer_insight import TenantInsight

PAGE: Final = 20
MAX_COUNTED: Final = 1_000
"""Enough to tell who is large; a count of every tenant's timers would cost what there is."""
HOUR: Final = timedelta(hours=1)


class TenantsScreen:
    """The tenants, by name."""

    def __init__(self, insight: TenantInsight) -> None:
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
            "tenants": await self._insight.glance(names, visit.now, visit.now + HOUR, MAX_COUNTED),
            "max_counted": MAX_COUNTED,
            "next": address("tenants", after=names[-1]) if more else None,
            "first": address("tenants") if after else None,
        }
        return Screen("tenants.html", model, "Tenants", by_curl("tenants", after=after))
