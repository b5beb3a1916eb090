"""Messages that go out in parts: a connection that ends in between is an error, not a silence."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import pytest
from nats.aio.client import Client
from nats.errors import ConnectionClosedError

from tests.support.patience import PATIENCE_S
from timer_service.adapters.nats.client import PART_BYTES, Arrived, Outgoing, TolerantClient
from timer_service.adapters.nats.connecting import close
from timer_service.adapters.nats.reading import RawMessage


class Socket:
    """Takes a part, and may be gone afterwards."""

    def __init__(self, client: TolerantClient, *, lasts: bool = True) -> None:
        self._client = client
        self._lasts = lasts

    def put_nowait(self, _: "asyncio.Future[None]") -> None:
        pass

    async def put(self, taken: "asyncio.Future[None]") -> None:
        if not self._lasts:
            self._client._status = Client.CLOSED
        taken.set_result(None)


def new_client(*, lasts: bool = True) -> TolerantClient:
    client = TolerantClient()
    client._status = Client.CONNECTED
    client._max_payload = PART_BYTES
    client._flush_queue = cast("Any", Socket(client, lasts=lasts))
    return client


HALVES = [Outgoing("a.b", b"x" * (PART_BYTES // 2 + 1))] * 3


@pytest.mark.parametrize(("lasts", "parts"), [(True, 3), (False, 1)])
async def test_nothing_more_is_sent_over_a_connection_that_ended_after_a_part(
    lasts: bool, parts: int
) -> None:
    client = new_client(lasts=lasts)

    with nullcontext() if lasts else pytest.raises(ConnectionClosedError):
        await client.publish_all(HALVES)

    assert len(client._pending) == parts


async def test_over_a_closed_connection_nothing_is_sent() -> None:
    client = new_client()
    client._status = Client.CLOSED

    with pytest.raises(ConnectionClosedError):
        await client.publish_all(HALVES)

    assert client._pending == []


async def test_what_is_too_large_is_named_and_the_rest_is_sent() -> None:
    client = new_client()

    too_large = await client.publish_all([Outgoing("a", b"x" * (PART_BYTES + 1)), Outgoing("a", b"1")])

    assert too_large == [0]
    assert client._pending == [b"PUB a  1\r\n1\r\n"]


async def test_a_ping_follows_what_was_said_before_it() -> None:
    said: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576, "headers": true}\r\n')
        while line := await reader.readline():
            said.append(line.strip())
            if said[-1] == b"PING":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = TolerantClient()
        await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        subscription = await client.subscribe("a.b")
        await client.flush()
        subscribed = said[-2:]
        await client.send_no_more(subscription)
        await client.flush()
        await client.close()

    assert subscribed == [b"SUB a.b  1", b"PING"]
    assert said[-2:] == [b"UNSUB 1", b"PING"]


class Impatient(TolerantClient):
    """Waits for a full socket for a moment only."""

    flush_timeout_s = 0.05


async def test_what_waits_for_a_full_socket_ends_with_the_connection() -> None:
    """nats-py forgets whoever waits when it closes: a command loop or an answer would wait for ever."""
    is_over = asyncio.Event()

    async def stop_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576, "headers": true}\r\n')
        while (await reader.readline()).strip() != b"PING":
            pass
        writer.write(b"PONG\r\n")
        await is_over.wait()
        writer.close()

    async with await asyncio.start_server(stop_reading, "127.0.0.1", 0) as server:
        client = Impatient()
        await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        sending = {asyncio.ensure_future(client.publish("a", b"x" * PART_BYTES)) for _ in range(40)}
        while client.pending_data_size:
            await asyncio.sleep(0)
        # All of that is on its way, which ends here: what follows is too much to be kept.
        sending |= {asyncio.ensure_future(client.publish("a", b"x" * PART_BYTES)) for _ in range(4)}
        cancelled = asyncio.ensure_future(client.publish("a", b"x"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await close(client)
        ended, _ = await asyncio.wait({*sending, cancelled}, timeout=PATIENCE_S)
        is_over.set()

    assert ended == {*sending, cancelled}
    assert cancelled.cancelled()


HEAD = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
TRACED = b"NATS/1.0\r\ntraceparent: 00-1\r\n\r\n"


class Taker:
    """Takes messages together, and keeps what the client complains of."""

    def __init__(self, client: TolerantClient, error: Exception | None = None) -> None:
        self.taken: list[list[Arrived]] = []
        self.complaints: list[Exception] = []
        self._error = error
        client._subs = {7: cast("Any", None)}
        client.taken_together, client._take = 7, self.take
        client._error_cb = self.complain

    async def take(self, messages: Sequence[Arrived]) -> None:
        self.taken.append(list(messages))
        if self._error is not None:
            raise self._error

    async def complain(self, error: Exception) -> None:
        self.complaints.append(error)


async def test_what_is_taken_together_has_only_the_headers_that_we_ask_for() -> None:
    client = TolerantClient()
    taker = Taker(client)
    messages: list[RawMessage] = [(b"a", b"r", b"1", HEAD), (b"\xff", b"", b"2", TRACED)]

    await client.deliver_together(messages)
    await client.deliver_together(messages)

    assert taker.taken == [[Arrived("a", "r", b"1"), Arrived("\\xff", "", b"2", {"traceparent": "00-1"})]]


async def test_an_error_of_whoever_takes_messages_does_not_end_the_reading() -> None:
    client, error = TolerantClient(), RuntimeError("planted")
    taker = Taker(client, error)

    await client.deliver_together([(b"a", b"", b"1", None)])

    assert taker.complaints == [error]


async def test_what_comes_after_the_subscription_has_ended_is_dropped() -> None:
    client = TolerantClient()
    taker = Taker(client)
    client._subs.clear()

    await client.deliver_together([(b"a", b"", b"1", None)])

    assert taker.taken == []
