"""Where timers are kept, as the core sees it."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import CriticalError
from timer_service.domain.messages import (
    Command,
    CorrelationId,
    Event,
    ServiceCallId,
    TenantId,
    TimerKey,
)
from timer_service.domain.timer import Outcome, Timer, TimerState


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What a claim passes over, because publishing it failed a moment ago."""

    tenants: frozenset[TenantId] = frozenset()
    timers: frozenset[TimerKey] = frozenset()


NOTHING_HELD_BACK = HeldBack()


@dataclass(frozen=True, slots=True)
class TimerQuery:
    """Which timers of one tenant to list."""

    tenant_id: TenantId
    state: TimerState | None = None
    correlation_id: CorrelationId | None = None
    due_from: datetime | None = None
    """Inclusive."""
    due_before: datetime | None = None
    """Exclusive."""
    sink: Sink | None = None
    after: tuple[datetime, ServiceCallId] | None = None
    """The due time and id of the last timer of the page before."""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """What there is in the store, for health and metrics."""

    pending: int
    """Scheduled timers, due or not."""
    overdue: int
    oldest_overdue_at: datetime | None
    next_due_at: datetime | None
    file_bytes: int
    log_bytes: int
    """The write-ahead log."""
    free_bytes: int
    """Space left where the store lies."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a request did, and the timer that it left."""

    outcome: Outcome
    timer: Timer | None
    """None only if the outcome is DUE: the timer is not ours to show while it is being fired."""


class Claim(Protocol):
    """A batch of due timers that is ours until the claim is left."""

    @property
    def timers(self) -> Sequence[DueTimer]:
        """The claimed timers, oldest due first."""
        ...

    @property
    def more(self) -> bool:
        """Whether more timers were due than the claim holds."""
        ...

    @property
    def read_ahead(self) -> bool:
        """Whether some were read before they were due: what others have changed since may be missing."""
        ...

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> Collection[TimerKey]:
        """Record durably, before it is published, which event the firing of these timers gets.

        A verdict of None takes that back, for events that the broker did not get. Returns which timers of the
        whole claim may still be published: the others were changed or taken over in the meantime. Raises
        TransientError.
        """
        ...

    async def mark_reached(self, events: Sequence[Event]) -> int:
        """Mark, in one transaction, each timer whose published generation still stands, by its event.

        For timers that fire over HTTP the same transaction opens their deliveries. Returns how many were
        marked. A timer that was rescheduled or cancelled meanwhile is left as it is. Repeating it changes
        nothing. Raises TransientError with nothing marked.
        """
        ...


class DueTimers(Protocol):
    """The scheduled timers of one sink, as firing needs them; a TimerStore is that of the bus."""

    @property
    def max_claims(self) -> int:
        """How many claims may be open at the same time, at least 2."""
        ...

    def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AbstractAsyncContextManager[Claim]:
        """Do what TimerStore promises."""
        ...

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Do what TimerStore promises."""
        ...


class TimerStore(DueTimers, Protocol):
    """The durable table of timers."""

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Apply commands in the given order, all in one durable transaction, and say what each did.

        Repeating it changes nothing: a command that is not newer than the last one applied to its timer
        is superseded. Raises TransientError with nothing applied, as far as one can know.
        """
        ...

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Decide requests, one for each timer at most, all in one durable transaction.

        A request never changes a timer that is claimed or due: its outcome is then DUE, and the others of the
        group are decided all the same. Raises TransientError with nothing changed, as far as one can know.
        """
        ...

    def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AbstractAsyncContextManager[Claim]:
        """Claim up to `limit` scheduled timers of a sink with `due_at <= now`, oldest first.

        None is in two claims.

        Where more is due than the limit, tenants take turns, so that each tenant's oldest timers are
        among the claimed. Leaving the context without marking gives the timers back at once.
        """
        ...

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        """Return the earliest due time later than `after` of all scheduled timers of a sink."""
        ...

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        ...

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page of one tenant's timers by due time, then id.

        A cancel that came before any schedule has no due time and is not listed.
        """
        ...

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete up to `limit` timers that ended before a moment, oldest first.

        Everything kept about their callbacks is deleted too; a timer whose callback waits for delivery stays.
        Returns how many were deleted. Freed space is reused.
        """
        ...

    async def count(self, now: datetime) -> StoreCounts:
        """Count what there is, without holding up anything else."""
        ...


class PatientStore(TimerStore, Protocol):
    """A timer store that tries a change again and again until it is done; its last resort is GivenUp.

    So `apply`, `purge` and the marks of a claim raise no other TransientError.
    """

    on_wait: Callable[[], None]
    """Called after each wait for a store that is unwell: waiting is not being stuck."""
    on_failure: Callable[[CriticalError], None]
    """Called if a request or a question has met a failure after which nothing may go on."""
    problem_since: datetime | None
    """When the store began to fail; None if all is well."""

    @property
    def problem(self) -> str | None:
        """What is wrong with the store; None if all is well."""
        ...

    def stop(self) -> None:
        """From now on raise GivenUp if a change fails."""
        ...
