"""How the bus finds a server: dead addresses cost little, a busy broker is asked again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlparse

import pytest

from tests.support.broker import NatsServer
from tests.support.lines import until
from tests.support.proxy import Wire
from timer_service.adapters.nats.bus import NatsBus
from timer_service.adapters.nats.connecting import is_refusal, learnt_options
from timer_service.adapters.nats.options import NatsOptions
from timer_service.testing import ManualClock, MemoryTimerStore

DEAD = 20


class TellingWire(Wire):
    """A wire on which the server seems to tell of other servers."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.told: list[str] = []

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool = False
    ) -> None:
        if is_reply:
            info = json.loads((await reader.readline()).removeprefix(b"INFO "))
            writer.write(b"INFO " + json.dumps({**info, "connect_urls": self.told}).encode() + b"\r\n")
        await super()._pump(reader, writer, is_reply=is_reply)


class BusyWire(Wire):
    """A wire to a broker that has no time for the first who come."""

    def __init__(self, target_port: int, busy_for: int) -> None:
        super().__init__(target_port)
        self.busy_for = busy_for

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.busy_for == 0:
            await super()._accept(reader, writer)
            return
        self.busy_for -= 1
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"proto":1}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"-ERR 'Authentication Timeout'\r\n")
        await writer.drain()
        writer.close()


class SilentServers:
    """Servers that accept and say nothing."""

    def __init__(self) -> None:
        self.attempts = 0
        self.addresses: list[str] = []
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, count: int) -> None:
        for _ in range(count):
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self._servers.append(server)
            self.addresses.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        self._writers.append(writer)

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def silent() -> AsyncIterator[SilentServers]:
    servers = SilentServers()
    await servers.start(DEAD)
    yield servers
    await servers.stop()


@asynccontextmanager
async def bus_over(wire: Wire, prefix: str) -> AsyncIterator[NatsBus]:
    await wire.mend()
    options = NatsOptions(connect={"servers": [f"nats://127.0.0.1:{wire.port}"]}, prefix=prefix)
    bus = NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())
    try:
        async with bus.running():
            await until_connected(bus)
            yield bus
    finally:
        await wire.cut()


async def until_connected(bus: NatsBus) -> None:
    async def connected() -> bool:
        # It is in order a moment before it says over which server.
        return bus.source.problem is None and bus.server is not None

    await until(connected, "the bus to be connected")


async def until_away(bus: NatsBus) -> None:
    async def away() -> bool:
        return bus.source.problem is not None

    await until(away, "the bus to notice that the broker is away")


async def test_the_configured_server_is_asked_before_those_it_told_of(
    shared_broker: NatsServer, prefix: str, silent: SilentServers
) -> None:
    wire = TellingWire(shared_broker.port)
    wire.told = silent.addresses
    async with bus_over(wire, prefix) as bus:
        for _ in range(3):
            await wire.reset()
            await until_away(bus)
            await until_connected(bus)

    assert silent.attempts == 0


async def test_dead_servers_that_were_told_of_do_not_keep_the_configured_one_waiting(
    shared_broker: NatsServer, prefix: str, silent: SilentServers
) -> None:
    wire = TellingWire(shared_broker.port)
    wire.told = silent.addresses
    async with bus_over(wire, prefix) as bus:
        await wire.cut()

        async def asked() -> bool:
            return silent.attempts > 0

        await until(asked, "a dead server to be asked")
        await wire.mend()
        await until_connected(bus)

    assert silent.attempts < DEAD


async def test_a_server_that_was_told_of_is_used_where_the_configured_one_is_gone(
    shared_broker: NatsServer, prefix: str
) -> None:
    wire = TellingWire(shared_broker.port)
    wire.told = [f"127.0.0.1:{shared_broker.port}"]
    async with bus_over(wire, prefix) as bus:
        await wire.cut()
        await until_away(bus)
        await until_connected(bus)
        server = bus.server

    assert server is not None
    assert server.startswith(f"127.0.0.1:{shared_broker.port} ")


async def test_only_what_the_last_session_told_of_is_remembered(
    shared_broker: NatsServer, prefix: str
) -> None:
    wire = TellingWire(shared_broker.port)
    learnt = []
    async with bus_over(wire, prefix) as bus:
        for told in (["10.0.0.1:4222", "10.0.0.2:4222"], ["10.0.0.3:4222"], []):
            wire.told = told
            await wire.reset()
            await until_away(bus)
            await until_connected(bus)
            learnt.append(sorted(bus.session.connector.learnt))

    assert learnt == [["nats://10.0.0.1:4222", "nats://10.0.0.2:4222"], ["nats://10.0.0.3:4222"], []]


@pytest.mark.parametrize(
    ("here", "tls_name", "address", "options"),
    [
        ("nats://a:4222", None, "10.0.0.1:4222", {"servers": ["nats://10.0.0.1:4222"]}),
        (
            "tls://me:right@nats.example:4222",
            "nats.example",
            "10.0.0.1:4222",
            {"servers": ["tls://me:right@10.0.0.1:4222"], "tls_hostname": "nats.example"},
        ),
        (
            "tls://token@nats.example:4222",
            "nats.example",
            "[fe80::1]:4222",
            {"servers": ["tls://token@[fe80::1]:4222"], "tls_hostname": "nats.example"},
        ),
        (
            "tls://nats.example:4222",
            "nats.example",
            "other.example:4222",
            {"servers": ["tls://other.example:4222"]},
        ),
    ],
)
def test_a_server_that_was_told_of_is_reached_with_our_credentials_and_the_name_we_know(
    here: str, tls_name: str | None, address: str, options: dict[str, object]
) -> None:
    assert learnt_options(urlparse(here), tls_name, address) == options


async def test_a_busy_broker_that_had_no_time_to_let_us_in_is_asked_again(
    shared_broker: NatsServer, prefix: str
) -> None:
    wire = BusyWire(shared_broker.port, busy_for=2)
    async with bus_over(wire, prefix) as bus:
        assert bus.source.problem is None

    assert wire.busy_for == 0


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("nats: 'Authorization Violation'", True),
        ("nats: 'User Authentication Expired'", True),
        ("nats: 'Authentication Timeout'", False),
        ("nats: no servers available for connection", False),
    ],
)
def test_only_a_broker_that_does_not_want_us_counts_as_a_refusal(text: str, refused: bool) -> None:
    assert is_refusal(Exception(text)) == refused
