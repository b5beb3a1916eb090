"""Questions over tenants, on the connections that firing does not need."""

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from timer_service.adapters import rows
from timer_service.adapters.insight_pages import (
    MAX_ASKED,
    MAX_FAILING,
    MAX_LOOKED_THROUGH,
    Bounds,
    Edge,
    PagedInsight,
    after_prefix,
    merged_glances,
    page_sql,
    shares_of,
    text_of,
)
from timer_service.adapters.sqlite.questions import NOBODY, Questions
from timer_service.domain.callback import Sink
from timer_service.domain.messages import EPOCH, ServiceCallId, TenantId, TimerKey, epoch_ms
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.timer_insight import Failing, Glance, Place, Shares, TimerFilter

_BEFORE_ALL: Final = ""
_AFTER_ALL: Final = "~"
_MIN_MS: Final = -(2**63)
_MAX_MS: Final = 2**63 - 1
_KEY: Final = ("tenant_id", "service_call_id")
_ENDED: Final = "coalesce(reached_at, cancelled_at, expired_at)"

_GET: Final = f"""
SELECT {rows.of_table("t", rows.TIMER_COLUMNS)} FROM json_each(:keys) AS wanted
CROSS JOIN timer_schedules AS t ON t.tenant_id = value ->> 0 AND t.service_call_id = value ->> 1
"""  # noqa: S608 - constants

# The timers of one id: one search for each tenant.
_FIND: Final = f"""
SELECT {rows.of_table("t", rows.TIMER_COLUMNS)} FROM json_each(:tenants) AS wanted
CROSS JOIN timer_schedules AS t ON t.tenant_id = wanted.value AND t.service_call_id = :id LIMIT :limit
"""  # noqa: S608

_SEARCH: Final = f"""
SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
WHERE tenant_id = :tenant AND service_call_id >= :first AND service_call_id < :last
ORDER BY service_call_id LIMIT :limit
"""  # noqa: S608

# From one tenant to the next, and never through the timers of one.
_TENANTS: Final = """
WITH RECURSIVE found(name) AS (
  SELECT min(tenant_id) FROM timer_schedules WHERE tenant_id > :after
  UNION ALL
  SELECT (SELECT min(tenant_id) FROM timer_schedules WHERE tenant_id > found.name) FROM found
  WHERE found.name IS NOT NULL LIMIT :limit)
SELECT name FROM found WHERE name IS NOT NULL
"""

_TENANTS_WITH_CALLBACKS: Final = _TENANTS.replace("timer_schedules", "callback_deliveries")

# What stands beside max() is of the row that has the maximum.
_FAILING: Final = """
SELECT tenant_id, origin, error, count(*), service_call_id, max(opened_at || service_call_id) FROM (
  SELECT d.tenant_id, d.origin, coalesce(d.error, '') AS error, d.service_call_id, d.opened_at
  FROM json_each(:tenants) AS wanted
  CROSS JOIN callback_deliveries AS d ON d.tenant_id = wanted.value AND d.service_call_id IN (
    SELECT service_call_id FROM callback_deliveries INDEXED BY callback_deliveries_by_state
    WHERE tenant_id = wanted.value AND state = 'Failed'
    ORDER BY opened_at DESC, service_call_id DESC LIMIT :limit))
GROUP BY 1, 2, 3 ORDER BY 6 DESC, 1, 2, 3
"""

_LOAD: Final = """
SELECT (SELECT count(*) FROM timer_schedules INDEXED BY timer_schedules_due
        WHERE sink = 0 AND pending_due_ms >= value ->> 0 AND pending_due_ms < value ->> 1)
FROM json_each(:spans) ORDER BY key
"""
_LOAD_OF_TENANT: Final = """
SELECT (SELECT count(*) FROM timer_schedules INDEXED BY timer_schedules_pending
        WHERE sink = 0 AND tenant_id = :tenant AND pending_due_ms >= value ->> 0
          AND pending_due_ms < value ->> 1)
FROM json_each(:spans) ORDER BY key
"""

