"""The session with a real broker: a connection that looks alive must also answer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.contract.buses import until
from tests.support.broker import NatsServer
from tests.support.clock import ManualClock
from tests.support.proxy import Wire
from timer_service.adapters.memory import MemoryTimerStore
from timer_service.adapters.nats import bus as bus_module
from timer_service.adapters.nats import connecting
from timer_service.adapters.nats.bus import NatsEventBus, NatsOptions


class StoppedWire(Wire):
    """A wire that can be stopped: connections stay, nothing passes."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.passing = asyncio.Event()
        self.passing.set()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool = False
    ) -> None:
        while data := await reader.read(65_536):
            await self.passing.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one side has gone")


@pytest.fixture
async def wire(shared_broker: NatsServer) -> AsyncIterator[StoppedWire]:
    made = StoppedWire(shared_broker.port)
    await made.mend()
    yield made
    await made.cut()


async def test_a_connection_on_which_nothing_passes_is_given_up_by_the_watch(
    wire: StoppedWire, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the client's own pings: the watch must notice by itself."""
    monkeypatch.setattr(connecting, "PING_INTERVAL_S", 3_600)
    monkeypatch.setattr(bus_module, "ANSWER_TIMEOUT_S", 1)
    options = NatsOptions(connect={"servers": [f"nats://127.0.0.1:{wire.port}"]}, prefix=prefix)
    bus = NatsEventBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())

    async def connected() -> bool:
        return bus.problem is None

    async def away() -> bool:
        return bus.problem is not None

    async with bus.running():
        await until(connected, "the bus to be connected")
        wire.passing.clear()
        await until(away, "the bus to notice that nothing passes")
        wire.passing.set()
        await until(connected, "the bus to be connected again")
