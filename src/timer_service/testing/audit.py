"""Who did what on the page, in a list."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from timer_service.domain.messages import TenantId
from timer_service.ports.audit import KEPT_FOR, Action


class MemoryAudit:
    """Actions in a list, with the promises of the real stores except durability."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._last = 0

    async def record(self, *actions: Action) -> int:
        """Keep actions, and forget what is too old."""
        for action in actions:
            self._last += 1
            self._actions.append(replace(action, number=self._last))
        await self.forget(actions[-1].at - KEPT_FOR)
        return self._last

    async def forget(self, before: datetime) -> int:
        """Forget what was done before a moment."""
        kept = [each for each in self._actions if each.at >= before]
        gone, self._actions = len(self._actions) - len(kept), kept
        return gone

    async def get(self, number: int) -> Action | None:
        """Return one action."""
        return next((each for each in self._actions if each.number == number), None)

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int, job: int | None = None
    ) -> Sequence[Action]:
        """Return the newest actions below a number."""
        found = [
            each
            for each in reversed(self._actions)
            if each.job == job
            and (before is None or each.number < before)
            and (tenants is None or each.tenant_id in tenants)
        ]
        return found[:limit]

    async def tally(self, job: int) -> Mapping[tuple[str, str], int]:
        """Count the actions of a job."""
        return Counter((each.action, each.outcome) for each in self._actions if each.job == job)
