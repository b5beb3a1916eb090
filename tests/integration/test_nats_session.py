"""The session with a real broker: a connection that looks alive must also answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import nats
import pytest
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from structlog.testing import capture_logs

from tests.integration.test_nats_requests import FakeTimers
from tests.support.broker import NatsServer
from tests.support.lines import until
from tests.support.patience import PATIENCE_S
from tests.support.proxy import Wire
from tests.support.timers import reached
from timer_service.adapters.nats.bus import USUAL_MEANS, NatsBus, NatsMeans
from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.session import SessionMeans
from timer_service.domain.errors import BusUnavailable, StoreBusy
from timer_service.ports.event_sink import Published
from timer_service.testing import ManualClock, MemoryTimerStore

Client = TypeVar("Client", bound=TolerantClient)


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


class Desk:
    """A bus whose questions for streams fail as long as a test has an error for them."""

    def __init__(self, server: str, prefix: str, session: SessionMeans) -> None:
        self.error: Exception | None = None
        self.failed = 0
        means = NatsMeans(session=replace(session, make_client=self._make_client))
        self.bus = new_bus(server, prefix, means)

    def _make_client(self) -> TolerantClient:
        desk = self

        class _Context(JetStreamContext):
            async def stream_info(self, name: str, subjects_filter: str | None = None) -> StreamInfo:
                if desk.error is not None:
                    desk.failed += 1
                    raise desk.error
                return await super().stream_info(name, subjects_filter)

        class _Client(TolerantClient):
            def jetstream(self, **options: Any) -> JetStreamContext:
                return _Context(self, **options)

        return _Client()


def new_bus(server: str, prefix: str, means: NatsMeans = USUAL_MEANS) -> NatsBus:
    options = NatsOptions(connect={"servers": [server]}, prefix=prefix)
    return NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore(), means=means)


@pytest.fixture
async def wire(shared_broker: NatsServer) -> AsyncIterator[StoppedWire]:
    made = StoppedWire(shared_broker.port)
    await made.mend()
    yield made
    await made.cut()


async def until_connected(bus: NatsBus) -> None:
    async def connected() -> bool:
        return bus.source.problem is None

    await until(connected, "the bus to be connected")


async def test_a_connection_on_which_nothing_passes_is_given_up_by_the_watch(
    wire: StoppedWire, prefix: str
) -> None:
    """Without the client's own pings: the watch must notice by itself."""
    means = NatsMeans(session=SessionMeans(ping_interval_s=3_600, answer_timeout_s=1))
    bus = new_bus(f"nats://127.0.0.1:{wire.port}", prefix, means)

    async def connected() -> bool:
        return bus.source.problem is None

    async def away() -> bool:
        # Not what is wrong with the source: a stream that only falls silent is no reason to give up.
        return bus.away_since is not None

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
    bus = NatsBus(
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
    shared_broker: NatsServer, prefix: str
) -> None:
    desk = Desk(shared_broker.url, prefix, SessionMeans(look_interval_s=0.0, watch_interval_s=0.001))

    async def looked() -> bool:
        return desk.failed >= 3

    with capture_logs() as log:
        async with desk.bus.running():
            await until_connected(desk.bus)
            desk.error = TimeoutError()
            await until(looked, "three looks in vain")

    assert [line["event"] for line in log] == ["broker.connected"]


async def test_a_missing_stream_that_cannot_be_made_is_an_outage(
    shared_broker: NatsServer, prefix: str
) -> None:
    desk = Desk(shared_broker.url, prefix, SessionMeans(watch_interval_s=0.001))
    bus = desk.bus
    client = await nats.connect(shared_broker.url)

    async def away() -> bool:
        return bus.source.problem == "the stream cannot be made"

    async with bus.running():
        await until_connected(bus)
        desk.error = NatsError("the stream cannot be made")
        await client.jetstream(timeout=PATIENCE_S).delete_stream(f"{prefix.upper()}_EVENTS")
        await bus.sink.publish([reached("order-1", 0)])
        await until(away, "the bus to say why")
        desk.error = None
        await until_connected(bus)
    await client.close()


