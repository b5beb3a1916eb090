"""How many timers a tenant may have pending, checked where new ones come in."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from timer_service.adapters.endpoints import TIMERS_PER_REQUEST
from timer_service.adapters.http.problems import Problem
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import ScheduleTimer, TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_insight import TimerFilter, TimerInsight
from timer_service.timers import Timers

FRESH_S: Final = 5.0
"""How old a count may be; what this instance lets in meanwhile is added to it."""
MAX_COUNTED: Final = 10_000
"""Tenants whose count is remembered."""


class PendingLimit:
    """Refuses new timers of a tenant that has too many, and cancelled ones that are scheduled again."""

    def __init__(
        self, most: int, timers: Timers, insight: TimerInsight, elapsed_s: Callable[[], float]
    ) -> None:
        self._most = most
        self._timers = timers
        self._insight = insight
        self._elapsed_s = elapsed_s
        self._counts: OrderedDict[TenantId, tuple[float, int]] = OrderedDict()

    async def admit(self, commands: Sequence[ScheduleTimer]) -> None:
        """Let the commands of one request pass, or raise Problem."""
        if not self._most or not commands:
            return
        tenant_id = commands[0].tenant_id
        pending = await self._pending(tenant_id)
        if pending + len(commands) > self._most and not await self._adds_none(commands):
            detail = f"the tenant may have at most {self._most} pending timers (it has {pending})"
            # All of a batch was read to find that out.
            cost = len(commands) // TIMERS_PER_REQUEST
            headers = {"retry-after": f"{FRESH_S:.0f}"}
            raise Problem("too-many-requests", detail, headers=headers, extra_cost=cost)
        if (known := self._counts.get(tenant_id)) is not None:
            self._counts[tenant_id] = (known[0], known[1] + len(commands))

    async def _pending(self, tenant_id: TenantId) -> int:
        known = self._counts.get(tenant_id)
        if known is None or self._elapsed_s() - known[0] >= FRESH_S:
            now_s = self._elapsed_s()
            wanted = TimerFilter(tenants=frozenset({tenant_id}))
            known = self._counts[tenant_id] = (now_s, await self._insight.count(wanted, self._most))
            self._counts.move_to_end(tenant_id)
            if len(self._counts) > MAX_COUNTED:
                self._counts.popitem(last=False)
        return known[1]

    async def _adds_none(self, commands: Sequence[ScheduleTimer]) -> bool:
        """Return whether a request adds no pending timer: it may move one, or be a repetition."""
        if len(commands) > 1 and commands[0].fingerprint is None:
            return False  # A batch without a key is no repetition; to find that out costs a read for each.
        try:
            for command in commands:
                timer = await self._timers.get(command.tenant_id, command.service_call_id)
                # Not pending, and so that it will be, unless the request may only create one.
                may_change = command.expected != frozenset() and not command.if_absent
                if timer.state is TimerState.CANCELLED and may_change:
                    return False
        except TimerNotFound:
            return False
        return True
