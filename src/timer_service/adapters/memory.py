"""A store and a bus in memory, with the promises of the real ones but durability."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, zip_longest

from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters import codec
from timer_service.domain import timer as rules
from timer_service.domain.epochs import StreamEpoch, newest_by_epoch
from timer_service.domain.errors import BusUnavailable, CommandRefused
from timer_service.domain.messages import (
    Command,
    DueTimeReached,
    Position,
    ServiceCallId,
    TenantId,
    TimerKey,
)
from timer_service.domain.timer import DueTimer, Outcome, Timer, TimerState
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import Backlog, Refusal
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)

_LETTER_BYTES = 1_000_000


class MemoryTimerStore:
    """Timers in a dictionary."""

    def __init__(self) -> None:
        self.timers: dict[TimerKey, Timer] = {}
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
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AsyncIterator[Claim]:
        """Return what is due, in turns between tenants where it is more than the limit."""
        due = sorted(
            (
                DueTimer(t.tenant_id, t.service_call_id, t.due_at, t.generation, t.correlation_id, t.trace)
                for key, t in self.timers.items()
                if t.state is TimerState.SCHEDULED and t.due_at is not None and t.due_at <= now
                if t.tenant_id not in held_back.tenants
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
            yield _MemoryClaim(self.timers, claimed, len(due) > limit)
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

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Return the earliest due time later than `after`."""
        scheduled = (t.due_at for t in self.timers.values() if t.state is TimerState.SCHEDULED)
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
            if query.due_from is None or t.due_at >= query.due_from
            if query.due_before is None or t.due_at < query.due_before
        ]
        page.sort(key=lambda item: item[0])
        return [t for key, t in page if query.after is None or key > query.after][: query.limit]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        ended = [(t.reached_at or t.cancelled_at, key) for key, t in self.timers.items()]
        old = sorted((at, key) for at, key in ended if at is not None and at < ended_before)[:limit]
        for _, key in old:
            del self.timers[key]
        return len(old)

    async def count(self, now: datetime) -> StoreCounts:
        """Count what there is."""
        scheduled = [t.due_at for t in self.timers.values() if t.state is TimerState.SCHEDULED and t.due_at]
        overdue = [due_at for due_at in scheduled if due_at <= now]
        return StoreCounts(
            pending=len(scheduled),
            overdue=len(overdue),
            oldest_overdue_at=min(overdue, default=None),
            next_due_at=await self.next_due_at(now),
            file_bytes=0,
            log_bytes=0,
            free_bytes=sys.maxsize,
        )


@dataclass(frozen=True, slots=True)
class _MemoryClaim:
    _timers: dict[TimerKey, Timer]
    timers: Sequence[DueTimer]
    more: bool

    async def mark_reached(self, events: Sequence[DueTimeReached]) -> int:
        marked = 0
        for event in events:
            key = event.key
            before = self._timers.get(key)
            if before is not None:
                self._timers[key] = rules.mark_reached(before, event.generation, event.reached_at)
                marked += self._timers[key] is not before
        return marked


def _by_due_time(timer: DueTimer) -> tuple[datetime, TenantId, ServiceCallId]:
    return timer.due_at, timer.tenant_id, timer.service_call_id


@dataclass(slots=True)
class _Message:
    subject: str
    body: bytes
    sequence: int
    deliveries: int = 0


