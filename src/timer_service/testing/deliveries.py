"""Deliveries in dictionaries, with the promises of the real stores except durability."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from timer_service.domain import delivery as rules
from timer_service.domain.callback import Callback
from timer_service.domain.delivery import KEPT_ATTEMPTS, Attempt, Delivery, DeliveryState
from timer_service.domain.messages import DueTimeReached, Event, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import (
    CallbackRecord,
    ClaimedDelivery,
    DeliveryCounts,
    DeliveryQuery,
    DuePage,
    Finished,
    Lane,
    Place,
    WaitingDelivery,
)
from timer_service.ports.sealed_headers import StoredHeaders


class MemoryDeliveries:
    """Callbacks, deliveries and failed attempts in dictionaries, beside the timers of a store in memory."""

    is_shared = False
    gathers_s = 0.0

    def __init__(self, timers: dict[TimerKey, Timer]) -> None:
        self.timers = timers
        self.callbacks: dict[TimerKey, Callback] = {}
        self.kept: dict[TimerKey, Delivery] = {}
        self._attempts: dict[TimerKey, dict[int, Attempt]] = {}
        self._updated_at: dict[TimerKey, datetime] = {}

    def keep(self, callbacks: Mapping[TimerKey, Callback], now: datetime) -> None:
        """Keep the callbacks that requests have given to their timers."""
        self.callbacks |= callbacks
        self._updated_at |= dict.fromkeys(callbacks, now)

    def open(self, event: Event) -> None:
        """Open the delivery of a timer that was just marked as reached, if it fires over HTTP."""
        callback = self.callbacks.get(event.key)
        if callback is not None and isinstance(event, DueTimeReached):
            self.kept.setdefault(event.key, rules.open_delivery(event, callback))

    def is_waiting(self, key: TimerKey) -> bool:
        """Return whether a timer has a delivery that waits."""
        return key in self.kept and self.kept[key].state is DeliveryState.WAITING

    def forget(self, keys: Iterable[TimerKey]) -> None:
        """Delete all that is kept of the callbacks of timers."""
        for key in keys:
            for kept in (self.callbacks, self.kept, self._attempts, self._updated_at):
                kept.pop(key, None)

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        """Return what may be attempted."""
        waiting = sorted(
            (
                WaitingDelivery(*key, d.origin, d.next_attempt_at)
                for key, d in self.kept.items()
                if d.next_attempt_at is not None and lane in (None, (d.tenant_id, d.origin))
            ),
            key=lambda each: each.place,
        )
        due = [w for w in waiting if w.next_attempt_at <= now and (after is None or w.place > after)]
        if len(due) >= limit:
            return DuePage(due[:limit], None)
        later = (d.next_attempt_at for d in self.kept.values())
        return DuePage(due, min((at for at in later if at is not None and at > now), default=None))

    async def due_among(self, keys: Sequence[TimerKey], now: datetime) -> list[WaitingDelivery]:
        """Return what may be attempted of these."""
        page = await self.due(now, len(self.kept))
        return [each for each in page.found if each.key in keys]

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> list[ClaimedDelivery]:
        """Return what still waits."""
        return [
            ClaimedDelivery(
                self.kept[key], self.callbacks[key], self.timers[key].correlation_id, self.timers[key].trace
            )
            for key in keys
            if key in self.kept
            if (next_attempt_at := self.kept[key].next_attempt_at) is not None and next_attempt_at <= now
        ]

    async def finish(self, finished: Sequence[Finished]) -> int:
        """Change what is as it was claimed."""
        counted = 0
        for each in finished:
            key, before = each.after.key, each.before
            now = self.kept.get(key)
            if now is None or now.state is not DeliveryState.WAITING:
                continue
            if _claimed(now) != _claimed(before):
                continue
            counted += 1
            self.kept[key] = each.after
            if each.failure is not None:
                attempts = self._attempts.setdefault(key, {})
                attempts[each.failure.number] = each.failure
                for number in [n for n in attempts if n <= each.failure.number - KEPT_ATTEMPTS]:
                    del attempts[number]
        return counted

    async def stay(self) -> None:
        """Do nothing: there is no other instance."""

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Return what there is."""
        return {
            key: CallbackRecord(
                self.callbacks[key],
                self.kept.get(key),
                tuple(self._attempts.get(key, {}).values()),
                self._updated_at[key],
            )
            for key in keys
            if key in self.callbacks
        }

    async def list_deliveries(self, query: DeliveryQuery) -> list[Delivery]:
        """Return a page by the time of opening, then id."""
        return self._page(query, DeliveryState if query.state is None else (query.state,))

    async def replay(self, ended: Sequence[Delivery], now: datetime) -> int:
        """Let what has ended wait again."""
        again = [
            each
            for each in ended
            if self.kept.get(each.key) == each and each.state is not DeliveryState.WAITING
        ]
        self.kept |= {each.key: rules.replay(each, now) for each in again}
        return len(again)

    async def abandon(self, key: TimerKey, now: datetime) -> Delivery | None:
        """End what waits."""
        if key in self.kept:
            self.kept[key] = rules.abandon(self.kept[key], now)
        return self.kept.get(key)

    async def count(self, now: datetime) -> DeliveryCounts:
        """Count what there is."""
        waiting = [d.next_attempt_at for d in self.kept.values() if d.next_attempt_at is not None]
        overdue = [at for at in waiting if at <= now]
        return DeliveryCounts(len(waiting), len(overdue), min(overdue, default=None))

    def _page(self, query: DeliveryQuery, states: Iterable[DeliveryState]) -> list[Delivery]:
        wanted = set(states)
        found = [
            ((d.opened_at, d.service_call_id), d)
            for d in self.kept.values()
            if d.tenant_id == query.tenant_id and d.state in wanted
            if query.origin in (None, d.origin)
            if query.opened_from is None or d.opened_at >= query.opened_from
            if query.opened_before is None or d.opened_at < query.opened_before
        ]
        found.sort(key=lambda each: each[0])
        return [d for place, d in found if query.after is None or place > query.after][: query.limit]

    async def headers_after(self, key: TimerKey | None, limit: int) -> list[StoredHeaders]:
        """Return the next headers in the order of the keys."""
        keys = [each for each in sorted(self.callbacks) if key is None or each > key]
        found = [StoredHeaders(*each, self.callbacks[each].headers) for each in keys]
        return [each for each in found if each.headers][:limit]

    async def replace_headers(self, changes: Sequence[tuple[StoredHeaders, StoredHeaders]]) -> int:
        """Replace headers that are still as they were."""
        held = [new for old, new in changes if self.callbacks[old.key].headers == old.headers]
        self.callbacks.update(
            {new.key: replace(self.callbacks[new.key], headers=new.headers) for new in held}
        )
        return len(held)


def _claimed(delivery: Delivery) -> tuple[int, int, datetime | None]:
    """Return what tells an attempt from every other one of its delivery."""
    return delivery.attempts, delivery.series_from, delivery.next_attempt_at
