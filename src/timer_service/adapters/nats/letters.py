"""Dead letters, written apart from the commands: a letter stream in trouble holds up no good command.

A refused message whose letter cannot be written stays where it is safe, in the command stream: it is given
back with a growing delay. The number that may wait is bounded, so that what good commands need is never
touched; beyond it a message is terminated without a letter, which is counted and logged. docs/adr/0019 has
the reasons.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import structlog

from timer_service.adapters import codec
from timer_service.adapters.nats.client import Outgoing, TolerantClient, head_of
from timer_service.adapters.nats.incoming import Incoming
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.publisher import Publisher
from timer_service.domain.messages import Position
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import Refusal
from timer_service.ports.event_sink import Published, PublishResult

MAX_QUEUED: Final = 1_000
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
"""Refused messages in memory, for which the writer has not come round yet."""
MAX_PART_BYTES: Final = 1024 * 1024
MAX_PARKED: Final = 2_500
"""Refused messages without a letter that one instance leaves in the stream; more are dropped."""
INSTANCES: Final = 8
ROOM_FOR_PARKED: Final = INSTANCES * MAX_PARKED
"""Pending messages that the consumer allows beyond what good commands need."""
FIRST_DELAY_S: Final = 1.0
MAX_DELAY_S: Final = 60.0
REMEMBERED_S: Final = 60.0
"""A parked message that has not come back this long after its delay went to another instance."""
ROOM_TIMEOUT_S: Final = 1.0
LOOK_S: Final = 1.0
LETTER_MARGIN_BYTES: Final = 1_024

log = structlog.get_logger(__name__)

Answer = Callable[[Sequence[tuple[Incoming, bytes]]], Awaitable[None]]

_DISCONNECTED: Final = PublishResult(Published.DISCONNECTED)
_NO_ROOM: Final = PublishResult(
    Published.UNANSWERED, "messages are refused faster than letters can be written"
)


@dataclass(frozen=True, slots=True)
class LetterLimits:
    """How much may wait, and how long."""

    max_queued: int = MAX_QUEUED
    max_parked: int = MAX_PARKED
    room_timeout_s: float = ROOM_TIMEOUT_S
    first_delay_s: float = FIRST_DELAY_S
    remembered_s: float = REMEMBERED_S


USUAL_LIMITS: Final = LetterLimits()


class Letters:
    """Writes one letter for each refused message, then terminates it."""

    def __init__(
        self,
        options: NatsOptions,
        clock: Clock,
        publisher: Publisher,
        answer: Answer,
        dropped: Callable[[], None] = lambda: None,
        limits: LetterLimits = USUAL_LIMITS,
    ) -> None:
        self._subjects = options.subjects
        self._stream = options.streams.commands
        self._clock = clock
        self._answer = answer
        self._count_dropped = dropped
        self._publisher = publisher
        self._limits = limits
        self._is_connected = False
        self._max_bytes = 0
        self._queue: deque[Incoming] = deque()
        self._queued_bytes = 0
        self._in_hand: set[Position] = set()
        self._parked: dict[Position, float] = {}
        """Given back to the broker: when to forget it, should it come to somebody else."""
        self._come = asyncio.Event()
        self._room = asyncio.Event()
        self._trouble: str | None = None
        self._dropped = 0

    @property
    def problem(self) -> str | None:
        """Why letters wait, and how many; None if none does."""
        if self._trouble is None:
            return None
        lost = f"; {self._dropped} were dropped" if self._dropped else ""
        return f"{len(self._parked)} refused messages wait for their letters{lost}: {self._trouble}"

    @property
    def waiting(self) -> int:
        """How many refused messages have no letter yet."""
        return len(self._queue) + len(self._parked)

    async def start(self, client: TolerantClient) -> None:
        """Write over this connection from now on."""
        self._is_connected = True
        self._max_bytes = client.max_payload - LETTER_MARGIN_BYTES

    def lost(self) -> None:
        """Give back what is refused until there is a connection again."""
        self._is_connected = False

    async def take(self, refused: Sequence[Incoming]) -> list[Refusal]:
        """Take refused messages over; return those that are seen for the first time."""
        fresh: list[Refusal] = []
        overflow: list[tuple[Incoming, PublishResult]] = []
        for message in refused:
            if message.position in self._in_hand:
                continue  # Delivered again while its letter is being written: one answer serves both.
            if self._parked.pop(message.position, None) is None and message.refusal is not None:
                fresh.append(message.refusal)
            if await self._wait_for_room(len(overflow)):
                self._put(message)
            else:
                overflow.append((message, _NO_ROOM if self._is_connected else _DISCONNECTED))
        await self._give_back(overflow)
        return fresh

    async def keep_writing(self) -> None:
        """Write what is queued, and notice when nothing is left to wait for; until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._trouble is not None else None):
                    await self._come.wait()
            self._come.clear()
            while self._queue:
                await self._write(self._next_part())
            self._tell_if_over()

    def take_all(self) -> list[Incoming]:
        """Return what is still queued: somebody else will write its letters."""
        queued = list(self._queue)
        self._queue.clear()
        return queued

    async def _wait_for_room(self, overflow: int) -> bool:
        """Return whether one more may be queued.

        As long as letters are written at all it waits: a moment, or longer if no more may be given back.
        """
        while len(self._queue) >= self._limits.max_queued or self._queued_bytes >= MAX_QUEUED_BYTES:
            may_give_back = len(self._parked) + overflow < self._limits.max_parked
            if self._trouble is not None or not self._is_connected or (may_give_back and overflow):
                return False
            self._room.clear()
            try:
                async with asyncio.timeout(self._limits.room_timeout_s):
                    await self._room.wait()
            except TimeoutError:
                if may_give_back:
                    return False
        return True

    def _put(self, message: Incoming) -> None:
        self._queue.append(message)
        self._queued_bytes += len(message.body)
        self._in_hand.add(message.position)
        self._come.set()

    def _next_part(self) -> list[Incoming]:
        part: list[Incoming] = []
        size = 0
        while self._queue and (not part or size + len(self._queue[0].body) <= MAX_PART_BYTES):
            part.append(self._queue.popleft())
            size += len(part[-1].body)
        self._queued_bytes -= size
        self._room.set()
        return part

    async def _write(self, refused: Sequence[Incoming]) -> None:
        """Write letters, then terminate the messages whose letter the broker confirmed."""
        results = [_DISCONNECTED] * len(refused)
        if self._is_connected:
            results = await self._publisher.publish([self._letter(message) for message in refused])
        self._in_hand.difference_update(message.position for message in refused)
        answers = list(zip(refused, results, strict=True))
        await self._answer([(m, b"+TERM") for m, result in answers if result.outcome is Published.CONFIRMED])
        await self._give_back([pair for pair in answers if pair[1].outcome is not Published.CONFIRMED])

    async def _give_back(self, failed: Sequence[tuple[Incoming, PublishResult]]) -> None:
        """Leave messages in the stream for later, as many as may wait there."""
        now = asyncio.get_running_loop().time()
        self._forget_before(now)
        words: list[tuple[Incoming, bytes]] = []
        for message, result in failed:
            # Nothing is dropped because of an outage, or of a writer that has not come round yet.
            if result is not _NO_ROOM and result.outcome is not Published.DISCONNECTED:
                self._note_trouble(result)
            if self._trouble is not None and len(self._parked) >= self._limits.max_parked:
                self._note_dropped(message)
                words.append((message, b"+TERM"))
                continue
            growth = 2 ** min(message.times_delivered - 1, 20)
            delay_s = min(self._limits.first_delay_s * growth, MAX_DELAY_S)
            self._parked[message.position] = now + delay_s + self._limits.remembered_s
            words.append((message, b"-NAK " + json.dumps({"delay": int(delay_s * 1e9)}).encode()))
        if words:
            await self._answer(words)

    def _letter(self, message: Incoming) -> Outgoing:
        refusal, position = message.refusal, message.position
        assert refusal is not None
        letter = codec.encode_dead_letter(
            refusal,
            stream=self._stream,
            received_at=self._clock.now(),
            body=message.body,
            max_bytes=self._max_bytes,
        )
        # The message's place in the stream, so that a second letter is dropped, and what it says: a broker
        # that has lost its tail gives the same place to another message.
        place = f"{self._stream}-{position.stream_created_us}-{position.sequence}"
        digest = sha256(refusal.subject.encode(errors="replace") + b" " + message.body).hexdigest()[:16]
        return Outgoing(
            self._subjects.dead_letter(self._subjects.tenant_of(refusal.subject)),
            letter,
            head_of({"Nats-Msg-Id": f"{place}-{digest}"}),
        )

    def _forget_before(self, now: float) -> None:
        for position in [p for p, forget_at in self._parked.items() if forget_at < now]:
            del self._parked[position]

    def _note_trouble(self, result: PublishResult) -> None:
        """Say it once per change of state, not per message."""
        if self._trouble is None:
            log.warning("deadletter.delayed", detail=result.detail)
        self._trouble = result.detail

    def _note_dropped(self, message: Incoming) -> None:
        if not self._dropped:
            log.error(
                "deadletter.dropped",
                sequence=message.position.sequence,
                limit=self._limits.max_parked,
                detail=self._trouble,
            )
        self._dropped += 1
        self._count_dropped()

    def _tell_if_over(self) -> None:
        if self._trouble is None:
            return
        self._forget_before(asyncio.get_running_loop().time())
        if not self._parked and not self._queue:
            log.info("deadletter.recovered", dropped=self._dropped)
            self._trouble, self._dropped = None, 0
