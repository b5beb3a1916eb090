"""A proxy that serves another server below a path of its own, as operators put a page beside others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

MAX_HEAD_BYTES = 64 * 1024


class PrefixProxy:
    """Take the prefix off each path and pass the rest on; one connection, one request.

    It can be cut: then it drops what is open and refuses what comes.
    """

    def __init__(self, target_port: int, prefix: str) -> None:
        self._target_port = target_port
        self._prefix = prefix.encode()
        self._open: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["PrefixProxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._prefix.decode()}"

    @property
    def open_count(self) -> int:
        """Return how many requests are being answered."""
        return len(self._open)

    async def cut(self) -> None:
        """Drop every connection and refuse the next ones."""
        self._is_cut = True
        for each in self._open:
            each.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if not self._is_cut:
                await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # Browsers close connections that they opened in advance; tests cut them.
        finally:
            self._open.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, rest = head.split(b" ", 2)
        if not path.startswith(self._prefix + b"/"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        version, _, headers = rest.partition(b"\r\n")
        kept = b"".join(
            line + b"\r\n"
            for line in headers.split(b"\r\n")
            if line and not line.lower().startswith(b"connection:")
        )
        answer, request = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            request.write(b"%b %b %b\r\n" % (method, path.removeprefix(self._prefix), version))
            request.write(kept + b"Connection: close\r\n\r\n")
            await _first_to_end(_copy(reader, request), _copy(answer, writer))
        finally:
            request.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()


async def _first_to_end(*copies: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(each) for each in copies]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
