"""Timers in a dictionary, with the promises of the real stores except durability."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, zip_longest

from timer_service.domain import timer as rules
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.epochs import StreamEpoch, newest_by_epoch
from timer_service.domain.messages import Command, Event, ServiceCallId, TenantId, TimerKey
from timer_service.domain.outcomes import accepted_callbacks, dropped_callbacks
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)
from timer_service.testing.callback_list import MemoryCallbackList
from timer_service.testing.deliveries import MemoryDeliveries
from timer_service.testing.insight import MemoryInsight


class MemoryTimerStore:
    """Timers in a dictionary."""

    max_claims = 100

    def __init__(self) -> None:
        self.timers: dict[TimerKey, Timer] = {}
        self.deliveries = MemoryDeliveries(self.timers)
        self.sealed_headers = self.deliveries
        self.insight = MemoryInsight(self.timers, self.deliveries.kept)
        self.callback_list = MemoryCallbackList(self.timers, self.deliveries.kept)
        self._claimed: set[TimerKey] = set()
        self._looks = 0
        self._turns: dict[TenantId, int] = {}
        """The look in which each tenant had its last turn."""
        self._epochs: dict[int, StreamEpoch] = {}

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Apply the domain's rules in order."""
        outcomes = []
        for command in commands:
            key = command.key
            self.timers[key], outcome = rules.apply(self.timers.get(key), command, now)
            outcomes.append(outcome)
        self._advance_epochs(commands)
        return outcomes

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Apply the domain's rules; a timer that is being fired is not open to requests."""
        decided = []
        for request in requests:
            key = request.key
            outcome = Outcome.DUE
            if key not in self._claimed:
                self.timers[key], outcome = rules.decide(self.timers.get(key), request, now)
                self.deliveries.keep(accepted_callbacks([request], [outcome]), now)
                self.deliveries.forget(dropped_callbacks([request], [outcome]))
                self._advance_epochs([request])
            decided.append(Decided(outcome, None if outcome is Outcome.DUE else self.timers[key]))
        return decided

    def _advance_epochs(self, commands: Sequence[Command]) -> None:
        for newest in newest_by_epoch(commands):
            epoch = self._epochs.get(newest.stream_created_us)
            if epoch is not None:
                self._epochs[epoch.number] = replace(
                    epoch,
                    last_sequence=max(epoch.last_sequence, newest.sequence),
                    last_stored_us=max(epoch.last_stored_us, newest.stored_us),
                )

    async def stream_epochs(self) -> list[StreamEpoch]:
        """Return every epoch of every command stream."""
        return [self._epochs[number] for number in sorted(self._epochs)]

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        """Keep a new epoch unless its number is taken."""
        return self._epochs.setdefault(epoch.number, epoch) is epoch

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        """Return what is due, in turns between tenants if it is more than the limit."""
        due = sorted(
            (
                DueTimer(
                    t.tenant_id,
                    t.service_call_id,
                    t.due_at,
                    t.generation,
                    t.correlation_id,
                    t.trace,
                    t.expires_after_ms,
                    t.verdict,
                )
                for key, t in self.timers.items()
                if t.state is TimerState.SCHEDULED and t.due_at is not None and t.due_at <= now
                if t.sink is sink and t.tenant_id not in held_back.tenants
                if key not in held_back.timers and key not in self._claimed
            ),
            key=_by_due_time,
        )
        claimed = due if len(due) <= limit else sorted(self._in_turns(due)[:limit], key=_by_due_time)
        keys = {timer.key for timer in claimed}
        self._claimed |= keys
        self._looks += 1
        self._turns.update((tenant_id, self._looks) for tenant_id, _ in keys)
        try:
            yield _MemoryClaim(self.deliveries, claimed, len(due) > limit)
        finally:
            self._claimed -= keys

    def _in_turns(self, due: list[DueTimer]) -> list[DueTimer]:
        """Return one of each tenant, then a second of each, and so on; who has waited longest begins."""
        by_tenant: dict[TenantId, list[DueTimer]] = {}
        for timer in due:
            by_tenant.setdefault(timer.tenant_id, []).append(timer)
        in_line = sorted(by_tenant, key=lambda tenant_id: self._turns.get(tenant_id, 0))
        rounds = zip_longest(*(by_tenant[tenant_id] for tenant_id in in_line))
        return [timer for timer in chain.from_iterable(rounds) if timer is not None]

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        """Return the earliest due time later than `after`."""
        scheduled = (
            t.due_at for t in self.timers.values() if t.state is TimerState.SCHEDULED and t.sink is sink
        )
        return min((due_at for due_at in scheduled if due_at and due_at > after), default=None)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        return self.timers.get((tenant_id, service_call_id))

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page by due time, then id."""
        page = [
            ((t.due_at, t.service_call_id), t)
            for t in self.timers.values()
            if t.due_at is not None
            if t.tenant_id == query.tenant_id
            if query.state in (None, t.state)
            if query.correlation_id in (None, t.correlation_id)
            if query.sink in (None, t.sink)
            if query.due_from is None or t.due_at >= query.due_from
            if query.due_before is None or t.due_at < query.due_before
        ]
        page.sort(key=lambda item: item[0])
        return [t for key, t in page if query.after is None or key > query.after][: query.limit]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        ended = [(t.reached_at or t.cancelled_at or t.expired_at, key) for key, t in self.timers.items()]
        old = sorted(
            (at, key)
            for at, key in ended
            if at is not None and at < ended_before and not self.deliveries.is_waiting(key)
        )[:limit]
        for _, key in old:
            del self.timers[key]
        self.deliveries.forget(key for _, key in old)
        return len(old)

    async def count(self, now: datetime) -> StoreCounts:
        """Count what there is."""
        scheduled = [t.due_at for t in self.timers.values() if t.state is TimerState.SCHEDULED and t.due_at]
        overdue = [due_at for due_at in scheduled if due_at <= now]
        return StoreCounts(
            pending=len(scheduled),
            overdue=len(overdue),
            oldest_overdue_at=min(overdue, default=None),
            next_due_at=min((due_at for due_at in scheduled if due_at > now), default=None),
            file_bytes=0,
            log_bytes=0,
            free_bytes=sys.maxsize,
        )


@dataclass(frozen=True, slots=True)
class _MemoryClaim:
    _deliveries: MemoryDeliveries
    timers: Sequence[DueTimer]
    more: bool
    read_ahead: bool = False

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> set[TimerKey]:
        every = self._deliveries.timers
        ours = {timer.key for timer in self.timers}
        for timer in timers:
            kept = every.get(timer.key)
            if kept and kept.state is TimerState.SCHEDULED and kept.generation == timer.generation:
                every[timer.key] = replace(kept, verdict=verdict)
            else:
                ours.discard(timer.key)
        return ours

    async def mark_reached(self, events: Sequence[Event]) -> int:
        marked = 0
        timers = self._deliveries.timers
        for event in events:
            key = event.key
            before = timers.get(key)
            if before is not None:
                timers[key] = rules.mark(before, event)
                if timers[key] is not before:
                    marked += 1
                    self._deliveries.open(event)
        return marked


def _by_due_time(timer: DueTimer) -> tuple[datetime, TenantId, ServiceCallId]:
    return timer.due_at, timer.tenant_id, timer.service_call_id
