"""A message that the broker has delivered: what it says of the message, and what the message says."""

from datetime import datetime
from typing import Final

from msgspec import Struct

from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters import codec
from timer_service.adapters.nats.client import Arrived
from timer_service.domain.errors import CommandRefused
from timer_service.domain.messages import Command, Position
from timer_service.ports.command_source import Refusal

ACK_PREFIX: Final = "$JS.ACK."


class Delivery(Struct, frozen=True, gc=False):
    """What the broker says about a delivered message."""

    sequence: int
    times_delivered: int
    stored_us: int
    """When the broker stored it, in microseconds since 1970."""


class Incoming(Struct, frozen=True, gc=False):
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


def read_delivery(reply: str) -> Delivery:
    """Read the numbers out of an acknowledgement subject, in its old or its new form."""
    tokens = reply.split(".")
    # $JS.ACK.<stream>.<consumer>.… or $JS.ACK.<domain>.<account>.<stream>.<consumer>.…
    first = 4 if len(tokens) == 9 else 6
    return Delivery(int(tokens[first + 1]), int(tokens[first]), int(tokens[first + 3]) // 1000)


def read_incoming(
    subjects: Subjects,
    message: Arrived,
    position: Position,
    times: int,
    epoch: int,
    delays_from: datetime | None = None,
) -> Incoming:
    """Read a delivered message, or find out why it cannot be read."""
    try:
        command = codec.decode_command(
            subjects, message.subject, message.data, position, message.headers, delays_from
        )
    except CommandRefused as error:
        # What the error says, not the error: its traceback would keep the whole message in memory.
        refusal = Refusal(error.reason, error.detail, message.subject, position.sequence)
        # One byte more than a letter holds, so that it shows as cut.
        body = message.data[: wire.MAX_LETTER_BODY_BYTES + 1]
        return Incoming(message.reply, position, times, None, refusal, body, epoch)
    return Incoming(message.reply, position, times, command, None, b"", epoch)
