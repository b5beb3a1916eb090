"""A TCP proxy between service and broker that does what networks do at their worst."""

import asyncio

from tests.support.proxy import Wire


class FaultyWire(Wire):
    """Forward connections to a local port, as well as the present faults allow."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.delay_s = 0.0
        self.swallows_replies = False
        self.cut_after_bytes: int | None = None

    async def mend(self) -> None:
        """Take connections again, where none are taken."""
        if self._server is None:
            await super().mend()

    def stall(self) -> None:
        """Keep the connections, but let nothing through: half open, as after a cable was pulled."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

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
