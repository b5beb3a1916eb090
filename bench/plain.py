"""What one thread does with the broker over a plain socket: an asyncio protocol and no client library.

This is the limit that counts: what is missing to it is neither the broker's time nor the interpreter's, but
that of the code in between.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Final, cast

import uvloop

from bench.harness import COMMANDS_STREAM, Broker
from bench.messages import due_time_reached, frame, uuid7
from bench.nats_socket import CONNECT

WINDOW: Final = 4_000
"""Events on their way without a confirmation."""
BATCH: Final = 1_000
PULLS: Final = 4
CONSUMER: Final = "plain"
INBOX: Final = "_INBOX.plain"
PAUSE_S: Final = 0.002
TIMEOUT_S: Final = 120.0


class _Plain(asyncio.Protocol):
    """Finds the messages in what comes in, and calls `on_replies` with the reply subjects of one read."""

    def __init__(self) -> None:
        self._buffer = b""
        self.failed: str | None = None
        self.done = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(b"CONNECT " + json.dumps(CONNECT).encode() + b"\r\n")
        self.transport.write(f"SUB {INBOX}.* 1\r\n".encode())

    def data_received(self, data: bytes) -> None:
        buffer, at = self._buffer + data, 0
        replies: list[bytes] = []
        while (end := buffer.find(b"\r\n", at)) >= 0:
            if buffer.startswith((b"MSG ", b"HMSG "), at):
                tokens = buffer[at:end].split(b" ")
                after = end + 2 + int(tokens[-1]) + 2
                if len(buffer) < after:
                    break
                replies.append(self.reply(tokens, buffer[end + 2 : after - 2]))
                at = after
                continue
            if buffer.startswith(b"PING", at):
                self.transport.write(b"PONG\r\n")
            elif buffer.startswith(b"-ERR", at):
                self.fail(buffer[at:end].decode())
            at = end + 2
        self._buffer = buffer[at:]
        self.on_replies(replies)

    def fail(self, reason: str) -> None:
        self.failed = reason
        self.done.set()

    def reply(self, tokens: list[bytes], body: bytes, /) -> bytes:
        """Return where a message is answered to; nothing if it is not answered."""
        raise NotImplementedError

    def on_replies(self, replies: list[bytes]) -> None:
        """Go on."""
        raise NotImplementedError


class _Publishing(_Plain):
    """Keeps a window of events on their way until all are confirmed."""

    def __init__(self, frames: list[bytes]) -> None:
        super().__init__()
        self._frames = frames
        self._sent = self._confirmed = 0

    def reply(self, _: list[bytes], body: bytes) -> bytes:
        if b'"error"' in body or not body:
            self.fail(body.decode())
        return b""

    def on_replies(self, replies: list[bytes]) -> None:
        self._confirmed += len(replies)
        if self._confirmed == len(self._frames):
            self.done.set()
        upto = min(self._confirmed + WINDOW, len(self._frames))
        if upto > self._sent:
            self.transport.write(b"".join(self._frames[self._sent : upto]))
            self._sent = upto


class _Reading(_Plain):
    """Keeps a few pull requests open and acknowledges what comes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._read = 0
        self._asked = 0

    def reply(self, tokens: list[bytes], _: bytes) -> bytes:
        # Without a reply subject it is what JetStream says about the pull.
        return tokens[3] if len(tokens) == (6 if tokens[0] == b"HMSG" else 5) else b""

    def on_replies(self, replies: list[bytes]) -> None:
        acks = [b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies if reply]
        self._read += len(acks)
        while self._asked < self._read + PULLS * BATCH:
            acks.append(_PULL)
            self._asked += BATCH
        if acks:
            self.transport.write(b"".join(acks))
        if self._read >= self._count:
            self.done.set()


_REQUEST: Final = json.dumps({"batch": BATCH, "expires": 30_000_000_000})
_NEXT: Final = f"$JS.API.CONSUMER.MSG.NEXT.{COMMANDS_STREAM}.{CONSUMER}"
_PULL: Final = f"PUB {_NEXT} {INBOX}.pull {len(_REQUEST)}\r\n{_REQUEST}\r\n".encode()


def publish(broker: Broker, count: int) -> float:
    """Return how many events per second are published and confirmed, each with its id."""
    broker.create_stream("TIMER_EVENTS", ["timer.events.>"])
    frames = list(_events(count))
    return count / uvloop.run(_timed(broker, _Publishing(frames)))


def _events(count: int) -> Iterator[bytes]:
    due_ms = time.time_ns() // 1_000_000
    for number in range(count):
        call = uuid7(due_ms, number)
        body = due_time_reached("acme", call, due_ms, due_ms, call)
        yield frame("timer.events.acme.DueTimeReached", f"{INBOX}.a", {"Nats-Msg-Id": call}, body)


def read_and_ack(broker: Broker, count: int) -> float:
    """Return how many commands per second are pulled and acknowledged, until the stream is empty."""
    config = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": 20 * BATCH}
    broker.request(
        f"CONSUMER.DURABLE.CREATE.{COMMANDS_STREAM}.{CONSUMER}",
        {"stream_name": COMMANDS_STREAM, "config": config},
    )
    return count / uvloop.run(_timed(broker, _Reading(count), until_empty=True))


async def _timed(broker: Broker, protocol: _Plain, *, until_empty: bool = False) -> float:
    started = time.perf_counter()
    await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", broker.port)
    protocol.on_replies([])
    async with asyncio.timeout(TIMEOUT_S):
        await protocol.done.wait()
        while until_empty and broker.stored(COMMANDS_STREAM):
            await asyncio.sleep(PAUSE_S)
    seconds = time.perf_counter() - started
    protocol.transport.close()
    if protocol.failed:
        raise RuntimeError(protocol.failed)
    return seconds
