"""Dead letters on a real broker, when its letter stream is full or silent."""

from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from tests.contract.test_source_and_sink import (
    consuming,
    names,
    send_rubbish,
    send_schedule,
    until_unfinished,
)
from tests.support.broker import NatsServer, told
from tests.support.lines import BATCH_SIZE, NatsLine, nats_line, until
from timer_service.adapters.nats.bus import USUAL_MEANS, NatsMeans
from timer_service.adapters.nats.letters import LetterLimits
from timer_service.testing import ManualClock


@pytest.fixture
async def nats(
    request: pytest.FixtureRequest, shared_broker: NatsServer, prefix: str, clock: ManualClock
) -> AsyncIterator[NatsLine]:
    means: NatsMeans = getattr(request, "param", USUAL_MEANS)
    async with nats_line(lambda: shared_broker, prefix, clock, 60.0, means=means) as opened:
        assert isinstance(opened, NatsLine)
        yield opened


def limited(**limits: int) -> pytest.MarkDecorator:
    means = NatsMeans(letter_limits=LetterLimits(**limits), confirm_timeout_s=600.0)
    return pytest.mark.parametrize("nats", [means], indirect=True, ids=["limited"])


@limited(max_queued=BATCH_SIZE)
async def test_a_silent_letter_stream_delays_no_command(nats: NatsLine) -> None:
    """A bus that waited for letters anywhere would wait for ten minutes here."""
    await nats.set_letters(no_ack=True)
    sent = []
    for number in range(5):
        for _ in range(BATCH_SIZE):
            await send_rubbish(nats)
        sent.append(f"order-{number}")
        await send_schedule(nats, sent[-1])

    async with consuming(nats) as batches:

        async def all_here() -> bool:
            return names(batches) == sent

        await until(all_here, "all commands")


@limited(max_parked=5)
async def test_beyond_the_bound_letters_are_dropped_and_counted_and_the_rest_is_kept(nats: NatsLine) -> None:
    await nats.fill_letters()
    bad = [await send_rubbish(nats) for _ in range(3 * BATCH_SIZE)]

    async with consuming(nats):

        async def five_left() -> bool:
            return len(await nats.unfinished()) == 5

        await until(five_left, "all but five to be dropped")
        problem = nats.bus.letters.problem
        await nats.empty_letters()
        await until_unfinished(nats, [])

    written = [letter.body["sequence"] for letter in await nats.letters()]
    assert len(written) == 5
    assert set(written) < set(bad)
    assert len(nats.dropped) == len(bad) - 5
    assert problem is not None
    assert "25 were dropped" in problem


@limited(max_parked=1, max_queued=2)
async def test_a_flood_of_garbage_drops_nothing_while_letters_are_written(nats: NatsLine) -> None:
    bad = [await send_rubbish(nats) for _ in range(5 * BATCH_SIZE)]

    async with consuming(nats):
        await until_unfinished(nats, [])

    assert sorted(letter.body["sequence"] for letter in await nats.letters()) == bad
    assert nats.dropped == []


async def test_a_message_whose_letter_fails_is_given_back_with_a_delay_that_grows(nats: NatsLine) -> None:
    words: list[bytes] = []

    async def hear(message: Msg) -> None:
        words.append(message.data)

    await nats.client.subscribe(f"$JS.ACK.{nats.stream}.>", cb=hear)
    await told(nats.client)
    await nats.fill_letters()
    await send_rubbish(nats)

    async with consuming(nats):

        async def twice() -> bool:
            return len(words) == 2

        await until(twice, "the message to be given back twice")

    assert words == [b'-NAK {"delay": 1000000000}', b'-NAK {"delay": 2000000000}']
