"""Messages that were delivered to us and wait for their turn."""

import asyncio
from collections import deque
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters import codec
from timer_service.domain.errors import CommandRefused
from timer_service.domain.messages import Command, Position
from timer_service.ports.command_source import Refusal

MAX_BUFFERED_BYTES: Final = 8 * 1024 * 1024


class Incoming(NamedTuple):
    """A message that was delivered to us: a command, or why it is not one."""

    reply: str
    position: Position
    times_delivered: int
    command: Command | None
    refusal: Refusal | None = None
    body: bytes = b""
    """Kept only of what is refused."""
    epoch: int = 0
    """The newest epoch of the stream when it was delivered."""


def read_incoming(subjects: Subjects, message: Msg, position: Position, times: int, epoch: int) -> Incoming:
    """Read a delivered message, or find out why it cannot be read."""
    try:
        command = codec.decode_command(subjects, message.subject, message.data, position, message.headers)
    except CommandRefused as error:
        # What the error says, not the error: its traceback would keep the whole message in memory.
        refusal = Refusal(error.reason, error.detail, message.subject, position.sequence)
        # One byte more than a letter holds, so that it shows as cut.
        body = message.data[: wire.MAX_LETTER_BODY_BYTES + 1]
        return Incoming(message.reply, position, times, None, refusal, body, epoch)
    return Incoming(message.reply, position, times, command, epoch=epoch)


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
        """Return the oldest messages, a batch of them or so many."""
        count = min(len(self._messages), self._batch_size if limit is None else limit)
        messages = [self._messages.popleft() for _ in range(count)]
        self._bytes -= sum(len(message.body) for message in messages)
        return messages

    def take_all(self) -> list[Incoming]:
        """Return everything."""
        return self.take(len(self._messages))
