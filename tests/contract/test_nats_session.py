"""The session with a real broker: a connection that looks alive must also answer."""

import asyncio
import json
from collections.abc import AsyncIterator

import nats
import pytest
from nats.errors import Error as NatsError
from structlog.testing import capture_logs

from tests.contract.buses import until
from tests.contract.test_nats_requests import FakeTimers
from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.proxy import Wire
from tests.support.timers import reached
from timer_service.adapters.nats import bus as bus_module
from timer_service.adapters.nats import connecting
from timer_service.adapters.nats.bus import NatsEventBus, NatsOptions
from timer_service.adapters.nats.streams import Streams, ensure_streams
from timer_service.domain.errors import StoreBusy
from timer_service.testing import ManualClock, MemoryTimerStore


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


async def until_connected(bus: NatsEventBus) -> None:
    async def connected() -> bool:
        return bus.problem is None

    await until(connected, "the bus to be connected")


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


async def test_the_store_agrees_to_the_history_before_requests_are_answered(
    shared_broker: NatsServer, prefix: str
) -> None:
    met: list[int] = []
    options = NatsOptions(connect={"servers": [shared_broker.url]}, prefix=prefix)

    async def meet(acknowledged: int) -> None:
        met.append(acknowledged)
        if len(met) == 1:
            raise StoreBusy("not yet")

    serving = asyncio.Event()
    bus = NatsEventBus(
        options, ManualClock(), lambda: 0.5, MemoryTimerStore(), connected=serving.set, meet_history=meet
    )
    client = await nats.connect(shared_broker.url)

    try:
        async with (
            bus.running(),
            FakeTimers().api(prefix) as api,
            asyncio.timeout(PATIENCE_S),
        ):
            bus.attach(api)
            await serving.wait()
            answer = await client.request(f"{prefix}.status", b"", timeout=PATIENCE_S)
    finally:
        await client.close()

    assert met == [0, 0]
    assert json.loads(answer.data)["instance"] == "here-1"


async def test_a_look_at_the_streams_that_fails_ends_no_session_on_which_messages_pass(
    shared_broker: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(bus_module, "WATCH_INTERVAL_S", 0.001)
    options = NatsOptions(connect={"servers": [shared_broker.url]}, prefix=prefix)
    bus = NatsEventBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
    looks: list[str] = []

    async def no_answer(*_: object, **__: object) -> Streams:
        looks.append("vain")
        raise TimeoutError

    async def looked() -> bool:
        return len(looks) >= 3

    with capture_logs() as log:
        async with bus.running():
            await until_connected(bus)
            monkeypatch.setattr(bus_module, "ensure_streams", no_answer)
            await until(looked, "three looks in vain")

    assert [line["event"] for line in log] == ["broker.connected"]


async def test_a_missing_stream_that_cannot_be_made_is_an_outage(
    shared_broker: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "WATCH_INTERVAL_S", 0.001)
    options = NatsOptions(connect={"servers": [shared_broker.url]}, prefix=prefix)
    bus = NatsEventBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
    client = await nats.connect(shared_broker.url)

    async def forbidden(*_: object, **__: object) -> Streams:
        raise NatsError("the stream cannot be made")

    async def away() -> bool:
        return bus.problem == "the stream cannot be made"

    async with bus.running():
        await until_connected(bus)
        monkeypatch.setattr(bus_module, "ensure_streams", forbidden)
        await client.jetstream().delete_stream(f"{prefix.upper()}_EVENTS")
        await bus.publish([reached("order-1", 0)])
        await until(away, "the bus to say why")
        monkeypatch.setattr(bus_module, "ensure_streams", ensure_streams)
        await until_connected(bus)
    await client.close()