# By an index that has all that is asked for, in one pass for each sink.
_COUNTED: Final = """
SELECT key AS nth, tenant_id, count(*) AS n
FROM json_each(:spans) CROSS JOIN timer_schedules INDEXED BY timer_schedules_due
WHERE sink = 0 AND pending_due_ms >= value ->> 0 AND pending_due_ms < value ->> 1
GROUP BY key, tenant_id
"""
_SHARES: Final = f"""
SELECT nth, tenant_id, n, total FROM (
  SELECT nth, tenant_id, sum(n) AS n, sum(sum(n)) OVER (PARTITION BY nth) AS total,
    row_number() OVER (PARTITION BY nth ORDER BY sum(n) DESC, tenant_id) AS place
  FROM ({" UNION ALL ".join(rows.for_sink(_COUNTED, sink) for sink in Sink)})
  GROUP BY nth, tenant_id)
WHERE place <= :limit
"""  # noqa: S608

_PENDING: Final = """
FROM timer_schedules INDEXED BY timer_schedules_pending
WHERE sink = 0 AND tenant_id = value AND pending_due_ms IS NOT NULL
"""
_GLANCE: Final = f"""
SELECT value, (SELECT count(*) FROM (SELECT 1 {_PENDING} LIMIT :most)),
  (SELECT count(*) FROM (SELECT 1 {_PENDING} AND pending_due_ms < :now LIMIT :most)),
  (SELECT count(*) FROM (
    SELECT 1 {_PENDING} AND pending_due_ms >= :now AND pending_due_ms < :soon LIMIT :most)),
  (SELECT min(pending_due_ms) {_PENDING})
FROM json_each(:tenants) ORDER BY key
"""  # noqa: S608

COUNTING: Final = " "
"""Who counts what is to come: nobody who looks at something waits until a million timers are counted."""

Question = tuple[str, dict[str, Any]]


