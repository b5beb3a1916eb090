"""Pull requests: always some under way, and none is waited for forever."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from timer_service.adapters.nats import pull
from timer_service.adapters.nats.pull import (
    PULL_LOST_AFTER_S,
    PULLS_AHEAD,
    CommandPull,
    Delivery,
    read_delivery,
)
from timer_service.adapters.nats.tolerant_client import TolerantClient


class FakeClient:
    """Keeps what is sent and lets a test answer."""

    max_payload = 1_048_576

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.callback: Any = None

    def new_inbox(self) -> str:
        return "_INBOX.1"

    async def subscribe(self, subject: str, cb: Any) -> None:
        self.callback = cb

    def deliver_at_once(self, subscription: None) -> None:
        pass

    async def publish(self, subject: str, payload: bytes, reply: str) -> None:
        self.requests.append((subject, reply, json.loads(payload)))

    async def answer(self, subject: str, reply: str = "", **headers: str) -> None:
        client: Any = self
        await self.callback(
            Msg(_client=client, subject=subject, reply=reply, data=b"", headers=headers or None)
        )


class Desk:
    """A pull on a client and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batch_size: int = 2) -> None:
        self.now = 100.0
        monkeypatch.setattr(pull, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.client = FakeClient()
        self.delivered: list[str] = []
        self.lost: list[str] = []
        self.has_room = True
        self.pull = CommandPull(
            cast("TolerantClient", self.client),
            "NEXT",
            batch_size=batch_size,
            deliver=lambda message: self.delivered.append(message.reply),
            has_room=lambda: self.has_room,
            consumer_lost=self.lost.append,
        )

    @property
    def asked(self) -> int:
        return len(self.client.requests)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


async def test_so_many_requests_are_under_way_from_the_start(desk: Desk) -> None:
    await desk.pull.start()

    assert desk.client.requests == [
        ("NEXT", f"_INBOX.1.{n}", {"batch": 2, "max_bytes": 4_194_304, "expires": 5_000_000_000})
        for n in range(1, PULLS_AHEAD + 1)
    ]


async def test_nothing_is_asked_for_without_room(desk: Desk) -> None:
    desk.has_room = False

    await desk.pull.start()

    assert desk.asked == 0


async def test_a_request_that_is_lost_is_made_again_once_its_time_is_over(desk: Desk) -> None:
    await desk.pull.start()

    desk.now += PULL_LOST_AFTER_S
    await desk.pull.top_up()
    in_time = desk.asked
    desk.now += 0.1
    await desk.pull.top_up()

    assert (in_time, desk.asked) == (PULLS_AHEAD, 2 * PULLS_AHEAD)


async def test_a_request_that_is_served_whole_is_followed_by_another(desk: Desk) -> None:
    await desk.pull.start()

    for sequence in (1, 2):
        await desk.client.answer("timer.commands.acme", f"$JS.ACK.S.c.1.{sequence}.{sequence}.0.0")

    assert (len(desk.delivered), desk.asked) == (2, PULLS_AHEAD + 1)


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
    await desk.pull.start()

    await desk.client.answer("_INBOX.1.1", Status=status, Description=description)

    assert (desk.asked, desk.lost) == (PULLS_AHEAD + 1, [])


async def test_messages_that_nobody_asked_for_are_delivered_and_ask_for_nothing(desk: Desk) -> None:
    desk.has_room = False
    await desk.pull.start()

    await desk.client.answer("timer.commands.acme", "$JS.ACK.S.c.1.1.1.0.0")

    assert (len(desk.delivered), desk.asked) == (1, 0)


@pytest.mark.parametrize("headers", [{}, {"Traceparent": "00-1-2-03"}])
async def test_what_is_neither_a_message_nor_a_status_is_ignored(desk: Desk, headers: dict[str, str]) -> None:
    await desk.pull.start()

    await desk.client.answer("_INBOX.1.1", **headers)

    assert (desk.delivered, desk.lost, desk.asked) == ([], [], PULLS_AHEAD)


@pytest.mark.parametrize(("status", "description"), [("409", "Consumer Deleted"), ("503", "")])
async def test_a_consumer_that_is_gone_is_told(desk: Desk, status: str, description: str) -> None:
    await desk.pull.start()

    await desk.client.answer("_INBOX.1.1", Status=status, Description=description)

    assert desk.lost == [f"{status} {description}".strip()]


@pytest.mark.parametrize(
    "reply", ["$JS.ACK.S.c.3.17.20.1700999.5", "$JS.ACK.hub.account.S.c.3.17.20.1700999.5.token"]
)
def test_both_forms_of_an_acknowledgement_subject_are_read(reply: str) -> None:
    assert read_delivery(reply) == Delivery(sequence=17, times_delivered=3, stored_us=1700)