# Events while commands are away


@pytest.mark.parametrize(
    "unanswered", ["$JS.API.STREAM.INFO.TIMER_COMMANDS", "$JS.API.CONSUMER.>"], ids=["stream", "consumer"]
)
async def test_events_go_out_although_commands_cannot_be_received(tmp_path: Path, unanswered: str) -> None:
    """A request that is denied gets no answer, like one to a stream whose only server is down."""
    config = f"""no_auth_user: all
        authorization {{ users: [{{ user: all, password: secret, permissions: {{
          publish: {{ deny: ["{unanswered}"] }}
        }} }}] }}"""
    server = NatsServer(tmp_path, config).start()
    bus = new_bus(server.url, "timer")

    async def said() -> bool:
        return bus.sink.problem is None and "permissions violation" in (bus.source.problem or "")

    try:
        async with bus.running():
            await until(said, "the sink to be open and the source to say what is missing")
            results = await bus.sink.publish([reached("order-1", 0)])
            with pytest.raises(BusUnavailable, match="permissions violation"):
                await bus.source.backlog({})
    finally:
        server.stop()

    assert [result.outcome for result in results] == [Published.CONFIRMED]


class _SilentClient(TolerantClient):
    """A client whose questions for the command stream get no answer, as long as a test wants it."""

    silent = False

    async def request(self, subject: str, *args: Any, **options: Any) -> Msg:
        if self.silent and ".STREAM.INFO." in subject:
            raise NatsTimeoutError
        return await super().request(subject, *args, **options)


async def test_a_command_stream_that_falls_silent_is_said_and_stops_no_event(
    shared_broker: NatsServer, prefix: str
) -> None:
    made: list[_SilentClient] = []

    def make_client() -> TolerantClient:
        made.append(_SilentClient())
        return made[-1]

    means = NatsMeans(session=SessionMeans(make_client=make_client, watch_interval_s=0.001))
    bus = new_bus(shared_broker.url, prefix, means)

    async def silent() -> bool:
        return bus.source.problem == "the command stream does not answer: nats: timeout"

    async with bus.running():
        await until_connected(bus)
        made[-1].silent = True
        await until(silent, "the source to say that its stream does not answer")
        problem, results = bus.sink.problem, await bus.sink.publish([reached("order-1", 0)])
        made[-1].silent = False
        await until_connected(bus)

    assert (problem, [result.outcome for result in results]) == (None, [Published.CONFIRMED])
    assert len(made) == 1


class _SlowToDie(TolerantClient):
    """A client whose end is told once more, later: as on a dead socket that the system gives up at last."""

    async def connect(self, *args: Any, **options: Any) -> None:
        self.tell_its_end = options["closed_cb"]
        await super().connect(*args, **options)


class _Attached:
    """A part beside commands, events and letters."""

    def __init__(self) -> None:
        self.client: TolerantClient | None = None

    async def start(self, client: TolerantClient) -> None:
        self.client = client

    def lost(self) -> None:
        self.client = None


