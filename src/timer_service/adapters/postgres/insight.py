"""Questions over tenants, on the connections that answer questions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from timer_service.adapters import rows
from timer_service.adapters.insight_pages import (
    MAX_ASKED,
    MAX_FAILING,
    MAX_LOOKED_THROUGH,
    Bounds,
    PagedInsight,
    after_prefix,
    merged_glances,
    page_sql,
    shares_of,
    text_of,
)
from timer_service.adapters.postgres.connections import Connections
from timer_service.adapters.postgres.looks import BUCKET, bucket_of
from timer_service.domain.callback import Sink
from timer_service.domain.messages import ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.timer_insight import Failing, Glance, Place, Shares, TimerFilter

_BEFORE_ALL: Final = "-infinity"
_AFTER_ALL: Final = "infinity"
_KEY: Final = ("tenant_id", "service_call_id")
_ENDED: Final = "coalesce(reached_at, cancelled_at, expired_at)"

_GET: Final = f"""
SELECT {rows.of_table("t", rows.TIMER_COLUMNS)} FROM unnest($1::text[], $2::text[]) AS wanted(tenant, id)
CROSS JOIN LATERAL (
  SELECT * FROM timer_schedules WHERE tenant_id = wanted.tenant AND service_call_id = wanted.id) AS t
"""  # noqa: S608 - constants

_FIND: Final = f"""
SELECT {rows.of_table("t", rows.TIMER_COLUMNS)} FROM unnest($1::text[]) AS wanted(tenant)
CROSS JOIN LATERAL (
  SELECT * FROM timer_schedules WHERE tenant_id = wanted.tenant AND service_call_id = $2) AS t
LIMIT $3
"""  # noqa: S608

_SEARCH: Final = f"""
SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
WHERE tenant_id = $1 AND service_call_id >= $2 AND service_call_id < $3 ORDER BY service_call_id LIMIT $4
"""  # noqa: S608

# From one tenant to the next, and never through the timers of one.
_TENANTS: Final = """
WITH RECURSIVE found(name, nth) AS (
  (SELECT tenant_id, 1 FROM timer_schedules WHERE tenant_id > $1 ORDER BY tenant_id LIMIT 1)
  UNION ALL
  SELECT (SELECT tenant_id FROM timer_schedules WHERE tenant_id > found.name ORDER BY tenant_id LIMIT 1),
    nth + 1
  FROM found WHERE found.name IS NOT NULL AND nth < $2)
SELECT name FROM found WHERE name IS NOT NULL
"""

_TENANTS_WITH_CALLBACKS: Final = _TENANTS.replace("timer_schedules", "callback_deliveries")

_FAILING: Final = """
SELECT found.tenant_id, origin, coalesce(error, ''), count(*),
  (array_agg(service_call_id ORDER BY opened_at DESC, service_call_id DESC))[1]
FROM unnest($1::text[]) AS wanted(tenant)
CROSS JOIN LATERAL (
  SELECT * FROM callback_deliveries WHERE tenant_id = wanted.tenant AND state = 'Failed'
  ORDER BY opened_at DESC, service_call_id DESC LIMIT $2) AS found
GROUP BY 1, 2, 3 ORDER BY max(opened_at) DESC, 5 DESC, 1, 2, 3
"""

_LOAD: Final = """
SELECT (SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled' AND sink = 0
          AND due_at >= since::timestamptz AND due_at < until::timestamptz)
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS span(since, until, nth) ORDER BY nth
"""
_LOAD_OF_TENANT: Final = _LOAD.replace("WHERE state", "WHERE tenant_id = $3 AND state")

# By the index of turns, which has tenant and due time; span by span, so that each is a range of it.
_COUNTED: Final = f"""
SELECT tenant_id, count(*) AS n FROM timer_schedules
WHERE state = 'Scheduled' AND sink = 0 AND {BUCKET} BETWEEN span.first AND span.last
  AND due_at >= span.since::timestamptz AND due_at < span.until::timestamptz
