"""Publishing on a connection whose other end is in trouble, or forges its answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest

from tests.support.broker import NatsServer, told
from tests.support.patience import PATIENCE_S
from timer_service.adapters.nats.client import PART_BYTES, Outgoing, TolerantClient
from timer_service.adapters.nats.connecting import close
from timer_service.adapters.nats.publisher import Publisher
from timer_service.ports.event_sink import Published

MOST_S = 60.0
"""Against hanging only: the limit of a publication is shorter by far."""


class DeafServer(asyncio.Protocol):
    """Lets a client in, then reads nothing more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        info = {"server_id": "x", "version": "2.15.1", "max_payload": 1_048_576, "proto": 1, "headers": True}
        transport.write(b"INFO " + json.dumps(info).encode() + b"\r\n")

    def data_received(self, data: bytes) -> None:
        if b"PING\r\n" in data:
            self._transport.write(b"PONG\r\n")
            self._transport.pause_reading()


@asynccontextmanager
async def deaf_server() -> AsyncIterator[str]:
    made: list[DeafServer] = []

    def make() -> DeafServer:
        made.append(DeafServer())
        return made[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for protocol in made:
            protocol._transport.abort()
        server.close()
        await server.wait_closed()


async def new_publisher(client: TolerantClient, stream: str, timeout_s: float = PATIENCE_S) -> Publisher:
    publisher = Publisher(frozenset({stream}), lambda: None, timeout_s)
    await publisher.start(client)
    return publisher


@pytest.mark.parametrize("messages", [10, 16_000])
async def test_a_publication_ends_in_time_on_a_socket_that_nobody_reads(messages: int) -> None:
    outgoing = [Outgoing("timer.events.acme.DueTimeReached", b"x" * 1_000, {"a": "b"})] * messages
    async with deaf_server() as url:
        client = TolerantClient()
        await client.connect(url, allow_reconnect=False)
        publisher = await new_publisher(client, "TIMER_EVENTS", timeout_s=0.5)

        async with asyncio.timeout(MOST_S):
            results = [await publisher.publish(outgoing) for _ in range(2)]

        await close(client)
    assert {result.outcome for batch in results for result in batch} == {Published.UNANSWERED}
    assert [len(batch) for batch in results] == [messages] * 2


async def test_more_than_a_part_is_confirmed_whole(shared_broker: NatsServer, prefix: str) -> None:
    """Among them one that is too large, which must not count for another."""
    client = TolerantClient()
    await client.connect(shared_broker.url)
    await client.jetstream().add_stream(name=prefix, subjects=[f"{prefix}.>"])
    publisher = await new_publisher(client, prefix)
    body = b"x" * (PART_BYTES // 3)
    outgoing = [Outgoing(f"{prefix}.{n}", body) for n in range(10)]
    outgoing[4] = Outgoing(f"{prefix}.4", b"x" * (client.max_payload + 1))

    results = await publisher.publish(outgoing)
    info = await client.jetstream().stream_info(prefix)
    await client.close()

    expected = [Published.CONFIRMED] * 10
    expected[4] = Published.REJECTED
    assert [result.outcome for result in results] == expected
    assert info.state.messages == 9


async def test_a_forged_confirmation_is_not_believed(shared_broker: NatsServer, prefix: str) -> None:
    """Who sees an event sees where its confirmation goes, and may have another stream answer there."""
    client, tenant = TolerantClient(), await nats.connect(shared_broker.url)
    await client.connect(shared_broker.url)
    publisher = await new_publisher(client, prefix)
    seen = await tenant.subscribe(f"{prefix}.>")
    await told(tenant)

    publishing = asyncio.ensure_future(publisher.publish([Outgoing(f"{prefix}.1", b"x")]))
    reply = (await seen.next_msg(timeout=PATIENCE_S)).reply
    for forged in (b'{"stream":"OTHER", "seq":1}', b"{}", b"+OK", b"", b'["stream"]', b'{"seq":1}'):
        await tenant.publish(reply, forged)
    await told(tenant)
    # What the broker had for this connection comes before its answer to a ping.
    await client.flush()
    believed = publishing.done()
    await tenant.publish(reply, json.dumps({"stream": prefix, "seq": 1}).encode())
    (result,) = await publishing
    await client.close()
    await tenant.close()

    assert not believed
    assert result.outcome is Published.CONFIRMED
