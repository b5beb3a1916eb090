"""The way of a command from the socket to a batch: pulled ahead of the work, read, buffered, handed out."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from timer_service.adapters.nats.client import Arrived, TolerantClient
from timer_service.adapters.nats.incoming import ACK_PREFIX, Incoming, read_delivery, read_incoming
from timer_service.adapters.nats.letters import Letters
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.outage import Outage
from timer_service.adapters.nats.positions import CommandPositions
from timer_service.adapters.nats.replies import Replies
from timer_service.adapters.nats.streams import CONSUMER_NAME
from timer_service.ports.command_source import Refusal

PULLS_AHEAD: Final = 2
PULL_EXPIRES_S: Final = 5.0
PULL_LOST_AFTER_S: Final = PULL_EXPIRES_S + 2.0
MAX_PULL_BYTES: Final = 4 * 1024 * 1024
"""Bounds memory when messages are large: a batch is bounded by messages and by bytes."""
MAX_BUFFERED_BYTES: Final = 8 * 1024 * 1024

_PULL_ENDED: Final = (
    "message size exceeds maxbytes",
    "batch completed",
    "leadership change",
    "server shutdown",
)


class NatsBatch:
    """Messages that were at hand together."""

    def __init__(self, messages: Sequence[Incoming], replies: Replies, letters: Letters) -> None:
        self._replies = replies
        self._letters = letters
        self._accepted = [m for m in messages if m.command is not None]
        self._refused = [m for m in messages if m.command is None]
        self.commands = [m.command for m in messages if m.command is not None]
        self.redelivered = sum(m.times_delivered > 1 for m in messages)

    async def acknowledge(self) -> None:
        """Tell the broker that every command is kept."""
        await self._replies.send([(message, b"+ACK") for message in self._accepted])

    async def dead_letter(self) -> Sequence[Refusal]:
        """Have letters written for the rest."""
        return await self._letters.take(self._refused)


class Inbox:
    """The outstanding pull requests of one connection, and what they brought.

    nats-py's own `fetch` waits for one request at a time; with two under way the broker is never idle.
    """

    def __init__(
        self,
        options: NatsOptions,
        positions: CommandPositions,
        replies: Replies,
        letters: Letters,
        outage: Outage,
        over: asyncio.Event,
        elapsed_s: Callable[[], float] = time.monotonic,
        delays_from: Callable[[], datetime] | None = None,
    ) -> None:
        next_of = f"{options.streams.commands}.{CONSUMER_NAME}"
        self._next_subject = f"{options.api_prefix}.CONSUMER.MSG.NEXT.{next_of}"
        self._subjects = options.subjects
        self._positions = positions
        self._replies = replies
        self._letters = letters
        self._batch_size = options.batch_size
        self._outage = outage
        self._over = over
        self._elapsed_s = elapsed_s
        self._delays_from = delays_from
        self._client: TolerantClient | None = None
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._request = b""
        self._pulls = 0
        self._open: dict[int, _Pull] = {}
        self.buffer = Buffer(options.batch_size)

    @property
    def is_open(self) -> bool:
        """Whether messages are asked for."""
        return self._client is not None

    async def start(self, client: TolerantClient) -> None:
        """Listen for messages and ask for the first."""
        self._inbox = client.new_inbox()
        self._open.clear()
        self._request = json.dumps(
            {
                "batch": self._batch_size,
                "max_bytes": max(MAX_PULL_BYTES, 2 * client.max_payload),
                "expires": int(PULL_EXPIRES_S * 1_000_000_000),
            }
        ).encode()
        self._subscription = await client.take_together(f"{self._inbox}.*", self._on_messages)
        self._client = client
        await self.top_up()

    async def stop(self) -> None:
        """Listen no more; what the broker still sends is delivered again later."""
        self._client, subscription, self._subscription = None, self._subscription, None
        if subscription is not None:
            with suppress(NatsError, OSError):
                await subscription.unsubscribe()

    def lost(self) -> None:
        """Ask for nothing until there is a connection again; what is buffered stays."""
        self._client = self._subscription = None

    async def top_up(self) -> None:
        """Ask for more, as long as there is room for it."""
        now = self._elapsed_s()
        for number in [n for n, pull in self._open.items() if pull.lost_at < now]:
            del self._open[number]
        while self._client is not None and len(self._open) < PULLS_AHEAD and self.buffer.has_room():
            self._pulls += 1
            self._open[self._pulls] = _Pull(self._batch_size, now + PULL_LOST_AFTER_S)
            await self._client.publish(
                self._next_subject, self._request, reply=f"{self._inbox}.{self._pulls}"
            )

    async def _on_messages(self, messages: Sequence[Arrived]) -> None:
        """Read what came in one go, and ask for more where a request has ended."""
        taken, more, epoch = 0, False, self._positions.epoch
        now = None if self._delays_from is None else self._delays_from()
        for message in messages:
            if message.reply.startswith(ACK_PREFIX):
                self._take(message, epoch, now)
                taken += 1
            elif message.headers and "Status" in message.headers:
                self._ends_a_pull(taken)
                self._on_status(message, message.headers)
                taken, more = 0, True
        if self._ends_a_pull(taken) or more:
            await self.top_up()

    def _take(self, message: Arrived, epoch: int, now: datetime | None) -> None:
        delivery = read_delivery(message.reply)
        position = self._positions.of(delivery)
        if position is None:
            self._positions.set_aside(delivery.sequence, message.reply)
        else:
            times = delivery.times_delivered
            self.buffer.put(read_incoming(self._subjects, message, position, times, epoch, now))

    def _ends_a_pull(self, taken: int) -> bool:
        # The broker serves pulls in order; if not, the expiry corrects the count.
        before = len(self._open)
        for number, pull in list(self._open.items()):
            pull.remaining, taken = pull.remaining - taken, taken - pull.remaining
            if pull.remaining > 0:
                break
            del self._open[number]
        return len(self._open) < before

    def _on_status(self, message: Arrived, headers: Mapping[str, str]) -> None:
        status, description = headers["Status"], headers.get("Description", "")
        self._open.pop(int(message.subject.rpartition(".")[2]), None)
        ended = status in ("404", "408") or description.lower().startswith(_PULL_ENDED)
        if not ended:
            self._outage.begin(f"the command consumer is gone: {status} {description}".rstrip())
            self._over.set()

    async def receive(self) -> NatsBatch:
        """Wait for messages and return those at hand, at least one and at most a batch."""
        await self.buffer.wait()
        with suppress(NatsError, OSError):
            await self.top_up()
        # Taken without an await, so that cancelling loses nothing.
        return NatsBatch(self.buffer.take(), self._replies, self._letters)


class _Pull:
    """One request under way."""

    __slots__ = ("lost_at", "remaining")

    def __init__(self, remaining: int, lost_at: float) -> None:
        self.remaining = remaining
        self.lost_at = lost_at


class Buffer:
    """What was delivered and not yet asked for, bounded by count and by bytes."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._messages: deque[Incoming] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Incoming) -> None:
        """Take a message in."""
        self._messages.append(message)
        self._bytes += len(message.body)
        if len(self._messages) == 1:
            self._arrived.set()

    def has_room(self) -> bool:
        """Return whether more may be asked for."""
        return len(self._messages) < 2 * self._batch_size and self._bytes < MAX_BUFFERED_BYTES

    async def wait(self) -> None:
        """Wait until there is something."""
        while not self._messages:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self, limit: int | None = None) -> list[Incoming]:
        """Return the oldest messages, a batch of them or `limit`."""
        count = min(len(self._messages), self._batch_size if limit is None else limit)
        messages = [self._messages.popleft() for _ in range(count)]
        self._bytes -= sum(len(message.body) for message in messages)
        return messages

    def take_all(self) -> list[Incoming]:
        """Return everything."""
        return self.take(len(self._messages))
