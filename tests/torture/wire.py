"""A TCP proxy between service and broker that does what networks do at their worst."""

import asyncio
import contextlib


class FaultyWire:
    """Forward connections to a local port, as well as the present faults allow."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self.delay_s = 0.0
        self.swallows_replies = False
        self.cut_after_bytes: int | None = None

    async def open(self) -> None:
        """Take connections, on the same port as before."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def part(self) -> None:
        """Drop every connection and take no other."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.reset()

    async def reset(self) -> None:
        """Drop every connection; the next one is welcome."""
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._connections.clear()

    def stall(self) -> None:
        """Keep the connections, but let nothing through: half open, as after a cable was pulled."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        to_broker: asyncio.StreamWriter | None = None
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._target_port)
            await asyncio.gather(
                self._pump(reader, to_broker), self._pump(from_broker, writer, is_reply=True)
            )
        except (OSError, asyncio.CancelledError):
            pass  # Cut, or one side has gone: the other side is closed below.
        finally:
            for end in (writer, to_broker):
                if end is not None:
                    end.transport.abort()
                    with contextlib.suppress(OSError, asyncio.CancelledError):
                        await end.wait_closed()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool = False
    ) -> None:
        while data := await reader.read(65_536):
            await self._flowing.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if is_reply and self.swallows_replies:
                continue
            if self.cut_after_bytes is not None:
                data, self.cut_after_bytes = data[: self.cut_after_bytes], self.cut_after_bytes - len(data)
            writer.write(data)
            await writer.drain()
            if self.cut_after_bytes is not None and self.cut_after_bytes <= 0:
                self.cut_after_bytes = None
                raise ConnectionResetError("cut in the middle of a message")
        raise ConnectionResetError("one side has gone")
