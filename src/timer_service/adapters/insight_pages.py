"""Pages over tenants, for both databases: where one begins, where it ends, how several are one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from timer_service.adapters import rows
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.domain.timer import Timer
from timer_service.ports.timer_insight import Glance, Place, Shares, TimerFilter, TimerPage

MAX_ASKED: Final = 2_000
"""Tenants whose timers are searched for one id."""
MAX_LOOKED_THROUGH: Final = 1_000
"""Ended timers of all tenants that are read for one page of those in one state."""
MAX_FAILING: Final = 200
"""Tenants whose failed callbacks are shown together."""
_NOBODY: Final = TenantId("")
_FIRST_ID: Final = ServiceCallId("")
_LAST_ID: Final = ServiceCallId("\U0010ffff")

# A list in the order of an index, between two places.
PAGE: Final = """
SELECT {columns} FROM timer_schedules {index} WHERE {where}
  AND ({order}) > ({lower}) AND ({order}) < ({upper})
ORDER BY {ordered} LIMIT {limit}
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a list is read, and in which direction."""

    lower: Place | None
    upper: Place | None
    descending: bool

    def of_tenant(self, tenant_id: TenantId) -> tuple["Edge", "Edge"]:
        """Return the same among the timers of one tenant."""
        return _edge_of(self.lower, tenant_id), _edge_of(self.upper, tenant_id)


@dataclass(frozen=True, slots=True)
class Edge:
    """A place among the timers of one tenant."""

    at: datetime | None
    id: ServiceCallId = _FIRST_ID


P = TypeVar("P")
"""How a database takes the parameters of a question."""


class PagedInsight(ABC, Generic[P]):
    """Pages, made of what a database finds between two places."""

    async def page(
        self, wanted: TimerFilter, limit: int, *, after: Place | None = None, before: Place | None = None
    ) -> TimerPage:
        """Merge index-ordered lists."""
        bounds = bounds_of(wanted, after, before)
        found = await self._found(wanted, bounds, limit + 1)
        is_short = wanted.by_end and len(found) <= limit
        read_to = await self._read_to(wanted, bounds) if is_short else None
        return page_of(wanted, found, limit, after=after, before=before, read_to=read_to)

    async def count(self, wanted: TimerFilter, at_most: int) -> int:
        """Count what the lists hold."""
        total = 0
        for sql, parameters in self._lists(wanted, bounds_of(wanted, None, None), "1", at_most):
            [(count,)] = await self._ask(f"SELECT count(*) FROM ({sql}) AS found", parameters)  # noqa: S608
            total += count
        return min(total, at_most)

    async def _found(self, wanted: TimerFilter, bounds: Bounds, limit: int) -> list[Timer]:
        """Return at least the first `limit` timers between the bounds."""
        found: list[Timer] = []
        for sql, parameters in self._lists(wanted, bounds, rows.TIMER_COLUMNS, limit):
            found += map(rows.timer, await self._ask(sql, parameters))
        return found

    @abstractmethod
    async def _ask(self, sql: str, parameters: P) -> Sequence[Any]:
        """Put one question to the database."""

    @abstractmethod
    def _lists(
        self, wanted: TimerFilter, bounds: Bounds, columns: str, limit: int
    ) -> Sequence[tuple[str, P]]:
        """Return questions that together find at least the first `limit` timers between the bounds."""

    @abstractmethod
    async def _read_to(self, wanted: TimerFilter, bounds: Bounds) -> Place | None:
        """Return the last of those that were looked through, if there may be more behind them."""


def bounds_of(wanted: TimerFilter, after: Place | None, before: Place | None) -> Bounds:
    """Return between which places to look; each is exclusive, and no name is empty."""
    lowest, highest = (before, after) if wanted.newest_first else (after, before)
    since = None if wanted.since is None else (wanted.since, _NOBODY, _FIRST_ID)
    until = None if wanted.until is None else (wanted.until, _NOBODY, _FIRST_ID)
    return Bounds(
        max(filter(None, (lowest, since)), default=None),
        min(filter(None, (highest, until)), default=None),
        wanted.newest_first != (before is not None),
    )


def page_of(
    wanted: TimerFilter,
    found: Iterable[Timer],
    limit: int,
    *,
    after: Place | None,
    before: Place | None,
    read_to: Place | None = None,
) -> TimerPage:
    """Make one page of what several questions have found; each was asked for one more than is shown."""
    descending = bounds_of(wanted, after, before).descending
    timers = sorted(found, key=wanted.place, reverse=descending)
    more = len(timers) > limit
    timers = timers[:limit]
    if before is not None:
        timers.reverse()
    first, last = (wanted.place(timers[0]), wanted.place(timers[-1])) if timers else (None, None)
    if before is not None:
        return TimerPage(timers, (first if more else read_to), last or before)
    return TimerPage(timers, None if after is None else (first or after), last if more else read_to)


def page_sql(columns: str, index: str, where: str, order: Sequence[str], *, descending: bool) -> str:
    """Return a statement with names instead of parameters."""
    direction = "DESC" if descending else "ASC"
    return PAGE.format(
        columns=columns,
        index=index,
        where=where,
        order=", ".join(order),
        ordered=", ".join(f"{column} {direction}" for column in order),
        lower=", ".join(f"{{lower_{n}}}" for n, _ in enumerate(order)),
        upper=", ".join(f"{{upper_{n}}}" for n, _ in enumerate(order)),
        limit="{limit}",
    )


def after_prefix(prefix: str) -> str:
    """Return what is behind all texts that begin so."""
    return prefix + _LAST_ID


def text_of(edge: datetime | None, otherwise: str) -> str:
    """Return a moment as the databases read it; `otherwise` if there is no bound."""
    return otherwise if edge is None else rows.text(edge)


def _edge_of(place: Place | None, tenant_id: TenantId) -> Edge:
    if place is None:
        return Edge(None)
    at, whose, service_call_id = place
    if whose == tenant_id:
        return Edge(at, service_call_id)
    # Of those at the same moment, all of a tenant lie on one side of another's.
    return Edge(at, _FIRST_ID if whose < tenant_id else _LAST_ID)


def shares_of(found: Iterable[Any], spans: int) -> list[Shares]:
    """Return the shares in each span, from rows of span, tenant, how many, and how many of all tenants."""
    of, totals = [dict[TenantId, int]() for _ in range(spans)], [0] * spans
    for nth, tenant, count, total in found:
        of[nth][TenantId(tenant)] = count
        totals[nth] = total
    return [Shares(total, each) for total, each in zip(totals, of, strict=True)]


def merged_glances(found: Sequence[Sequence[Any]], at_most: int) -> list[Glance]:
    """Return one answer for the sinks: tenant, three counts and the nearest due time, in each row."""
    glances = []
    for of_tenant in zip(*found, strict=True):
        pending, overdue, soon = (min(sum(row[number] for row in of_tenant), at_most) for number in (1, 2, 3))
        nearest = min((row[4] for row in of_tenant if row[4] is not None), default=None)
        glances.append(Glance(TenantId(of_tenant[0][0]), pending, overdue, soon, nearest))
    return glances
