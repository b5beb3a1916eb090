"""Refused messages while their letters cannot be written: they wait in the stream, and good ones go on."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from structlog.testing import capture_logs

from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.incoming import Incoming
from timer_service.adapters.nats.letters import LetterLimits, Letters
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.publisher import Publisher
from timer_service.domain.errors import RefusalReason
from timer_service.domain.messages import Position
from timer_service.ports.command_source import Refusal
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.testing import ManualClock

ROOM_TIMEOUT_S = 0.001
CONFIRMED = PublishResult(Published.CONFIRMED)
FULL = PublishResult(Published.STREAM_REFUSED, "maximum bytes exceeded")


class Desk:
    """Letters between a broker that answers as a test wants it and a list of acknowledgements."""

    def __init__(self, **limits: float) -> None:
        self.said: list[tuple[int, bytes]] = []
        self.result = CONFIRMED
        self.open = asyncio.Event()
        self.max_payload = 1_048_576
        self.letters = Letters(
            NatsOptions(connect={}),
            ManualClock(),
            cast("Publisher", self),
            self.answer,
            limits=LetterLimits(**{"max_queued": 1, "room_timeout_s": ROOM_TIMEOUT_S, **limits}),  # type: ignore[arg-type]
        )

    async def connect(self) -> None:
        await self.letters.start(cast("TolerantClient", self))

    async def answer(self, replies: Sequence[tuple[Incoming, bytes]]) -> None:
        self.said += [(message.position.sequence, word.split()[0]) for message, word in replies]

    async def publish(self, messages: Sequence[Outgoing]) -> list[PublishResult]:
        await self.open.wait()
        return [self.result] * len(messages)


def refused(sequence: int, times: int = 1) -> Incoming:
    refusal = Refusal(RefusalReason.NOT_JSON, "not JSON", "timer.commands.acme.X", sequence)
    return Incoming("$JS.ACK.x", Position(1, sequence), times, None, refusal, b"rubbish")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_without_a_connection_what_finds_no_room_is_given_back_and_is_no_trouble(desk: Desk) -> None:
    fresh = await desk.letters.take([refused(1), refused(2), refused(3)])

    assert [refusal.sequence for refusal in fresh] == [1, 2, 3]
    assert desk.said == [(2, b"-NAK"), (3, b"-NAK")]
    assert (desk.letters.waiting, desk.letters.problem) == (3, None)


async def test_a_message_that_comes_again_is_not_reported_as_new(desk: Desk) -> None:
    await desk.letters.take([refused(1), refused(2)])

    again = await desk.letters.take([refused(1, times=2), refused(2, times=2)])

    assert again == []


async def test_a_writer_that_is_slow_is_waited_for_a_moment_and_then_the_rest_is_given_back(
    desk: Desk,
) -> None:
    await desk.connect()

    await desk.letters.take([refused(1), refused(2), refused(3)])

    assert desk.said == [(2, b"-NAK"), (3, b"-NAK")]
    assert desk.letters.problem is None


async def test_where_no_more_may_be_given_back_it_waits_for_the_writer_as_long_as_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(max_parked=0)
    waits: list[None] = []
    timeout = asyncio.timeout

    def counted(seconds: float | None) -> asyncio.Timeout:
        if seconds == ROOM_TIMEOUT_S:
            waits.append(None)
        return timeout(seconds)

    monkeypatch.setattr(asyncio, "timeout", counted)
    await desk.connect()
    await desk.letters.take([refused(1)])
    taking = asyncio.ensure_future(desk.letters.take([refused(2)]))
    while len(waits) < 3:
        await asyncio.sleep(0)

    desk.open.set()
    writer = asyncio.ensure_future(desk.letters.keep_writing())
    await taking
    while len(desk.said) < 2:
        await asyncio.sleep(0)
    writer.cancel()

    assert desk.said == [(1, b"+TERM"), (2, b"+TERM")]


async def test_trouble_is_told_once_and_once_when_it_is_over(desk: Desk) -> None:
    await desk.connect()
    desk.open.set()
    desk.result = FULL
    with capture_logs() as log:
        writer = asyncio.ensure_future(desk.letters.keep_writing())
        for times in (1, 2, 3):
            await desk.letters.take([refused(1, times)])
            while len(desk.said) < times:
                await asyncio.sleep(0)
        problem = desk.letters.problem
        desk.result = CONFIRMED
        await desk.letters.take([refused(1, 4)])
        while desk.letters.problem is not None:
            await asyncio.sleep(0)
        writer.cancel()

    assert problem == "1 refused messages wait for their letters: maximum bytes exceeded"
    assert desk.said == [(1, b"-NAK")] * 3 + [(1, b"+TERM")]
    assert [line["event"] for line in log] == ["deadletter.delayed", "deadletter.recovered"]


async def test_what_went_to_another_instance_is_forgotten_after_a_while() -> None:
    desk = Desk(first_delay_s=-1.0, remembered_s=0.0)
    await desk.letters.take([refused(1), refused(2)])
    before = desk.letters.waiting

    await desk.letters.take([refused(3)])

    assert (before, desk.letters.waiting) == (2, 2)
