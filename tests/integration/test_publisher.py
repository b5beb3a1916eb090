"""Publishing on a connection whose other end is in trouble, or forges its answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from tests.support.broker import NatsServer, told
from tests.support.patience import PATIENCE_S
from timer_service.adapters.nats.client import PART_BYTES, Outgoing, TolerantClient, head_of
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
    outgoing = [Outgoing("timer.events.acme.DueTimeReached", b"x" * 1_000, head_of({"a": "b"}))] * messages
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
    await client.jetstream(timeout=PATIENCE_S).add_stream(name=prefix, subjects=[f"{prefix}.>"])
    publisher = await new_publisher(client, prefix)
    body = b"x" * (PART_BYTES // 3)
    outgoing = [Outgoing(f"{prefix}.{n}", body) for n in range(10)]
    outgoing[4] = Outgoing(f"{prefix}.4", b"x" * (client.max_payload + 1))

    results = await publisher.publish(outgoing)
    info = await client.jetstream(timeout=PATIENCE_S).stream_info(prefix)
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


# Fast-ingest batches


async def new_stream(client: TolerantClient, name: str, **config: Any) -> Publisher:
    await client.jetstream(timeout=PATIENCE_S).add_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], **{"allow_batched": True, **config})
    )
    publisher = Publisher(frozenset({name}), lambda: None, PATIENCE_S, min_batched=2)
    await publisher.start(client)
    return publisher


def numbered(prefix: str, count: int, body: bytes = b"x") -> list[Outgoing]:
    return [Outgoing(f"{prefix}.{n}", body, head_of({"Nats-Msg-Id": f"{prefix}-{n}"})) for n in range(count)]


@pytest.fixture
async def client(shared_broker: NatsServer) -> AsyncIterator[TolerantClient]:
    connected = TolerantClient()
    await connected.connect(shared_broker.url)
    yield connected
    await close(connected)


async def stored(client: TolerantClient, name: str) -> int:
    return (await client.jetstream(timeout=PATIENCE_S).stream_info(name)).state.messages


async def test_a_batch_is_confirmed_whole_and_what_is_there_already_is_dropped(
    client: TolerantClient, prefix: str
) -> None:
    publisher = await new_stream(client, prefix)
    events = numbered(prefix, 2_500)

    first = await publisher.publish(events[::2], batched=True)
    again = await publisher.publish(events, batched=True)

    assert {result.outcome for result in (*first, *again)} == {Published.CONFIRMED}
    assert (len(first), len(again)) == (1_250, 2_500)
    assert await stored(client, prefix) == 2_500


@pytest.mark.parametrize("place", [0, 7, 19], ids=["first", "in the middle", "last"])
async def test_an_event_that_the_stream_rejects_fails_alone(
    client: TolerantClient, prefix: str, place: int
) -> None:
    publisher = await new_stream(client, prefix, max_msg_size=500)
    events = numbered(prefix, 20)
    events[place] = Outgoing(f"{prefix}.{place}", b"x" * 1_000)

    results = await publisher.publish(events, batched=True)

    expected = [Published.CONFIRMED] * 20
    expected[place] = Published.REJECTED
    assert [result.outcome for result in results] == expected
    assert await stored(client, prefix) == 19


async def test_a_stream_that_becomes_full_says_which_it_has(client: TolerantClient, prefix: str) -> None:
    publisher = await new_stream(client, prefix, max_msgs=5, discard=DiscardPolicy.NEW)

    results = await publisher.publish(numbered(prefix, 20), batched=True)

    taken = [result.outcome for result in results].count(Published.CONFIRMED)
    assert {result.outcome for result in results[5:]} == {Published.STREAM_REFUSED}
    assert taken == await stored(client, prefix) == 5


async def test_a_stream_without_batches_is_served_one_by_one(client: TolerantClient, prefix: str) -> None:
    publisher = await new_stream(client, prefix, allow_batched=None)

    results = await publisher.publish(numbered(prefix, 20), batched=True)

    assert {result.outcome for result in results} == {Published.CONFIRMED}
    assert await stored(client, prefix) == 20


async def test_a_subject_of_no_stream_fails_alone(client: TolerantClient, prefix: str) -> None:
    publisher = await new_stream(client, prefix)
    events = numbered(prefix, 20)
    events[7] = Outgoing(f"{prefix}-elsewhere", b"x")

    results = await publisher.publish(events, batched=True)

    assert [n for n, result in enumerate(results) if result.outcome is not Published.CONFIRMED] == [7]
    assert await stored(client, prefix) == 19
