"""A process that receives callbacks: it answers at once, and notes when each arrives."""

import asyncio
import json
import ssl
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

from bench.messages import milliseconds

READY = "ready"
KEEP = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
CLOSE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Receiving:
    """What to wait for, until when, and how to answer."""

    count: int
    timeout_s: float
    close: bool = False
    """After each answer."""
    hang: bool = False
    """Never answer; such requests are not counted."""
    certificate: str | None = None
    """A file with key and chain: receive over TLS."""


class Receiver(asyncio.Protocol):
    """One connection; what it needs of a request is found in the bytes, without a parser."""

    def __init__(self, receiving: Receiving, arrived: list[tuple[bytes, float]], done: asyncio.Event) -> None:
        self._receiving = receiving
        self._arrived = arrived
        self._done = done
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._receiving.hang:
            return
        now_ms = time.time_ns() / 1_000_000
        data = self._rest + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            length = int(_header(head, b"content-length") or 0)
            if len(data) < end + 4 + length:
                break
            data = data[end + 4 + length :]
            self._arrived.append((head, now_ms))
            self._transport.write(CLOSE if self._receiving.close else KEEP)
        self._rest = data
        if self._receiving.close and not data:
            self._transport.close()
        if len(self._arrived) >= self._receiving.count:
            self._done.set()


def _header(head: bytes, name: bytes) -> bytes:
    return head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()


async def receive(receiving: Receiving) -> list[tuple[bytes, float]]:
    """Say where callbacks are received, then collect this many, or those that come in time."""
    arrived: list[tuple[bytes, float]] = []
    done, context = asyncio.Event(), None
    if receiving.certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(receiving.certificate)
    server = await asyncio.get_running_loop().create_server(
        lambda: Receiver(receiving, arrived, done), "127.0.0.1", 0, ssl=context, backlog=1024
    )
    print(READY, server.sockets[0].getsockname()[1], flush=True)
    try:
        await asyncio.wait_for(done.wait(), receiving.timeout_s)
    except TimeoutError:
        pass
    return arrived


def describe(head: bytes, received_ms: float) -> tuple[str, int, float]:
    """Return the first part of the path, the due time and the time of arrival, both in ms since 1970."""
    due_ms = milliseconds(_header(head, b"timer-due-at").decode().upper())
    return head.split(b" ", 2)[1].split(b"/")[1].decode(), due_ms, received_ms


def arguments(receiving: Receiving) -> list[str]:
    """Return the command that receives in a process of its own."""
    return [sys.executable, "-m", "bench.receiver", json.dumps(asdict(receiving))]


if __name__ == "__main__":
    # Reading the requests waits until the end, when nothing is measured any more.
    found = uvloop.run(receive(Receiving(**json.loads(sys.argv[1]))))
    print(json.dumps([describe(*each) for each in found]))