GROUP BY tenant_id
"""  # noqa: S608
_SHARES: Final = f"""
SELECT (nth - 1)::integer, share.*
FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[])
  WITH ORDINALITY AS span(since, until, first, last, nth), LATERAL (
    SELECT tenant_id, sum(n)::bigint AS n, (sum(sum(n)) OVER ())::bigint
    FROM ({" UNION ALL ".join(rows.for_sink(_COUNTED, sink) for sink in Sink)}) AS found
    GROUP BY tenant_id ORDER BY n DESC, tenant_id LIMIT $5) AS share
"""  # noqa: S608

_PENDING: Final = "FROM timer_schedules WHERE tenant_id = wanted.tenant AND state = 'Scheduled' AND sink = 0"
_NOW, _SOON = "$2::text::timestamptz", "$3::text::timestamptz"
_GLANCE: Final = f"""
SELECT wanted.tenant, (SELECT count(*) FROM (SELECT 1 {_PENDING} LIMIT $4) AS f),
  (SELECT count(*) FROM (SELECT 1 {_PENDING} AND due_at < {_NOW} LIMIT $4) AS f),
  (SELECT count(*) FROM (SELECT 1 {_PENDING} AND due_at >= {_NOW} AND due_at < {_SOON} LIMIT $4) AS f),
  (SELECT due_at {_PENDING} ORDER BY due_at LIMIT 1)
FROM unnest($1::text[]) WITH ORDINALITY AS wanted(tenant, nth) ORDER BY nth
"""  # noqa: S608

Question = tuple[str, list[Any]]


class PostgresInsight(PagedInsight[list[Any]]):
    """The insight into a PostgreSQL database."""

    def __init__(self, answers: Connections) -> None:
        self._answers = answers

    async def load(self, edges: Sequence[datetime], tenants: frozenset[TenantId] | None) -> Sequence[int]:
        """Count by ranges of an index."""
        moments = [rows.text(edge) for edge in edges]
        counts = [0] * (len(edges) - 1)
        for whose in [()] if tenants is None else [(tenant,) for tenant in sorted(tenants)]:
            for sink in Sink:
                sql = rows.for_sink(_LOAD_OF_TENANT if whose else _LOAD, sink)
                found = await self._answers.ask(sql, moments[:-1], moments[1:], *whose)
                counts = [count + more for count, (more,) in zip(counts, found, strict=True)]
        return counts

    async def shares(self, edges: Sequence[datetime], limit: int) -> Sequence[Shares]:
        """Count by tenant, in one pass for each sink."""
        moments, buckets = [*map(rows.text, edges)], [*map(bucket_of, edges)]
        wanted = [moments[:-1], moments[1:], buckets[:-1], buckets[1:], limit]
        return shares_of(await self._answers.ask(_SHARES, *wanted), len(edges) - 1)

    async def glance(
        self, tenants: Sequence[TenantId], now: datetime, soon: datetime, at_most: int
    ) -> Sequence[Glance]:
        """Look at the beginning of each tenant's pending timers."""
        wanted = [list(tenants), rows.text(now), rows.text(soon), at_most]
        found = [await self._answers.ask(rows.for_sink(_GLANCE, sink), *wanted) for sink in Sink]
        return merged_glances(found, at_most)

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, Timer]:
        """Search by primary key."""
        found = await self._answers.ask(_GET, [key[0] for key in keys], [key[1] for key in keys])
        return {timer.key: timer for timer in map(rows.timer, found)}

    async def search(self, tenant_id: TenantId, prefix: str, limit: int) -> Sequence[Timer]:
        """Read a range of the primary key."""
        found = await self._answers.ask(_SEARCH, tenant_id, prefix, after_prefix(prefix), limit)
        return [rows.timer(row) for row in found]

    async def find(
        self, service_call_id: ServiceCallId, tenants: frozenset[TenantId] | None, limit: int
    ) -> Sequence[Timer]:
        """Search by primary key."""
        names = await self.tenants(MAX_ASKED) if tenants is None else sorted(tenants)
        found = await self._answers.ask(_FIND, list(names), service_call_id, limit)
        return [rows.timer(row) for row in found]

    async def failing(self, tenants: frozenset[TenantId] | None, limit: int) -> Sequence[Failing]:
        """Read the end of an index for each tenant, in one question."""
        names = sorted(tenants or ())[:MAX_FAILING]
        if tenants is None:
            names = [row[0] for row in await self._answers.ask(_TENANTS_WITH_CALLBACKS, "", MAX_FAILING)]
        return [Failing(*row) for row in await self._answers.ask(_FAILING, names, limit)] if names else []

    async def tenants(self, limit: int, after: TenantId | None = None) -> Sequence[TenantId]:
        """Skip from tenant to tenant."""
        return [TenantId(row[0]) for row in await self._answers.ask(_TENANTS, after or "", limit)]

    async def _read_to(self, _: TimerFilter, bounds: Bounds) -> Place | None:
        sql, parameters = _over(bounds, f"{_ENDED}, tenant_id, service_call_id", 1)
        found = await self._answers.ask(f"{sql} OFFSET {MAX_LOOKED_THROUGH - 1}", *parameters)
        return next(((row[0], TenantId(row[1]), ServiceCallId(row[2])) for row in found), None)

    async def _ask(self, sql: str, parameters: list[Any]) -> Sequence[Any]:
        return await self._answers.ask(sql, *parameters)

    def _lists(self, wanted: TimerFilter, bounds: Bounds, columns: str, limit: int) -> list[Question]:
        if wanted.correlation_id is not None:
            return [_of_request(wanted, bounds, columns, limit)]
        if wanted.by_end:
            # So many are looked through, and those in the state are taken.
            sql, parameters = _over(bounds, "*", MAX_LOOKED_THROUGH)
            taken = f"SELECT {columns} FROM ({sql}) AS looked WHERE state = $8 LIMIT $9"  # noqa: S608
            return [(taken, [*parameters, wanted.state.value, limit])]
        if wanted.tenants is None:
            pending = "state = 'Scheduled' AND sink = 0"
            questions = [_between(columns, pending, "due_at", bounds, limit)]
            return [(rows.for_sink(sql, sink), parameters) for sql, parameters in questions for sink in Sink]
        return [
            _of_tenant(tenant, sink, wanted.state, bounds, columns, limit)
            for tenant in sorted(wanted.tenants)
            for sink in Sink
        ]


