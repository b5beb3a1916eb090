"""The inbox: always some pull requests under way, none waited for forever, and bounds on what waits."""

import asyncio
import json
from typing import Any, cast

import pytest

from timer_service.adapters.nats.client import Arrived, TolerantClient
from timer_service.adapters.nats.inbox import (
    MAX_BUFFERED_BYTES,
    PULL_LOST_AFTER_S,
    PULLS_AHEAD,
    Buffer,
    Inbox,
)
from timer_service.adapters.nats.incoming import Delivery, Incoming, read_delivery
from timer_service.adapters.nats.letters import Letters
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.outage import Outage
from timer_service.adapters.nats.positions import CommandPositions, StreamEnd
from timer_service.adapters.nats.replies import Replies
from timer_service.domain.messages import Position
from timer_service.testing import ManualClock, MemoryTimerStore


def message(sequence: int, size: int = 0) -> Incoming:
    return Incoming(f"$JS.ACK.{sequence}", Position(1, sequence), 1, None, None, b"x" * size)


def delivered(sequence: int) -> Arrived:
    return Arrived("timer.commands.acme", f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0", b"")


def ended(request: int) -> Arrived:
    headers = {"Status": "408", "Description": "Request Timeout"}
    return Arrived(f"_INBOX.1.{request}", "", b"", headers)


class FakeClient:
    """Keeps what is sent and lets a test answer."""

    max_payload = 1_048_576

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.take: Any = None

    def new_inbox(self) -> str:
        return "_INBOX.1"

    async def take_together(self, subject: str, take: Any) -> None:
        self.take = take

    async def publish(self, subject: str, payload: bytes, reply: str) -> None:
        self.requests.append((subject, reply, json.loads(payload)))

    async def answer(self, subject: str, reply: str = "", **headers: str) -> None:
        await self.take([Arrived(subject, reply, b"", headers or None)])


class Desk:
    """An inbox on a client and a clock of its own."""

    def __init__(self, batch_size: int = 2) -> None:
        self.now = 100.0
        self.client = FakeClient()
        self.over = asyncio.Event()
        self.outage = Outage(["nats://one:4222"], ManualClock().now)
        self.positions = positions = CommandPositions(MemoryTimerStore(), ManualClock())
        self.inbox = Inbox(
            NatsOptions(connect={}, batch_size=batch_size),
            positions,
            Replies(positions),
            cast("Letters", None),
            self.outage,
            over=self.over,
            elapsed_s=lambda: self.now,
        )

    async def start(self) -> None:
        async def new_stream() -> StreamEnd:
            return StreamEnd(created_us=1, last_sequence=0, last_stored_us=0)

        await self.positions.learn(new_stream)
        await self.inbox.start(cast("TolerantClient", self.client))

    def fill(self) -> None:
        """Leave no room for more."""
        while self.inbox.buffer.has_room():
            self.inbox.buffer.put(message(1))

    @property
    def delivered(self) -> int:
        return len(self.inbox.buffer)

    @property
    def asked(self) -> int:
        return len(self.client.requests)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_so_many_requests_are_under_way_from_the_start(desk: Desk) -> None:
    await desk.start()

    assert desk.client.requests == [
        (
            "$JS.API.CONSUMER.MSG.NEXT.TIMER_COMMANDS.timer-service",
            f"_INBOX.1.{n}",
            {"batch": 2, "max_bytes": 4_194_304, "expires": 5_000_000_000},
        )
        for n in range(1, PULLS_AHEAD + 1)
    ]


async def test_nothing_is_asked_for_without_room(desk: Desk) -> None:
    desk.fill()

    await desk.start()

    assert desk.asked == 0


async def test_a_request_that_is_lost_is_made_again_once_its_time_is_over(desk: Desk) -> None:
    await desk.start()

    desk.now += PULL_LOST_AFTER_S
    await desk.inbox.top_up()
    in_time = desk.asked
    desk.now += 0.1
    await desk.inbox.top_up()

    assert (in_time, desk.asked) == (PULLS_AHEAD, 2 * PULLS_AHEAD)


async def test_a_request_that_is_served_whole_is_followed_by_another(desk: Desk) -> None:
    await desk.start()

    for sequence in (1, 2):
        await desk.client.take([delivered(sequence)])

    assert (desk.delivered, desk.asked) == (2, PULLS_AHEAD + 1)


async def test_messages_of_one_read_may_end_more_than_one_request(desk: Desk) -> None:
    await desk.start()

    await desk.client.take([delivered(sequence) for sequence in (1, 2, 3, 4)])

    # Without room for more, none is asked for before a batch is taken.
    asked_at_once = desk.asked
    desk.inbox.buffer.take_all()
    await desk.inbox.top_up()
    assert (asked_at_once, desk.asked) == (PULLS_AHEAD, 2 * PULLS_AHEAD)


async def test_messages_count_for_the_request_that_ends_after_them(desk: Desk) -> None:
    await desk.start()

    await desk.client.take([delivered(1), ended(1), delivered(2)])

    # The second request has brought one of two.
    assert desk.asked == PULLS_AHEAD + 1


async def test_messages_of_one_request_count_although_another_ends_after_them(desk: Desk) -> None:
    await desk.start()

    await desk.client.take([delivered(1), delivered(2), ended(2)])

    assert desk.asked == PULLS_AHEAD + 2


@pytest.mark.parametrize(
    ("status", "description"),
    [
        ("408", "Request Timeout"),
        ("404", "No Messages"),
        ("409", "Message Size Exceeds MaxBytes"),
        ("409", "Batch Completed"),
        ("409", "Leadership Change"),
        ("409", "Server Shutdown"),
    ],
)
async def test_a_request_that_ends_without_a_message_is_followed_by_another(
    desk: Desk, status: str, description: str
) -> None:
    await desk.start()

    await desk.client.answer("_INBOX.1.1", Status=status, Description=description)

    assert (desk.asked, desk.over.is_set()) == (PULLS_AHEAD + 1, False)


async def test_messages_that_nobody_asked_for_are_delivered_and_ask_for_nothing(desk: Desk) -> None:
    desk.fill()
    at_hand = desk.delivered
    await desk.start()

    await desk.client.answer("timer.commands.acme", "$JS.ACK.S.c.1.1.1.0.0")

    assert (desk.delivered, desk.asked) == (at_hand + 1, 0)


@pytest.mark.parametrize("headers", [{}, {"Traceparent": "00-1-2-03"}])
async def test_what_is_neither_a_message_nor_a_status_is_ignored(desk: Desk, headers: dict[str, str]) -> None:
    await desk.start()

    await desk.client.answer("_INBOX.1.1", **headers)

    assert (desk.delivered, desk.over.is_set(), desk.asked) == (0, False, PULLS_AHEAD)


@pytest.mark.parametrize(("status", "description"), [("409", "Consumer Deleted"), ("503", "")])
async def test_a_consumer_that_is_gone_is_told(desk: Desk, status: str, description: str) -> None:
    await desk.start()

    await desk.client.answer("_INBOX.1.1", Status=status, Description=description)

    assert desk.over.is_set()
    assert desk.outage.reason == f"the command consumer is gone: {status} {description}".strip()


@pytest.mark.parametrize(
    "reply", ["$JS.ACK.S.c.3.17.20.1700999.5", "$JS.ACK.hub.account.S.c.3.17.20.1700999.5.token"]
)
def test_both_forms_of_an_acknowledgement_subject_are_read(reply: str) -> None:
    assert read_delivery(reply) == Delivery(sequence=17, times_delivered=3, stored_us=1700)


# What was delivered and waits is bounded by count and by bytes.


def test_there_is_room_for_two_batches() -> None:
    buffer = Buffer(batch_size=3)

    room = []
    for sequence in range(7):
        room.append(buffer.has_room())
        buffer.put(message(sequence))

    assert room == [True] * 6 + [False]


def test_large_bodies_use_the_room_up_until_they_are_taken() -> None:
    buffer = Buffer(batch_size=10)
    for sequence in range(9):
        buffer.put(message(sequence, MAX_BUFFERED_BYTES // 8))
    full = not buffer.has_room()

    taken = buffer.take(2)

    assert full
    assert [m.position.sequence for m in taken] == [0, 1]
    assert buffer.has_room()


def test_taking_everything_leaves_nothing_behind() -> None:
    buffer = Buffer(batch_size=2)
    for sequence in range(5):
        buffer.put(message(sequence, MAX_BUFFERED_BYTES))

    taken = buffer.take_all()

    assert [m.position.sequence for m in taken] == list(range(5))
    assert (len(buffer), buffer.has_room()) == (0, True)
