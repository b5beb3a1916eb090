"""Which tenants have something due, found a bounded part at a time and remembered from look to look."""

from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from timer_service.adapters.rows import for_sink
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.domain.callback import Sink
from timer_service.domain.messages import TenantId, TimerKey, epoch_ms
from timer_service.domain.timer import Timer, TimerState

# Where a scan of a number of due timers ends; nothing if it reaches the present.
SCAN_END: Final = """
SELECT pending_due_ms, tenant_id, service_call_id FROM timer_schedules INDEXED BY timer_schedules_due
WHERE sink = 0
  AND (pending_due_ms, tenant_id, service_call_id) > (:after_due, :after_tenant, :after_call)
  AND pending_due_ms <= :now_ms
ORDER BY pending_due_ms, tenant_id, service_call_id
LIMIT 1 OFFSET :passed
"""

# Whose the due timers of a scan are.
SCAN: Final = """
SELECT DISTINCT tenant_id FROM timer_schedules INDEXED BY timer_schedules_due
WHERE sink = 0
  AND (pending_due_ms, tenant_id, service_call_id) > (:after_due, :after_tenant, :after_call)
  AND pending_due_ms <= :end_due
  AND (pending_due_ms, tenant_id, service_call_id) <= (:end_due, :end_tenant, :end_call)
"""

# From tenant to tenant among those with pending timers, two searches each: who has something due, and where
# the walk ends.
WALK: Final = """
WITH RECURSIVE tenant(id, visit) AS (
  SELECT (SELECT min(tenant_id) FROM timer_schedules INDEXED BY timer_schedules_pending
          WHERE sink = 0 AND pending_due_ms IS NOT NULL AND tenant_id > :after_tenant), 1
  UNION ALL
  SELECT (SELECT min(tenant_id) FROM timer_schedules INDEXED BY timer_schedules_pending
          WHERE sink = 0 AND pending_due_ms IS NOT NULL AND tenant_id > tenant.id), visit + 1
  FROM tenant WHERE tenant.id IS NOT NULL AND visit < :visits)
SELECT id, is_due FROM (
  SELECT id, visit, EXISTS (SELECT 1 FROM timer_schedules INDEXED BY timer_schedules_pending
                            WHERE sink = 0 AND tenant_id = tenant.id AND pending_due_ms <= :now_ms) AS is_due
  FROM tenant)
WHERE is_due OR id IS NULL OR visit = :visits
ORDER BY visit
"""

_Place = tuple[int, str, str]
"""A place in the order of due timers: due time, tenant, service call."""
_START: Final[_Place] = (-(2**63), "", "")
_AFTER_EVERY_TENANT: Final = "~"

Read = Callable[[str, dict[str, Any]], Awaitable[list[tuple[Any, ...]]]]


