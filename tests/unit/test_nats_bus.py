"""The bus on NATS while it has no connection, and the words it has for errors."""

import asyncio

import pytest
from nats.errors import NoServersError
from nats.js.errors import ServiceUnavailableError
from structlog.testing import capture_logs

from tests.support.timers import ACME, reached, schedule
from timer_service.adapters.nats import bus as bus_module
from timer_service.adapters.nats.bus import NatsEventBus, NatsOptions
from timer_service.adapters.nats.incoming import Incoming
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import Position
from timer_service.testing import ManualClock, MemoryTimerStore


@pytest.fixture
def bus() -> NatsEventBus:
    options = NatsOptions(connect={"servers": ["nats://nowhere.invalid:4222"]})
    return NatsEventBus(options, ManualClock(), lambda: 0.5, MemoryTimerStore())


async def test_without_a_connection_every_question_says_so(bus: NatsEventBus) -> None:
    assert (bus.problem, bus.server, bus.warnings) == ("not connected yet", None, {})
    for question in (bus.last_position(), bus.backlog({ACME: 0}), bus.publish([reached("order-1", 0)])):
        with pytest.raises(BusUnavailable, match="not connected to the broker yet"):
            await question


async def test_what_was_delivered_before_the_connection_was_lost_is_still_handed_out(
    bus: NatsEventBus,
) -> None:
    command = schedule("order-1", 60)
    bus._buffer.put(Incoming("$JS.ACK.x", Position(1, 1), 2, command))

    batch = await bus.receive()
    await batch.acknowledge()

    assert (batch.commands, batch.redelivered) == ([command], 1)


async def test_an_error_before_the_session_is_told_and_harms_nothing(bus: NatsEventBus) -> None:
    with capture_logs() as log:
        await bus._on_error(Exception("permissions violation"))

    assert [line["event"] for line in log] == ["broker.error"]


async def test_once_it_stops_it_connects_no_more_although_its_cancellation_was_swallowed(
    bus: NatsEventBus,
) -> None:
    bus._stopping = True

    async with asyncio.timeout(60):
        await bus._keep_session()

    assert bus.problem == "not connected yet"


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
    assert bus_module._reason(error) == words
