"""What becomes of events that go out as one batch: confirmed together, or sent again one by one."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from tests.support.patience import PATIENCE_S
from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.publisher import Publisher
from timer_service.ports.event_sink import Published

STREAM = "TIMER_EVENTS"
EVENTS = [Outgoing(f"timer.events.{tenant}.X", tenant.encode()) for tenant in ("acme", "globex", "initech")]
STORED = {"stream": STREAM, "seq": 1}
TOO_LARGE = {"stream": STREAM, "error": {"err_code": 10054, "description": "message size exceeds maximum"}}
CONFIRMED, REJECTED = Published.CONFIRMED, Published.REJECTED

React = Callable[["Broker", Sequence[str]], Awaitable[None]]


class Broker:
    """The other end of a connection: answers as the test has it."""

    def __init__(self, in_batch: React, singly: dict[int, Any] | None = None) -> None:
        self.batches: list[int] = []
        self.singly: list[int] = []
        self.too_large: list[int] = []
        self._in_batch = in_batch
        self._alone = singly or {}
        self._callbacks: list[tuple[str, Any]] = []

    @property
    def client(self) -> TolerantClient:
        return cast("TolerantClient", self)

    def new_inbox(self) -> str:
        return f"_INBOX.1.{id(self)}"

    async def subscribe(self, subject: str, cb: Any) -> None:
        self._callbacks.append((subject, cb))

    def deliver_at_once(self, subscription: None) -> None:
        pass

    async def publish_all(self, messages: Sequence[Outgoing], replies: Sequence[str]) -> list[int]:
        if replies[0].endswith(".$FI"):
            self.batches.append(len(messages))
            await self._in_batch(self, replies)
            return self.too_large
        self.singly.append(len(messages))
        for number, reply in enumerate(replies):
            await self.answer(reply, self._alone.get(number, STORED))
        return []

    async def answer(self, subject: str, data: Any, **headers: str) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
        of_batches = subject.endswith(".$FI")
        for wanted, callback in self._callbacks:
            if wanted.endswith(".$FI") == of_batches:
                await callback(
                    Msg(_client=cast("Any", self), subject=subject, data=body, headers=headers or None)
                )


def last_answer(replies: Sequence[str], **changes: Any) -> dict[str, Any]:
    batch = replies[0].split(".")[-6]
    return {"stream": STREAM, "seq": 9, "batch": batch, "count": len(replies), **changes}


async def publisher_to(broker: Broker, timeout_s: float = PATIENCE_S) -> Publisher:
    publisher = Publisher(frozenset({STREAM}), lambda: None, timeout_s, look_alike_grace_s=0.0, min_batched=2)
    await publisher.start(broker.client)
    return publisher


async def outcomes(publisher: Publisher) -> list[Published]:
    return [result.outcome for result in await publisher.publish(EVENTS, batched=True)]


async def test_the_last_answer_confirms_all() -> None:
    async def confirm(broker: Broker, replies: Sequence[str]) -> None:
        await broker.answer(replies[0], {"type": "ack", "seq": 0, "msgs": 500})
        await broker.answer(replies[1], {"type": "ack", "seq": 2, "msgs": 500})
        await broker.answer(replies[-1], last_answer(replies))

    broker = Broker(confirm)

    assert await outcomes(await publisher_to(broker)) == [CONFIRMED] * 3
    assert (broker.batches, broker.singly) == ([3], [])


async def test_the_stream_is_told_where_a_batch_begins_and_ends() -> None:
    told: list[list[str]] = []

    async def confirm(broker: Broker, replies: Sequence[str]) -> None:
        told.append([".".join(reply.split(".")[-4:]) for reply in replies])
        await broker.answer(replies[-1], last_answer(replies))

    await outcomes(await publisher_to(Broker(confirm)))

    assert told == [["fail.1.0.$FI", "fail.2.1.$FI", "fail.3.2.$FI"]]


async def test_no_two_batches_share_a_name() -> None:
    names: list[str] = []

    async def confirm(broker: Broker, replies: Sequence[str]) -> None:
        names.append(replies[0].split(".")[-6])
        await broker.answer(replies[-1], last_answer(replies))

    broker = Broker(confirm)
    one, other = await publisher_to(broker), await publisher_to(Broker(confirm))
    for publisher in (one, one, other):
        await outcomes(publisher)

    assert len(set(names)) == 3
    assert all(len(name) <= 64 for name in names)


@pytest.mark.parametrize(
    "answers",
    [
        [(1, TOO_LARGE), (-1, {})],
        [(1, {"type": "err", "seq": 2, "error": {"err_code": 10077}}), (-1, {})],
        [(2, {"type": "gap", "last_seq": 2, "seq": 3}), (-1, {})],
        [(-1, {"count": 2})],
        [(1, {"count": 2})],
        [(1, {"count": 3})],
        [(0, {"error": {"err_code": 10205, "description": "batch publish is disabled"}})],
    ],
    ids=[
        "an error, and the last answer counts it",
        "an error of the store, and the last answer counts it",
        "a gap",
        "too few",
        "an early end",
        "all, but on the number of another",
        "no batches here",
    ],
)
async def test_a_batch_that_is_not_taken_whole_is_sent_again_one_by_one(
    answers: list[tuple[int, dict[str, Any]]],
) -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        for number, answer in answers:
            whole = answer if {"error", "type"} & set(answer) else last_answer(replies, **answer)
            await broker.answer(replies[number], whole)

    broker = Broker(react, {1: TOO_LARGE})

    assert await outcomes(await publisher_to(broker)) == [CONFIRMED, REJECTED, CONFIRMED]
    assert (broker.batches, broker.singly) == ([3], [3])


async def test_after_a_batch_that_was_not_taken_the_next_go_one_by_one() -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        await broker.answer(replies[1], TOO_LARGE)

    broker = Broker(react)
    publisher = await publisher_to(broker)

    for _ in range(3):
        await outcomes(publisher)

    assert (broker.batches, broker.singly) == ([3], [3, 3, 3])


async def test_no_stream_for_one_of_them_is_found_out_one_by_one() -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        await broker.answer(replies[1], b"", Status="503")

    assert await outcomes(await publisher_to(Broker(react, {1: TOO_LARGE}))) == [
        CONFIRMED,
        REJECTED,
        CONFIRMED,
    ]


async def test_an_event_that_is_too_large_to_be_sent_does_not_spoil_the_others() -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        broker.too_large = [1]

    broker = Broker(react)
    await outcomes(await publisher_to(broker))

    assert (broker.batches, broker.singly) == ([3], [3])


async def test_a_forbidden_subject_is_found_out_one_by_one() -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        publisher.error_reported(Exception('permissions violation for publish to "timer.events.globex.x"'))

    broker = Broker(react)
    publisher = await publisher_to(broker)

    assert await outcomes(publisher) == [CONFIRMED] * 3
    assert (broker.batches, broker.singly) == ([3], [3])


async def test_another_forbidden_subject_ends_no_batch() -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        publisher.error_reported(Exception('permissions violation for publish to "timer.deadletter.acme"'))
        await broker.answer(replies[-1], last_answer(replies))

    broker = Broker(react)
    publisher = await publisher_to(broker)

    assert await outcomes(publisher) == [CONFIRMED] * 3
    assert (broker.batches, broker.singly) == ([3], [])


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"+OK",
        b"[]",
        b'{"stream":"OTHER","seq":1}',
        b'{"stream":"TIMER_EVENTS","seq":1}',
        b'{"stream":"TIMER_EVENTS","seq":1,"batch":"another","count":3}',
    ],
)
async def test_what_is_not_an_answer_to_the_batch_is_ignored(forged: bytes) -> None:
    async def react(broker: Broker, replies: Sequence[str]) -> None:
        for reply in replies:
            await broker.answer(reply, forged)

    broker = Broker(react)

    assert await outcomes(await publisher_to(broker, timeout_s=0.0)) == [Published.UNANSWERED] * 3
    assert broker.singly == []


async def test_a_batch_without_an_answer_is_not_known_and_not_sent_again() -> None:
    async def silence(broker: Broker, replies: Sequence[str]) -> None:
        await broker.answer(replies[0], {"type": "ack", "seq": 0, "msgs": 500})

    broker = Broker(silence)

    assert await outcomes(await publisher_to(broker, timeout_s=0.0)) == [Published.UNANSWERED] * 3
    assert broker.singly == []


async def test_a_lost_connection_ends_the_wait_for_a_batch() -> None:
    async def lose(broker: Broker, replies: Sequence[str]) -> None:
        asyncio.get_running_loop().call_soon(publisher.lost)

    publisher = await publisher_to(Broker(lose))

    assert await outcomes(publisher) == [Published.DISCONNECTED] * 3
    assert await outcomes(publisher) == [Published.DISCONNECTED] * 3


async def test_few_events_and_streams_that_take_no_batches_are_served_one_by_one() -> None:
    async def never(broker: Broker, replies: Sequence[str]) -> None:
        raise AssertionError("a batch was sent")

    publisher = await publisher_to(Broker(never))

    alone = await publisher.publish(EVENTS[:1], batched=True)
    unbatched = await publisher.publish(EVENTS)

    assert [result.outcome for result in (*alone, *unbatched)] == [CONFIRMED] * 4