class DueTenants:
    """The tenants that may have something due, in the order in which they take turns.

    What it promises: a tenant with a due timer up to the known place is among them, or among those noted
    since the look began. Two ways lead there, side by side: along the due timers, which is short where few
    are due, and from tenant to tenant, which is short where few have pending timers. What comes after the
    known place is found as time passes it; what is accepted before it is noted by its writer.
    """

    def __init__(self, read: Read, limits: SqliteLimits, sink: Sink = Sink.BUS) -> None:
        self._read = read
        self._sink = sink
        self._scan_end_sql, self._scan_sql, self._walk_sql = (
            for_sink(sql, sink) for sql in (SCAN_END, SCAN, WALK)
        )
        self._limits = limits
        self._tenants: dict[TenantId, None] = {}
        self._noted: set[TenantId] = set()
        """Kept apart until the next look begins: the one under way may not have seen their timers."""
        self._known: _Place = _START
        self._walked: tuple[str, int] | None = None
        """The last tenant of a walk under way, and the moment up to which it will have found everybody."""
        self._until = datetime.min.replace(tzinfo=UTC)
        self._held_timers: frozenset[TimerKey] = frozenset()

    def begin(self, now: datetime, held_timers: frozenset[TimerKey]) -> None:
        """Begin a look: from here on, a timer accepted with a due time up to `now` is noted."""
        self._until = max(self._until, now)
        self._go_back_to(epoch_ms(now))
        self.note(tenant_id for tenant_id, _ in self._held_timers - held_timers)
        self._held_timers = held_timers
        self._tenants.update(dict.fromkeys(sorted(self._noted)))
        self._noted.clear()

    def note(self, tenants: Iterable[TenantId]) -> None:
        """Remember tenants whose timers may be due, for the next look."""
        self._noted.update(tenants)

    def note_saved(self, timers: Iterable[Timer]) -> None:
        """Remember whose timers were due already when they were saved; called once that is done."""
        self.note(
            timer.tenant_id
            for timer in timers
            if timer.state is TimerState.SCHEDULED
            and timer.sink is self._sink
            and timer.due_at is not None
            and timer.due_at <= self._until
        )

    def add(self, tenants: Iterable[TenantId]) -> None:
        """Let tenants that have something due take turns in this look."""
        self._tenants.update(dict.fromkeys(tenants))

    async def discover(self, now_ms: int) -> bool:
        """Learn of more tenants, a bounded step; return whether all that have something due are known."""
        if self._known < _end_of(now_ms):
            await self._scan(now_ms)
        if self._known < _end_of(now_ms):
            await self._walk(now_ms)
        else:
            self._walked = None
        return self._known >= _end_of(now_ms)

    def choose(self, count: int, held_back: Collection[TenantId]) -> tuple[list[TenantId], bool]:
        """Return those whose turn it is, and whether others wait for theirs."""
        waiting = (tenant_id for tenant_id in self._tenants if tenant_id not in held_back)
        chosen = list(islice(waiting, count + 1))
        return chosen[:count], len(chosen) > count

    def took_turns(self, chosen: Iterable[TenantId], with_more: Collection[TenantId]) -> None:
        """Put those that have more at the end of the line, and forget the others."""
        for tenant_id in chosen:
            del self._tenants[tenant_id]
        self.add(with_more)

    def found_all(self, now_ms: int) -> None:
        """Forget everybody: a look found all that was due."""
        self._tenants.clear()
        self._known = max(self._known, _end_of(now_ms))
        self._walked = None

    def _go_back_to(self, now_ms: int) -> None:
        """Find again, as time passes it, what comes after this moment: a look at an earlier one forgets it.

        The clock was set back, or two looks that began one after the other came here in another order.
        """
        self._known = min(self._known, _end_of(now_ms))
        if self._walked is not None:
            last, until = self._walked
            self._walked = (last, min(until, now_ms))

    async def _scan(self, now_ms: int) -> None:
        due, tenant, call = self._known
        place = {"after_due": due, "after_tenant": tenant, "after_call": call}
        ends = await self._read(
            self._scan_end_sql, {**place, "now_ms": now_ms, "passed": self._limits.max_scanned_rows - 1}
        )
        end = ends[0] if ends else _end_of(now_ms)
        span = {**place, "end_due": end[0], "end_tenant": end[1], "end_call": end[2]}
        self.add(row[0] for row in await self._read(self._scan_sql, span))
        self._known = (end[0], end[1], end[2])

    async def _walk(self, now_ms: int) -> None:
        after, until = self._walked or ("", now_ms)
        # Not earlier than when the walk began, even if the clock was set back.
        latest_ms = max(now_ms, until)
        visits = self._limits.max_visited_tenants
        walk = {"after_tenant": after, "visits": visits, "now_ms": latest_ms}
        rows = await self._read(self._walk_sql, walk)
        self.add(tenant_id for tenant_id, is_due in rows if is_due)
        last = rows[-1][0] if rows else None
        self._walked = None if last is None else (last, until)
        if last is None:
            self._known = max(self._known, _end_of(until))


def _end_of(moment_ms: int) -> _Place:
    return (moment_ms, _AFTER_EVERY_TENANT, "")
