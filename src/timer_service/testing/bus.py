"""A broker in memory, with the promises of the real one except durability."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from timer_client import wire
from timer_client.subjects import StreamNames, Subjects
from timer_service.adapters import codec
from timer_service.domain.errors import BusUnavailable, CommandRefused
from timer_service.domain.messages import EPOCH, Command, Event, Position, TenantId
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import Backlog, Refusal
from timer_service.ports.event_sink import Published, PublishResult

MAX_LETTER_BYTES: Final = 1_000_000


@dataclass(slots=True)
class _Message:
    subject: str
    body: bytes
    position: Position
    deliveries: int = 0

    @property
    def sequence(self) -> int:
        return self.position.sequence


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
    """Whether the dead letter stream accepts nothing more."""
    refused: set[int] = field(default_factory=set)
    """Sequences of refused messages that wait for their letters."""
    rejected_subjects: set[str] = field(default_factory=set)
    """Subjects on which the broker accepts nothing."""
    events_full: bool = False
    """Whether the event stream accepts nothing more."""
    handled_sequence: int = 0
    """The newest message that was acknowledged or set aside."""
    pending: dict[int, _Message] = field(default_factory=dict)
    """Delivered or not, but neither acknowledged nor terminated."""
    _queue: asyncio.Queue[_Message] = field(default_factory=asyncio.Queue)
    _last_sequence: int = 0

    def send(self, subject: str, body: bytes) -> int:
        """Put a message into the command stream and return its sequence."""
        self._last_sequence += 1
        stored_us = (self.clock.now() - EPOCH) // timedelta(microseconds=1)
        position = Position(self.stream_created_us, self._last_sequence, stored_us)
        message = _Message(subject, body, position)
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

    async def last_seen_position(self) -> Position:
        """Return the position of the newest command that was dealt with."""
        return Position(self.stream_created_us, self.handled_sequence)

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

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Keep each event once by its id."""
        if not self.connected:
            raise BusUnavailable("the broker is away")
        return [self._publish(event) for event in events]

    def _publish(self, event: Event) -> PublishResult:
        subject = self.subjects.event(event.tenant_id, type(event).__name__)
        if subject in self.rejected_subjects:
            return PublishResult(Published.REJECTED, "no stream stores this subject")
        if self.events_full:
            return PublishResult(Published.STREAM_REFUSED, "maximum messages exceeded")
        message_id = event.id_text
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
            try:
                self.commands.append(
                    codec.decode_command(bus.subjects, message.subject, message.body, message.position)
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
            stream=StreamNames.of(bus.subjects.prefix).commands,
            received_at=bus.clock.now(),
            body=message.body,
            max_bytes=MAX_LETTER_BYTES,
        )
        subject = bus.subjects.dead_letter(bus.subjects.tenant_of(message.subject))
        bus.letters.setdefault(message.sequence, (subject, letter))
        bus.settle(message.sequence)
        bus.refused.discard(message.sequence)
