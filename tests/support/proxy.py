"""A wire between client and broker that a test can cut."""

import asyncio
import contextlib


class Wire:
    """Forward TCP connections to a local port; cut, it drops them all and takes no other."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def mend(self) -> None:
        """Take connections, on the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
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
        """Pass on what comes in; a wire with faults treats the broker's replies in its own way."""
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side has gone")
