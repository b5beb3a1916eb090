"""Questions over tenants, for timers in a dictionary."""

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from timer_service.adapters.insight_pages import bounds_of, page_of
from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.messages import ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.timer_insight import Failing, Glance, Place, Shares, TimerFilter, TimerPage


class MemoryInsight:
    """The insight into a dictionary."""

    def __init__(self, timers: Mapping[TimerKey, Timer], deliveries: Mapping[TimerKey, Delivery]) -> None:
        self._timers = timers
        self._deliveries = deliveries

    async def page(
        self, wanted: TimerFilter, limit: int, *, after: Place | None = None, before: Place | None = None
    ) -> TimerPage:
        """Look at every timer."""
        found = self._between(wanted, after, before)
        return page_of(wanted, found, limit, after=after, before=before)

    async def count(self, wanted: TimerFilter, at_most: int) -> int:
        """Count them all."""
        return min(len(self._between(wanted, None, None)), at_most)

    async def load(self, edges: Sequence[datetime], tenants: frozenset[TenantId] | None) -> Sequence[int]:
        """Count each span."""
        pairs = itertools.pairwise(edges)
        return [
            len(self._between(TimerFilter(tenants, since=since, until=until), None, None))
            for since, until in pairs
        ]

    async def shares(self, edges: Sequence[datetime], limit: int) -> Sequence[Shares]:
        """Count each span by tenant."""
        return [self._shares(since, until, limit) for since, until in itertools.pairwise(edges)]

    def _shares(self, since: datetime, until: datetime, limit: int) -> Shares:
        found = self._between(TimerFilter(since=since, until=until), None, None)
        of = Counter(timer.tenant_id for timer in found)
        return Shares(len(found), dict(sorted(of.items(), key=lambda each: (-each[1], each[0]))[:limit]))

    async def glance(
        self, tenants: Sequence[TenantId], now: datetime, soon: datetime, at_most: int
    ) -> Sequence[Glance]:
        """Look at every timer of each."""
        return [self._glance(tenant, now, soon, at_most) for tenant in tenants]

    def _glance(self, tenant_id: TenantId, now: datetime, soon: datetime, at_most: int) -> Glance:
        dues = [each.due_at for each in self._between(TimerFilter(frozenset({tenant_id})), None, None)]
        due = sorted(each for each in dues if each is not None)
        overdue, within = bisect_left(due, now), bisect_left(due, soon)
        pending, late, near = (min(count, at_most) for count in (len(due), overdue, within - overdue))
        return Glance(tenant_id, pending, late, near, due[0] if due else None)

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, Timer]:
        """Look each of them up."""
        return {key: self._timers[key] for key in keys if key in self._timers}

    async def find(
        self, service_call_id: ServiceCallId, tenants: frozenset[TenantId] | None, limit: int
    ) -> Sequence[Timer]:
        """Look at every timer."""
        found = [timer for timer in self._timers.values() if timer.service_call_id == service_call_id]
        seen = [timer for timer in found if tenants is None or timer.tenant_id in tenants]
        return sorted(seen, key=lambda timer: timer.tenant_id)[:limit]

    async def search(self, tenant_id: TenantId, prefix: str, limit: int) -> Sequence[Timer]:
        """Look at every timer."""
        found = [timer for timer in self._timers.values() if timer.tenant_id == tenant_id]
        named = [timer for timer in found if timer.service_call_id.startswith(prefix)]
        return sorted(named, key=lambda timer: timer.service_call_id)[:limit]

    async def failing(self, tenants: frozenset[TenantId] | None, limit: int) -> Sequence[Failing]:
        """Look at every delivery."""
        failed = [
            each
            for each in self._deliveries.values()
            if each.state is DeliveryState.FAILED and (tenants is None or each.tenant_id in tenants)
        ]
        groups: dict[tuple[TenantId, str, str], list[Delivery]] = defaultdict(list)
        looked_at = Counter[TenantId]()
        for each in sorted(failed, key=lambda each: (each.opened_at, each.service_call_id), reverse=True):
            looked_at[each.tenant_id] += 1
            if looked_at[each.tenant_id] <= limit:
                groups[each.tenant_id, each.origin, each.error or ""].append(each)
        return [Failing(*key, len(found), found[0].service_call_id) for key, found in groups.items()]

    async def tenants(self, limit: int, after: TenantId | None = None) -> Sequence[TenantId]:
        """Return who has timers."""
        return sorted({tenant for tenant, _ in self._timers if tenant > (after or "")})[:limit]

    def _between(self, wanted: TimerFilter, after: Place | None, before: Place | None) -> list[Timer]:
        bounds = bounds_of(wanted, after, before)
        return [
            timer
            for timer in self._timers.values()
            if timer.state is wanted.state and (timer.due_at is not None or wanted.by_end)
            if wanted.tenants is None or timer.tenant_id in wanted.tenants
            if wanted.correlation_id in (None, timer.correlation_id)
            if bounds.lower is None or wanted.place(timer) > bounds.lower
            if bounds.upper is None or wanted.place(timer) < bounds.upper
        ]
