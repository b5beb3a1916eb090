"""A few places, shared between tenants so that none of them can take those of all others."""

import asyncio
from collections import Counter, OrderedDict, deque

from timer_service.domain.messages import TenantId


class Places:
    """Places that tenants take in turns.

    A tenant may have a few of them, and never more than are free: as with the slots of callbacks, it takes
    very many tenants to leave nothing for a newcomer. Who waits is bounded by who asks.
    """

    def __init__(self, most: int, most_of_tenant: int) -> None:
        self._free = most
        self._most_of_tenant = most_of_tenant
        self._taken: Counter[TenantId] = Counter()
        self._waiting: OrderedDict[TenantId, deque[asyncio.Future[None]]] = OrderedDict()
        """By tenant, the one that was served longest ago first."""

    async def take(self, tenant_id: TenantId) -> None:
        """Wait for a place, which the caller gives back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(tenant_id, turn)
            else:
                self.give_back(tenant_id)
            raise

    def give_back(self, tenant_id: TenantId) -> None:
        """Free a place of a tenant."""
        self._free += 1
        self._taken[tenant_id] -= 1
        if not self._taken[tenant_id]:
            del self._taken[tenant_id]
        self._call_next()

    def _call_next(self) -> None:
        # Those that are passed over hold places, so there are never many.
        while self._free and (tenant_id := next(filter(self._may_take, self._waiting), None)) is not None:
            turn = self._waiting[tenant_id][0]
            if turn.cancelled():  # Who waited has gone, and is not told before the next round of the loop.
                self._leave(tenant_id, turn)
                continue
            self._free -= 1
            self._taken[tenant_id] += 1
            self._waiting.move_to_end(tenant_id)
            self._leave(tenant_id, turn)
            turn.set_result(None)

    def _may_take(self, tenant_id: TenantId) -> bool:
        return self._taken[tenant_id] < min(self._most_of_tenant, self._free)

    def _leave(self, tenant_id: TenantId, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(tenant_id)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[tenant_id]