@dataclass(slots=True)
class MemoryEventBus:
    """A broker in memory: a command stream with redelivery, an event stream with de-duplication."""

    clock: Clock
    subjects: Subjects
    batch_size: int = 100
    stream_created_us: int = 1
    connected: bool = True
    events: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """What the event stream holds: message id to subject and body."""
    letters: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """What the dead letter stream holds: command sequence to subject and body."""
    letters_full: bool = False
    """Whether the dead letter stream takes nothing more."""
    refused: set[int] = field(default_factory=set)
    """Sequences of refused messages that wait for their letters."""
    rejected_subjects: set[str] = field(default_factory=set)
    """Subjects on which the broker takes nothing."""
    events_full: bool = False
    """Whether the event stream takes nothing more."""
    handled_sequence: int = 0
    """The newest message that was acknowledged or set aside."""
    pending: dict[int, _Message] = field(default_factory=dict)
    """Delivered or not, but neither acknowledged nor terminated."""
    _queue: asyncio.Queue[_Message] = field(default_factory=asyncio.Queue)
    _last_sequence: int = 0

    def send(self, subject: str, body: bytes) -> int:
        """Put a message into the command stream and return its sequence."""
        self._last_sequence += 1
        message = _Message(subject, body, self._last_sequence)
        self.pending[message.sequence] = message
        self._queue.put_nowait(message)
        return message.sequence

    def settle(self, sequence: int) -> None:
        """Remove a message that is acknowledged or terminated."""
        self.pending.pop(sequence, None)
        self.handled_sequence = max(self.handled_sequence, sequence)

    @property
    def problem(self) -> str | None:
        """Say why nothing can be sent or received now."""
        return None if self.connected else "the broker is away"

    async def last_position(self) -> Position:
        """Return the position of the newest command."""
        if not self.connected:
            raise BusUnavailable("the broker is away")
        return Position(self.stream_created_us, self._last_sequence)

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        """Count what is pending on the subjects of commands."""
        if not self.connected:
            raise BusUnavailable("the broker is away")
        waiting: dict[TenantId, list[int]] = {}
        for message in self.pending.values():
            tenant_id, _, kind = message.subject.removeprefix(self.subjects.commands_prefix).partition(".")
            if kind in wire.COMMAND_TYPES:
                waiting.setdefault(TenantId(tenant_id), []).append(message.sequence)
        return Backlog(
            stream=str(self.stream_created_us),
            first_sequence=min(self.pending, default=self._last_sequence + 1),
            last_sequence=self._last_sequence,
            handled_sequence=self.handled_sequence,
            tenants=frozenset(waiting),
            oldest={
                tenant_id: min((n for n in waiting.get(tenant_id, ()) if n > known), default=None)
                for tenant_id, known in beyond.items()
            },
        )

    def redeliver(self) -> None:
        """Deliver again whatever was delivered but not acknowledged."""
        for message in self.pending.values():
            if message.deliveries:
                self._queue.put_nowait(message)

    async def receive(self) -> "_MemoryBatch":
        """Wait for one message and take what else is there."""
        messages = [await self._queue.get()]
        while not self._queue.empty() and len(messages) < self.batch_size:
            messages.append(self._queue.get_nowait())
        return _MemoryBatch(self, messages)

    async def publish(self, events: Sequence[DueTimeReached]) -> list[PublishResult]:
        """Keep each event once by its id."""
        if not self.connected:
            raise BusUnavailable("the broker is away")
        return [self._publish(event) for event in events]

    def _publish(self, event: DueTimeReached) -> PublishResult:
        subject = self.subjects.event(event.tenant_id)
        if subject in self.rejected_subjects:
            return PublishResult(Published.REJECTED, "no stream takes this subject")
        if self.events_full:
            return PublishResult(Published.STREAM_REFUSED, "maximum messages exceeded")
        message_id = str(event.id)
        self.events.setdefault(message_id, (subject, codec.encode_event(event, message_id)))
        return PublishResult(Published.CONFIRMED)


class _MemoryBatch:
    def __init__(self, bus: MemoryEventBus, messages: Sequence[_Message]) -> None:
        self._bus = bus
        self._accepted: list[_Message] = []
        self._refused: list[tuple[_Message, Refusal]] = []
        self.commands: list[Command] = []
        self.redelivered = sum(message.deliveries > 0 for message in messages)
        for message in messages:
            message.deliveries += 1
            position = Position(bus.stream_created_us, message.sequence)
            try:
                self.commands.append(
                    codec.decode_command(bus.subjects, message.subject, message.body, position)
                )
                self._accepted.append(message)
            except CommandRefused as error:
                refusal = Refusal(error.reason, error.detail, message.subject, message.sequence)
                self._refused.append((message, refusal))

    async def acknowledge(self) -> None:
        for message in self._accepted:
            # In a stream that was made again the same sequence is another message.
            if self._bus.pending.get(message.sequence) is message:
                self._bus.settle(message.sequence)

    async def dead_letter(self) -> Sequence[Refusal]:
        bus = self._bus
        fresh = [refusal for message, refusal in self._refused if message.sequence not in bus.refused]
        bus.refused.update(message.sequence for message, _ in self._refused)
        if bus.connected and not bus.letters_full:
            for message, refusal in self._refused:
                self._write_letter(message, refusal)
        return fresh

    def _write_letter(self, message: _Message, refusal: Refusal) -> None:
        bus = self._bus
        letter = codec.encode_dead_letter(
            refusal,
            stream="TIMER_COMMANDS",
            received_at=bus.clock.now(),
            body=message.body,
            max_bytes=_LETTER_BYTES,
        )
        subject = bus.subjects.dead_letter(bus.subjects.tenant_of(message.subject))
        bus.letters.setdefault(message.sequence, (subject, letter))
        bus.settle(message.sequence)
        bus.refused.discard(message.sequence)