class _SlowToStart(_Attached):
    """A part that takes its time to listen."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_listen = asyncio.Event(), asyncio.Event()

    async def start(self, client: TolerantClient) -> None:
        self.begun.set()
        await self.may_listen.wait()
        await super().start(client)


async def test_the_broker_counts_as_away_until_requests_are_listened_for(
    shared_broker: NatsServer, prefix: str
) -> None:
    part, bus = _SlowToStart(), new_bus(shared_broker.url, prefix)
    bus.attach(part)
    async with bus.running(), asyncio.timeout(PATIENCE_S):
        await part.begun.wait()
        before = bus.source.problem
        part.may_listen.set()
        await until_connected(bus)

    assert before == "not connected yet"


async def test_the_late_end_of_an_earlier_connection_harms_no_part_of_the_present_one(
    shared_broker: NatsServer, prefix: str
) -> None:
    made: list[_SlowToDie] = []
    part = _Attached()

    def make_client() -> TolerantClient:
        made.append(_SlowToDie())
        return made[-1]

    async def connected() -> bool:
        return len(made) == 2 and part.client is made[1] and bus.source.problem is None

    bus = new_bus(shared_broker.url, prefix, NatsMeans(session=SessionMeans(make_client=make_client)))
    bus.attach(part)
    async with bus.running():
        await until_connected(bus)
        await made[0].close()
        await until(connected, "the bus to be connected again")
        with capture_logs() as log:
            await made[0].tell_its_end()
            await asyncio.sleep(0)
            results = await bus.sink.publish([reached("order-1", 0)])
            at_work = part.client

    assert at_work is made[1]
    assert [result.outcome for result in results] == [Published.CONFIRMED]
    assert "broker.unavailable" not in [line["event"] for line in log]


class _Watched(Generic[Client]):
    """A bus under a watch that is busy all the time: it asks, keeps up, and looks after the streams."""

    def __init__(self, new_client: type[Client], *, answer_timeout_s: int) -> None:
        self._new_client = new_client
        self._made: list[Client] = []
        self._session = SessionMeans(
            make_client=self._make_client,
            watch_interval_s=0.001,
            look_interval_s=0.002,
            answer_timeout_s=answer_timeout_s,
            step_timeout_s=answer_timeout_s,
        )

    @asynccontextmanager
    async def connected(self, server: str, prefix: str) -> AsyncIterator[Client]:
        """Run the bus and yield its first client, once connected."""
        self._bus = new_bus(server, prefix, NatsMeans(session=self._session))
        async with self._bus.running():
            await until_connected(self._bus)
            yield self._made[0]

    async def until_replaced(self) -> None:
        """Wait until a second client has taken the place of the first."""

        async def replaced() -> bool:
            return len(self._made) == 2 and self._bus.source.problem is None

        await until(replaced, "another connection")

    def _make_client(self) -> Client:
        self._made.append(self._new_client())
        return self._made[-1]


class _FullClient(TolerantClient):
    """A client whose queue to the socket is full as soon as a test says so."""

    full = False

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if self.full and self.is_connected:
            await asyncio.Event().wait()
        return await super()._flush_pending(force_flush)


async def test_a_connection_whose_queue_is_full_is_given_up_by_the_watch(
    shared_broker: NatsServer, prefix: str
) -> None:
    watched = _Watched(_FullClient, answer_timeout_s=1)

    async with watched.connected(shared_broker.url, prefix) as client:
        client.full = True
        await watched.until_replaced()


class _Unanswered(TolerantClient):
    """A client that gets no answer to one of its questions, as soon as a test says to which."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: str | None = None
        self.asked = asyncio.Event()

    async def flush(self, timeout: int = 3_600) -> None:
        await self._ask("PING")
        await super().flush(timeout)

    async def request(self, subject: str, *args: Any, **options: Any) -> Msg:
        await self._ask(subject)
        return await super().request(subject, *args, **options)

    async def _ask(self, question: str) -> None:
        if self.unanswered is not None and question.endswith(self.unanswered):
            self.asked.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("question", ["PING", "_EVENTS", "_COMMANDS"])
async def test_a_connection_is_replaced_although_the_watch_waits_for_an_answer_on_it(
    shared_broker: NatsServer, prefix: str, question: str
) -> None:
    """The answer can no longer come: waiting for it would keep the service away until the time limit."""
    watched = _Watched(_Unanswered, answer_timeout_s=3_600)

    async with watched.connected(shared_broker.url, prefix) as client:
        client.unanswered = question
        async with asyncio.timeout(PATIENCE_S):
            await client.asked.wait()
        await client.close()
        await watched.until_replaced()
