"""Who did what on the page, in a list."""

from collections.abc import Sequence
from dataclasses import replace

from timer_service.domain.messages import TenantId
from timer_service.ports.audit import KEPT_FOR, Action


class MemoryAudit:
    """Actions in a list, with the promises of the real stores except durability."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._last = 0

    async def record(self, action: Action) -> None:
        """Keep an action, and forget what is too old."""
        self._last += 1
        kept = [each for each in self._actions if each.at >= action.at - KEPT_FOR]
        self._actions = [*kept, replace(action, number=self._last)]

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int
    ) -> Sequence[Action]:
        """Return the newest actions below a number."""
        found = [
            each
            for each in reversed(self._actions)
            if (before is None or each.number < before) and (tenants is None or each.tenant_id in tenants)
        ]
        return found[:limit]