class SqliteInsight(PagedInsight[dict[str, Any]]):
    """The insight into a SQLite file."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def load(self, edges: Sequence[datetime], tenants: frozenset[TenantId] | None) -> Sequence[int]:
        """Count by ranges of an index that has all that is asked for."""
        spans = _spans(edges)
        counts = [0] * (len(edges) - 1)
        for tenant_id in [NOBODY] if tenants is None else tenants:
            for sink in Sink:
                sql = rows.for_sink(_LOAD if tenants is None else _LOAD_OF_TENANT, sink)
                found = await self._ask(sql, {"spans": spans, "tenant": tenant_id}, COUNTING)
                counts = [count + more for count, (more,) in zip(counts, found, strict=True)]
        return counts

    async def shares(self, edges: Sequence[datetime], limit: int) -> Sequence[Shares]:
        """Count by tenant, in one pass for each sink."""
        wanted = {"spans": _spans(edges), "limit": limit}
        return shares_of(await self._ask(_SHARES, wanted, COUNTING), len(edges) - 1)

    async def glance(
        self, tenants: Sequence[TenantId], now: datetime, soon: datetime, at_most: int
    ) -> Sequence[Glance]:
        """Look at the beginning of each tenant's pending timers."""
        wanted = {"tenants": json.dumps(list(tenants)), "most": at_most}
        wanted |= {"now": epoch_ms(now), "soon": epoch_ms(soon)}
        found = [await self._ask(rows.for_sink(_GLANCE, sink), wanted) for sink in Sink]
        dated = [[(*row[:4], None if row[4] is None else _moment(row[4])) for row in each] for each in found]
        return merged_glances(dated, at_most)

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, Timer]:
        """Search by primary key."""
        found = map(rows.timer, await self._ask(_GET, {"keys": json.dumps(list(keys))}))
        return {timer.key: timer for timer in found}

    async def find(
        self, service_call_id: ServiceCallId, tenants: frozenset[TenantId] | None, limit: int
    ) -> Sequence[Timer]:
        """Search by primary key, tenant by tenant."""
        names = await self.tenants(MAX_ASKED) if tenants is None else sorted(tenants)
        wanted = {"tenants": json.dumps(names), "id": service_call_id, "limit": limit}
        return [rows.timer(row) for row in await self._ask(_FIND, wanted)]

    async def search(self, tenant_id: TenantId, prefix: str, limit: int) -> Sequence[Timer]:
        """Read a range of the primary key."""
        span = {"first": prefix, "last": after_prefix(prefix), "tenant": tenant_id, "limit": limit}
        return [rows.timer(row) for row in await self._ask(_SEARCH, span)]

    async def failing(self, tenants: frozenset[TenantId] | None, limit: int) -> Sequence[Failing]:
        """Read the end of an index for each tenant, in one question."""
        names = sorted(tenants or ())[:MAX_FAILING]
        if tenants is None:
            found = await self._ask(_TENANTS_WITH_CALLBACKS, {"after": "", "limit": MAX_FAILING})
            names = [row[0] for row in found]
        wanted = {"tenants": json.dumps(names), "limit": limit}
        return [Failing(*row[:5]) for row in await self._ask(_FAILING, wanted)] if names else []

    async def tenants(self, limit: int, after: TenantId | None = None) -> Sequence[TenantId]:
        """Skip from tenant to tenant."""
        return [TenantId(row[0]) for row in await self._ask(_TENANTS, {"after": after or "", "limit": limit})]

    async def _read_to(self, wanted: TimerFilter, bounds: Bounds) -> Place | None:
        sql, parameters = _over(bounds, f"{_ENDED}, tenant_id, service_call_id", wanted, 1)
        found = await self._ask(f"{sql} OFFSET {MAX_LOOKED_THROUGH - 1}", parameters)
        return next((_place(row) for row in found), None)

    async def _ask(self, sql: str, parameters: dict[str, Any], who: str = NOBODY) -> list[tuple[Any, ...]]:
        return await self._questions.ask(who, sql, parameters)

    def _lists(self, wanted: TimerFilter, bounds: Bounds, columns: str, limit: int) -> list[Question]:
        if wanted.correlation_id is not None:
            return [_of_request(wanted, bounds, columns, limit)]
        if wanted.by_end:
            return [_taken(wanted, bounds, columns, limit)]
        if wanted.tenants is None:
            return [_pending(sink, bounds, columns, limit) for sink in Sink]
        of = _pending_of if wanted.state is TimerState.SCHEDULED else _over_of
        return [
            of(tenant, sink, wanted, bounds, columns, limit)
            for tenant in sorted(wanted.tenants)
            for sink in Sink
        ]


def _pending(sink: Sink, bounds: Bounds, columns: str, limit: int) -> Question:
    where = "sink = 0 AND pending_due_ms IS NOT NULL"
    sql = _sql(columns, "timer_schedules_due", where, ("pending_due_ms", *_KEY), bounds)
    return rows.for_sink(sql, sink), _between(bounds, limit) | {
        "lower_0": _MIN_MS if bounds.lower is None else epoch_ms(bounds.lower[0]),
        "upper_0": _MAX_MS if bounds.upper is None else epoch_ms(bounds.upper[0]),
    }


def _taken(wanted: TimerFilter, bounds: Bounds, columns: str, limit: int) -> Question:
    """Search a bounded number, by key and state alone, and take those in the state."""
    looked, parameters = _over(bounds, "tenant_id, service_call_id, state", wanted, MAX_LOOKED_THROUGH)
    sql = f"SELECT * FROM ({looked}) WHERE state = :state LIMIT :taken"  # noqa: S608
    if columns == rows.TIMER_COLUMNS:
        whole = rows.of_table("timer", columns)
        whose = "CROSS JOIN timer_schedules AS timer USING (tenant_id, service_call_id)"
        sql = f"SELECT {whole} FROM ({sql}) {whose}"  # noqa: S608
    return sql, parameters | {"taken": limit}


