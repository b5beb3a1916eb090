"""The bus on NATS while it has no connection, and the words it has for errors."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from nats.aio.subscription import Subscription
from nats.errors import NoServersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import ServiceUnavailableError
from structlog.testing import capture_logs

from tests.support.timers import ACME, reached, schedule
from timer_service.adapters.nats.bus import NatsBus
from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.complaints import reason
from timer_service.adapters.nats.incoming import Incoming
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import Position
from timer_service.testing import ManualClock, MemoryTimerStore


@pytest.fixture
def bus() -> NatsBus:
    options = NatsOptions(connect={"servers": ["nats://nowhere.invalid:4222"]})
    return NatsBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())


async def test_without_a_connection_every_question_says_so(bus: NatsBus) -> None:
    assert (bus.source.problem, bus.server, bus.warnings) == ("not connected yet", None, {})
    for question in (
        bus.source.last_position(),
        bus.source.backlog({ACME: 0}),
        bus.sink.publish([reached("order-1", 0)]),
    ):
        with pytest.raises(BusUnavailable, match="not connected to the broker yet"):
            await question


class Silent:
    """A connection to a broker whose streams answer nothing."""

    asked = 0

    async def request(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise NatsTimeoutError


async def test_while_the_stream_is_silent_nobody_waits_for_its_newest_command(bus: NatsBus) -> None:
    silent = Silent()
    bus.source._client = client = cast("TolerantClient", silent)
    await bus.source.keep_up(client)

    with pytest.raises(BusUnavailable, match="the command stream does not answer"):
        await bus.source.last_position()

    assert silent.asked == 1


async def test_what_was_delivered_before_the_connection_was_lost_is_still_handed_out(
    bus: NatsBus,
) -> None:
    command = schedule("order-1", 60)
    bus.inbox.buffer.put(Incoming("$JS.ACK.x", Position(1, 1), 2, command))

    batch = await bus.source.receive()
    await batch.acknowledge()

    assert (batch.commands, batch.redelivered) == ([command], 1)


class Wire:
    """A connection that keeps what was said over it."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[int]:
        self.said += [message.body for message in messages]
        return []

    async def unsubscribe(self) -> None:
        self.said.append(b"UNSUB")


async def test_a_stop_asks_for_nothing_more_before_it_gives_commands_back(bus: NatsBus) -> None:
    """What is still asked for would come to us again, and wait there until the broker gives up on us."""
    wire = Wire()
    bus.inbox._client = client = cast("TolerantClient", wire)
    bus.inbox._subscription = cast("Subscription", wire)
    bus._replies.start(client)
    bus._replies._positions._epochs = [StreamEpoch(0, 1)]
    bus.inbox.buffer.put(Incoming("$JS.ACK.x", Position(1, 1), 1, schedule("order-1", 60)))

    async with bus.running():
        pass

    assert wire.said == [b"UNSUB", b"-NAK"]


async def test_an_error_before_the_session_is_told_and_harms_nothing(bus: NatsBus) -> None:
    with capture_logs() as log:
        await bus.session.error_reported(Exception("permissions violation"))

    assert [line["event"] for line in log] == ["broker.error"]


async def test_once_it_stops_it_connects_no_more_although_its_cancellation_was_swallowed(
    bus: NatsBus,
) -> None:
    bus.session.stop()

    async with asyncio.timeout(60):
        await bus.session.keep()

    assert bus.source.problem == "not connected yet"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoServersError(), "no server answers"),
        (ServiceUnavailableError(), "JetStream does not answer: is it enabled? (no responders)"),
        (ServiceUnavailableError(description="full"), "JetStream does not answer: is it enabled? (full)"),
        (TimeoutError(), "TimeoutError"),
        (OSError("the network is down"), "the network is down"),
    ],
)
def test_every_error_has_words(error: Exception, words: str) -> None:
    assert reason(error) == words
