"""Where delivered commands stand among all commands, also after the broker has lost its newest messages."""

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog
from nats.errors import Error as NatsError

from timer_service.adapters.nats.incoming import Delivery
from timer_service.domain.epochs import StreamEpoch, epoch_of, epoch_to_begin, newest_position
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import EPOCH, Position
from timer_service.ports.clock import Clock
from timer_service.ports.stream_epochs import StreamEpochs

BEGIN_TRIES: Final = 10
WARNED_FOR: Final = timedelta(days=1)

log = structlog.get_logger(__name__)


class StreamEnd(NamedTuple):
    """What a stream says of itself."""

    created_us: int
    last_sequence: int
    last_stored_us: int
    """When its newest message was stored, in microseconds since 1970; 0 if it is not known."""


Ask = Callable[[], Awaitable[StreamEnd]]
StoredUs = Callable[[int], Awaitable[int]]
"""When the message under a sequence was stored; 0 if that cannot be known."""


async def not_known(_: int) -> int:
    """Say that no message can be read."""
    return 0


def read_stream_end(answer: bytes) -> StreamEnd:
    """Read the broker's answer to the question for a stream. Raises NatsError if it is an error.

    nats-py drops when the newest message was stored.
    """
    info = json.loads(answer)
    if "error" in info:
        raise NatsError(str(info["error"].get("description", "the command stream does not answer")))
    state = info["state"]
    return StreamEnd(microseconds(info["created"]), int(state["last_seq"]), microseconds(state["last_ts"]))


def microseconds(text: str) -> int:
    """Read a time of the broker as microseconds since 1970."""
    return max(0, (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1))


class CommandPositions:
    """Gives every delivered command its position, and notices when the broker has lost some.

    The store remembers the newest command that was applied. A stream that ends before it, or that holds
    another message in its place, has lost its tail: a new epoch begins, and new commands count again.
    """

    def __init__(self, store: StreamEpochs, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._epochs: Sequence[StreamEpoch] = []
        """Those of the stream that is in use."""
        self._seen = Position(0, 0)
        """The newest message of the newest epoch that was delivered or applied, and the latest storing."""
        self._overwritten = False
        self._set_aside: dict[int, str] = {}
        """How to answer for the newest delivery of each message; the broker repeats it until then."""
        self._lost_at: datetime | None = None

    async def learn(self, ask: Ask, stored_us: StoredUs = not_known) -> None:
        """Compare the stream with what was applied, and begin a new epoch if it has lost something.

        Also if its newest messages are gone and others have taken their places before anybody looked: until
        these are delivered, nothing else tells, and an acknowledgement of what is in hand would end them.
        """
        begun: StreamEpoch | None = None
        for _ in range(BEGIN_TRIES):
            # Before the stream is asked: what is applied or delivered from here on is in its answer as well.
            known = await self._store.stream_epochs()
            seen = self._known_to_all(known)
            end = await ask()
            if self.epoch == seen.stream_created_us and 0 < seen.sequence <= end.last_sequence:
                self._overwritten |= 0 < seen.stored_us < await stored_us(seen.sequence)
            fresh = epoch_to_begin(
                known, end.created_us, end.last_sequence, seen, overwritten=self._overwritten
            )
            if fresh is None:
                self._use([e for e in known if e.stream_created_us == end.created_us], end, begun)
                return
            if await self._store.begin_epoch(fresh):  # If not, another instance was first: look again.
                begun = fresh
        raise NatsError("the epochs of the command stream change too often")

    def _known_to_all(self, known: Sequence[StreamEpoch]) -> Position:
        """Return the newest message that was seen, here or by an instance that has applied it since."""
        applied = newest_position(known)
        if applied.stream_created_us == self._seen.stream_created_us:
            self._see(applied)
        return self._seen

    def _use(self, epochs: Sequence[StreamEpoch], end: StreamEnd, begun: StreamEpoch | None) -> None:
        newest, before = epochs[-1], self._seen
        if newest.number == before.stream_created_us:
            return
        was_in_use = any(epoch.number == before.stream_created_us for epoch in epochs)
        self._epochs = epochs
        self._seen = Position(newest.number, newest.last_sequence, newest.last_stored_us)
        self._overwritten = False
        if was_in_use or (begun is not None and len(epochs) > 1):
            self._lost_at = self._clock.now()
            expected = max(before.sequence, epochs[-2].last_sequence)
            log.error("stream.tail_lost", expected=expected, found=end.last_sequence)

    @property
    def warning(self) -> str | None:
        """What was lost lately."""
        if self._lost_at is None or self._clock.now() - self._lost_at > WARNED_FOR:
            return None
        return (
            "the broker came back without its newest commands: those it had confirmed but we had not "
            "applied are lost, and their senders must repeat them; new ones are applied"
        )

    def of(self, delivery: Delivery) -> Position | None:
        """Return where a delivered message stands; None if that is not known before the next `learn`."""
        seen, sequence, stored_us = self._seen, delivery.sequence, delivery.stored_us
        number = epoch_of(self._epochs, sequence, stored_us)
        if number == seen.stream_created_us and sequence <= seen.sequence and 0 < seen.stored_us < stored_us:
            self._overwritten = True  # Stored later than what was there before: the sequence was given away.
        if self._overwritten:
            return None
        position = Position(number, sequence, stored_us)
        if number == seen.stream_created_us:
            self._see(position)
        return position

    def set_aside(self, sequence: int, reply: str) -> None:
        """Keep in mind that a message without a position has to be delivered again."""
        self._set_aside[sequence] = reply

    def take_aside(self) -> list[str]:
        """Return what was set aside, once positions are known again."""
        taken, self._set_aside = self._set_aside, {}
        return list(taken.values())

    async def newest(self, ask: Ask) -> Position:
        """Return the position of the newest command. Raises BusUnavailable if it is not known."""
        seen = self._seen
        end = await ask()
        if not self._epochs or self._epochs[-1].stream_created_us != end.created_us:
            raise BusUnavailable("the command stream was recreated a moment ago")
        number = self._epochs[-1].number
        if number != seen.stream_created_us or end.last_sequence < seen.sequence or self._overwritten:
            raise BusUnavailable("the command stream lost its newest messages a moment ago")
        newest = Position(number, end.last_sequence, end.last_stored_us)
        self._see(newest)
        return newest

    async def seen(self) -> Position:
        """Return the newest position that was delivered here, or applied by any instance."""
        return max(self._seen, newest_position(await self._store.stream_epochs()))

    def _see(self, position: Position) -> None:
        seen = self._seen
        # Usually the newer of the two in everything, and nothing has to be made.
        if position.sequence >= seen.sequence and position.stored_us >= seen.stored_us > 0:
            self._seen = position
        elif position.stored_us:
            self._seen = Position(
                seen.stream_created_us,
                max(position.sequence, seen.sequence),
                max(position.stored_us, seen.stored_us),
            )

    @property
    def epoch(self) -> int:
        """The newest epoch of the stream that is in use; 0 before it was looked at."""
        return self._epochs[-1].number if self._epochs else 0

    def is_current(self, epoch: int) -> bool:
        """Return whether the stream still holds under its sequence what was delivered in an epoch.

        What was delivered before a loss may be lost, and its sequence another message's. If it is not, it
        comes again.
        """
        return bool(self._epochs) and epoch == self.epoch
