"""Errors that are told at once: many in one piece, and never without bound."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from timer_service.adapters.endpoints import ApiError
from timer_service.adapters.nats.client import Outgoing, TolerantClient, head_of
from timer_service.adapters.nats.refusals import MAX_UNSENT, Refusals, error_headers


class FakeClient:
    def __init__(self) -> None:
        self.sent: list[list[Outgoing]] = []

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[int]:
        self.sent.append(list(messages))
        return []


async def test_what_is_told_together_goes_out_in_one_piece() -> None:
    refusals, client = Refusals(), FakeClient()
    headers = error_headers(ApiError("429", "too\nmany", 1.2))

    for number in range(3):
        refusals.tell(f"_INBOX.{number}", headers)
    await refusals.flush(cast("TolerantClient", client))
    await refusals.flush(cast("TolerantClient", client))

    assert client.sent == [[Outgoing(f"_INBOX.{n}", b"", head_of(headers)) for n in range(3)]]
    assert headers == {
        "Nats-Service-Error-Code": "429",
        "Nats-Service-Error": "too many",
        "Retry-After": "2",
    }


async def test_what_comes_in_while_errors_gather_goes_out_with_them() -> None:
    refusals, client = Refusals(), FakeClient()
    sender = asyncio.ensure_future(refusals.keep_sending(lambda: cast("TolerantClient", client)))

    await asyncio.sleep(0)
    refusals.tell("_INBOX.0", {})
    await asyncio.sleep(0)
    for number in (1, 2):
        refusals.tell(f"_INBOX.{number}", {})
    while not client.sent:
        await asyncio.sleep(0)
    sender.cancel()

    assert [len(piece) for piece in client.sent] == [3]


async def test_beyond_all_bounds_they_are_dropped() -> None:
    refusals, client = Refusals(), FakeClient()

    for _ in range(MAX_UNSENT + 5):
        refusals.tell("_INBOX.1", {})
    await refusals.flush(cast("TolerantClient", client))

    assert [len(piece) for piece in client.sent] == [MAX_UNSENT]


async def test_without_a_connection_they_are_forgotten_and_the_next_ones_are_sent() -> None:
    refusals, client = Refusals(), FakeClient()
    connected: list[Any] = [None, client]
    sender = asyncio.ensure_future(refusals.keep_sending(lambda: connected.pop(0)))

    refusals.tell("_INBOX.1", {})
    while len(connected) > 1:
        await asyncio.sleep(0)
    refusals.tell("_INBOX.2", {})
    while not client.sent:
        await asyncio.sleep(0)
    sender.cancel()

    assert client.sent == [[Outgoing("_INBOX.2", b"", head_of({}))]]


async def test_a_socket_that_takes_nothing_more_stops_no_later_error() -> None:
    class Stuck(FakeClient):
        async def publish_all(self, messages: Sequence[Outgoing]) -> list[int]:
            await asyncio.Event().wait()
            return []

    refusals, stuck, client = Refusals(send_timeout_s=0.001), Stuck(), FakeClient()

    async with asyncio.timeout(60):
        for taker in (stuck, client):
            refusals.tell("_INBOX.1", {})
            await refusals.flush(cast("TolerantClient", taker))

    assert [len(piece) for piece in client.sent] == [1]