def _over(bounds: Bounds, columns: str, wanted: TimerFilter, limit: int) -> Question:
    sql = _sql(columns, "timer_schedules_ended", "state <> 'Scheduled'", (_ENDED, *_KEY), bounds)
    return sql, _between(bounds, limit) | {"state": wanted.state.value}


def _of_request(wanted: TimerFilter, bounds: Bounds, columns: str, limit: int) -> Question:
    where = "correlation_id = :correlation AND state = :state AND due_at IS NOT NULL"
    more: dict[str, Any] = {"correlation": wanted.correlation_id, "state": wanted.state.value}
    if wanted.tenants is not None:
        where += " AND tenant_id IN (SELECT value FROM json_each(:tenants))"
        more["tenants"] = json.dumps(sorted(wanted.tenants))
    sql = _sql(columns, "timer_schedules_by_correlation", where, ("due_at", *_KEY), bounds)
    return sql, _between(bounds, limit) | more


def _pending_of(
    tenant_id: TenantId, sink: Sink, _: TimerFilter, bounds: Bounds, columns: str, limit: int
) -> Question:
    where = "sink = 0 AND tenant_id = :tenant AND pending_due_ms IS NOT NULL"
    order = ("pending_due_ms", "service_call_id")
    sql = _sql(columns, "timer_schedules_pending", where, order, bounds)
    lower, upper = bounds.of_tenant(tenant_id)
    return rows.for_sink(sql, sink), {
        "tenant": tenant_id,
        "lower_0": _ms(lower, _MIN_MS),
        "lower_1": lower.id,
        "upper_0": _ms(upper, _MAX_MS),
        "upper_1": upper.id,
        "limit": limit,
    }


def _over_of(
    tenant_id: TenantId, sink: Sink, wanted: TimerFilter, bounds: Bounds, columns: str, limit: int
) -> Question:
    where = "tenant_id = :tenant AND state = :state AND state <> 'Scheduled' AND sink = :sink"
    sql = _sql(columns, "timer_schedules_over", where, ("due_at", "service_call_id"), bounds)
    lower, upper = bounds.of_tenant(tenant_id)
    return sql, {
        "tenant": tenant_id,
        "state": wanted.state.value,
        "sink": sink.value,
        "lower_0": text_of(lower.at, _BEFORE_ALL),
        "lower_1": lower.id,
        "upper_0": text_of(upper.at, _AFTER_ALL),
        "upper_1": upper.id,
        "limit": limit,
    }


def _sql(columns: str, index: str, where: str, order: Sequence[str], bounds: Bounds) -> str:
    sql = page_sql(columns, f"INDEXED BY {index}", where, order, descending=bounds.descending)
    return sql.replace("{", ":").replace("}", "")


def _between(bounds: Bounds, limit: int) -> dict[str, Any]:
    lower, upper = bounds.lower, bounds.upper
    low = (_BEFORE_ALL, "", "") if lower is None else (rows.text(lower[0]), *lower[1:])
    high = (_AFTER_ALL, "", "") if upper is None else (rows.text(upper[0]), *upper[1:])
    lows = {f"lower_{n}": each for n, each in enumerate(low)}
    return lows | {f"upper_{n}": each for n, each in enumerate(high)} | {"limit": limit}


def _ms(edge: Edge, otherwise: int) -> int:
    return otherwise if edge.at is None else epoch_ms(edge.at)


def _spans(edges: Sequence[datetime]) -> str:
    return json.dumps(list(itertools.pairwise(map(epoch_ms, edges))))


def _moment(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _place(row: Sequence[Any]) -> Place:
    at = rows.moment(row[0])
    assert at is not None
    return at, TenantId(row[1]), ServiceCallId(row[2])
