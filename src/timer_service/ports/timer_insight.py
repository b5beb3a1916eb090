"""Timers of all tenants, as an operator sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Timer, TimerState

Place = tuple[datetime, TenantId, ServiceCallId]
"""A place in the order of a list: by its moment, then by key."""


@dataclass(frozen=True, slots=True)
class TimerFilter:
    """Which timers are looked at; the order is that of an index, whatever is asked for."""

    tenants: frozenset[TenantId] | None = None
    """Whose timers; None for those of all tenants. What is not named here is never shown."""
    state: TimerState = TimerState.SCHEDULED
    correlation_id: CorrelationId | None = None
    since: datetime | None = None
    """Inclusive, as the end is exclusive: of the due time, or of the moment by which they are listed."""
    until: datetime | None = None

    @property
    def by_end(self) -> bool:
        """Whether they are listed by when they ended, and not by when they were due."""
        is_over = self.state is not TimerState.SCHEDULED
        return is_over and self.tenants is None and self.correlation_id is None

    @property
    def newest_first(self) -> bool:
        """Whether the list begins with the latest: of ended timers, the last ones matter most."""
        return self.state is not TimerState.SCHEDULED

    def place(self, timer: Timer) -> Place:
        """Return the place of a timer in the list."""
        ended_at = timer.reached_at or timer.cancelled_at or timer.expired_at
        moment = ended_at if self.by_end else timer.due_at
        assert moment is not None
        return moment, timer.tenant_id, timer.service_call_id


@dataclass(frozen=True, slots=True)
class TimerPage:
    """Some timers in their order, and how to go on."""

    timers: Sequence[Timer]
    before: Place | None = None
    """What comes before lies before this place; None if nothing does."""
    after: Place | None = None
    """What follows lies after this place; None if nothing does. A page may be short and yet be followed."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How many timers are due in a span of time, and whose most of them are."""

    total: int
    of: Mapping[TenantId, int]
    """Those who have the most; all others share the rest."""


@dataclass(frozen=True, slots=True)
class Glance:
    """What a tenant has ahead; no count exceeds the bound that was asked for."""

    tenant_id: TenantId
    pending: int
    overdue: int
    soon: int
    """Between the two moments that were asked for."""
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Failing:
    """Callbacks of one tenant to one receiver that failed for good in one way."""

    tenant_id: TenantId
    origin: str
    error: str
    count: int
    newest: ServiceCallId
    """The timer of the newest of them."""


class TimerInsight(Protocol):
    """Timers of all tenants. A question costs what it shows, not what there is.

    All may raise TransientError.
    """

    async def page(
        self, wanted: TimerFilter, limit: int, *, after: Place | None = None, before: Place | None = None
    ) -> TimerPage:
        """Return up to `limit` timers after a place, or before one; not both.

        Of ended timers of all tenants, only a bounded number is searched for one page.
        """
        ...

    async def count(self, wanted: TimerFilter, at_most: int) -> int:
        """Count timers, but not beyond a number."""
        ...

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, Timer]:
        """Return the timers with these keys, as far as they exist."""
        ...

    async def find(
        self, service_call_id: ServiceCallId, tenants: frozenset[TenantId] | None, limit: int
    ) -> Sequence[Timer]:
        """Return the timers of this id, whatever their tenant."""
        ...

    async def search(self, tenant_id: TenantId, prefix: str, limit: int) -> Sequence[Timer]:
        """Return timers of one tenant whose ids begin with a text, by id."""
        ...


class TenantInsight(Protocol):
    """What tenants have, in numbers. All may raise TransientError."""

    async def tenants(self, limit: int, after: TenantId | None = None) -> Sequence[TenantId]:
        """Return who has timers, in any state, by name."""
        ...

    async def glance(
        self, tenants: Sequence[TenantId], now: datetime, soon: datetime, at_most: int
    ) -> Sequence[Glance]:
        """Return what each tenant has ahead, in the order in which they are named."""
        ...

    async def load(self, edges: Sequence[datetime], tenants: frozenset[TenantId] | None) -> Sequence[int]:
        """Count what is scheduled between each two neighbouring moments: from one, before the next.

        This costs what there is between the first and the last.
        """
        ...

    async def shares(self, edges: Sequence[datetime], limit: int) -> Sequence[Shares]:
        """Count like `load`, of all tenants, and name up to `limit` tenants for each span."""
        ...

    async def failing(self, tenants: frozenset[TenantId] | None, limit: int) -> Sequence[Failing]:
        """Return the callbacks that failed for good, those with the newest failure first.

        Reads up to `limit` of each tenant, its newest; of all tenants, only a bounded number by name.
        """
        ...


class Insight(TimerInsight, TenantInsight, Protocol):
    """All that can be asked about timers of all tenants."""