def _of_request(wanted: TimerFilter, bounds: Bounds, columns: str, limit: int) -> Question:
    where = "correlation_id = $8 AND state = $9 AND due_at IS NOT NULL"
    values: list[Any] = [wanted.correlation_id, wanted.state.value]
    if wanted.tenants is not None:
        where += " AND tenant_id = ANY($10::text[])"
        values.append(sorted(wanted.tenants))
    return _between(columns, where, "due_at", bounds, limit, values)


def _over(bounds: Bounds, columns: str, limit: int) -> Question:
    return _between(columns, "state <> 'Scheduled'", _ENDED, bounds, limit)


def _between(
    columns: str, where: str, moment: str, bounds: Bounds, limit: int, more: Sequence[Any] = ()
) -> Question:
    sql = page_sql(columns, "", where, (moment, *_KEY), descending=bounds.descending)
    numbered = {
        "lower_0": "$1::text::timestamptz",
        "lower_1": "$2::text",
        "lower_2": "$3::text",
        "upper_0": "$4::text::timestamptz",
        "upper_1": "$5::text",
        "upper_2": "$6::text",
    }
    lower, upper = bounds.lower, bounds.upper
    low = (_BEFORE_ALL, "", "") if lower is None else (rows.text(lower[0]), *lower[1:])
    high = (_AFTER_ALL, "", "") if upper is None else (rows.text(upper[0]), *upper[1:])
    return sql.format(**numbered, limit="$7"), [*low, *high, limit, *more]


def _of_tenant(
    tenant_id: TenantId, sink: Sink, state: TimerState, bounds: Bounds, columns: str, limit: int
) -> Question:
    where = "tenant_id = $6 AND state = $7 AND sink = $8"
    sql = page_sql(columns, "", where, ("due_at", "service_call_id"), descending=bounds.descending)
    numbered = {"lower_0": "$1::text::timestamptz", "lower_1": "$2::text"}
    numbered |= {"upper_0": "$3::text::timestamptz", "upper_1": "$4::text", "limit": "$5"}
    lower, upper = bounds.of_tenant(tenant_id)
    low, high = text_of(lower.at, _BEFORE_ALL), text_of(upper.at, _AFTER_ALL)
    return sql.format(**numbered), [low, lower.id, high, upper.id, limit, tenant_id, state.value, sink.value]
