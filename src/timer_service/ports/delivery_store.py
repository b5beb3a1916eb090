"""Where deliveries are kept, as the core sees it.

A delivery comes into being in the transaction that marks its timer as reached (`Claim.mark_reached`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from timer_service.domain.callback import Callback
from timer_service.domain.delivery import Attempt, Delivery, DeliveryState
from timer_service.domain.messages import (
    CorrelationId,
    Keyed,
    ServiceCallId,
    TenantId,
    TimerKey,
    Trace,
)
from timer_service.domain.values import value

Lane = tuple[TenantId, str]
"""One tenant's callbacks to one receiver, which is known by its origin."""
Place = tuple[datetime, TenantId, ServiceCallId]
"""A place in the order of what waits: by the time of the next attempt, then by key."""


@value(frozen=True, slots=True)
class WaitingDelivery(Keyed):
    """What the choice of the next attempts needs of a delivery."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    origin: str
    next_attempt_at: datetime

    @property
    def lane(self) -> Lane:
        """Whose it is, and where it goes."""
        return self.tenant_id, self.origin

    @property
    def place(self) -> Place:
        """Its place among all waiting deliveries."""
        return self.next_attempt_at, self.tenant_id, self.service_call_id


@dataclass(frozen=True, slots=True)
class DuePage:
    """Some of what waits, in its order."""

    found: Sequence[WaitingDelivery]
    next_attempt_at: datetime | None
    """The earliest attempt that is yet to come; None if there is none, or if more is due than was found."""


@value(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery whose next attempt is ours, with all that the attempt needs."""

    delivery: Delivery
    callback: Callback
    correlation_id: CorrelationId | None
    trace: Trace | None


@dataclass(frozen=True, slots=True)
class CallbackRecord:
    """All that is kept of a timer's callback."""

    callback: Callback
    delivery: Delivery | None
    """None until the timer has fired."""
    attempts: tuple[Attempt, ...] = ()
    """The newest that failed, oldest first."""
    updated_at: datetime | None = None
    """When the callback was given to its timer as it is now; None of one that was not read from a store."""


@value(frozen=True, slots=True)
class Finished:
    """What an attempt came to."""

    before: Delivery
    """As it was claimed."""
    after: Delivery
    failure: Attempt | None = None
    """To be kept beside it; None if it succeeded, or if no attempt was made."""


@dataclass(frozen=True, slots=True)
class DeliveryQuery:
    """Which deliveries of one tenant to list."""

    tenant_id: TenantId
    state: DeliveryState | None = None
    origin: str | None = None
    opened_from: datetime | None = None
    """Inclusive."""
    opened_before: datetime | None = None
    """Exclusive."""
    after: tuple[datetime, ServiceCallId] | None = None
    """When the last delivery of the page before was opened, and its id."""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """What there is, for health and metrics."""

    waiting: int
    overdue: int
    """Waiting with an attempt that should have begun."""
    oldest_overdue_at: datetime | None


class DeliveryQueue(Protocol):
    """What waits to be sent, as the loop that sends it needs it."""

    is_shared: bool
    """Whether other instances may use it too, and may leave claims behind."""
    gathers_s: float
    """How long to gather outcomes before `finish`, where each holds up hand-overs; 0 where none does."""

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        """Return up to `limit` waiting deliveries whose next attempt may begin, longest due first.

        `after` continues after a place, `lane` asks for one tenant and receiver only. What another instance
        has claimed is not among them until that instance is gone or late.
        """
        ...

    async def due_among(self, keys: Sequence[TimerKey], now: datetime) -> Sequence[WaitingDelivery]:
        """Return those of these deliveries that `due` would return, however many others wait."""
        ...

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> Sequence[ClaimedDelivery]:
        """Make the next attempts of these deliveries ours, and return those that are still free and due.

        A claim ends with `finish`, or by itself: with the process, or some time after the attempt should have
        ended. Nothing of it is held while the attempt is under way.
        """
        ...

    async def finish(self, finished: Sequence[Finished]) -> int:
        """Record the outcomes of attempts in one durable transaction, and return how many still counted.

        An attempt whose claim was taken over, or whose delivery was ended or replayed meanwhile, changes
        nothing. Raises TransientError with nothing changed, as far as one can know; repeating it is harmless.
        """
        ...

    async def stay(self) -> None:
        """Let other instances know that we are still there, so that they leave alone what we have claimed.

        To be called every few seconds, whatever else happens. Raises TransientError.
        """
        ...

    async def count(self, now: datetime) -> DeliveryCounts:
        """Count what there is, without holding up anything else."""
        ...


class DeliveryRecords(Protocol):
    """What became of callbacks, and what their owner may do about it."""

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Return what is kept of the callbacks of these timers; a timer without one is missing."""
        ...

    async def list_deliveries(self, query: DeliveryQuery) -> Sequence[Delivery]:
        """Return a page of one tenant's deliveries by the time at which they were opened, then by id."""
        ...

    async def replay(self, ended: Sequence[Delivery], now: datetime) -> int:
        """Let ended deliveries wait again, in one durable transaction, and return how many do now.

        Each is looked up by its key. One that has changed since it was read is left as it is, so repeating
        it changes nothing.
        """
        ...

    async def abandon(self, key: TimerKey, now: datetime) -> Delivery | None:
        """End a waiting delivery; return it as it is then, or None if there is none."""
        ...


class DeliveryStore(DeliveryQueue, DeliveryRecords, Protocol):
    """The durable table of deliveries, beside that of the timers."""
