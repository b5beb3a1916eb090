"""A receiver of callbacks on a real socket, which answers the bytes that a test gives it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Received:
    """One request as it came over the wire."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[bool]]
"""Write an answer; return whether the connection is kept."""


@dataclass
class Receiver:
    """What has come in, and what is answered."""

    port: int = 0
    answer: bytes | Answer = OK
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    scheme: str = "http"

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while await self._serve_one(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The other side has gone.
        finally:
            writer.close()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Received(line, headers, body, number)
        self.requests.append(request)
        if not isinstance(self.answer, bytes):
            return await self.answer(request, writer)
        writer.write(self.answer)
        await writer.drain()
        return True


@asynccontextmanager
async def receiving(
    context: ssl.SSLContext | None = None, answer: bytes | Answer = OK
) -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of the loopback address."""
    receiver = Receiver(answer=answer, scheme="http" if context is None else "https")
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(receiver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
