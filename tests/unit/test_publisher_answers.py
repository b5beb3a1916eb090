"""What the broker says of publications: each message gets its own answer, and only a real one."""

import asyncio

import pytest

from tests.support.nats_client import FakeClient
from timer_service.adapters.nats.client import Outgoing
from timer_service.adapters.nats.publisher import Publisher
from timer_service.ports.event_sink import Published

EVENTS = [Outgoing("timer.events.acme.X", b"1"), Outgoing("timer.events.globex.X", b"2")]
STORED = b'{"stream":"TIMER_EVENTS","seq":1}'


async def test_a_subject_that_we_may_not_publish_to_fails_alone() -> None:
    forbidden = 'nats: permissions violation for publish to "timer.events.globex.x"'

    async def react(client: FakeClient, inbox: str) -> None:
        publisher.error_reported(Exception("nats: stale connection"))
        publisher.error_reported(Exception(forbidden))
        await asyncio.sleep(0.001)
        await client.answer(f"{inbox}.0", STORED)

    publisher = Publisher(frozenset({"TIMER_EVENTS"}), lambda: None, look_alike_grace_s=0.0)
    await publisher.start(FakeClient(react).client)

    stored, refused = await publisher.publish(EVENTS)

    assert stored.outcome is Published.CONFIRMED
    assert (refused.outcome, refused.detail) == (Published.REJECTED, forbidden)


async def test_a_refusal_counts_only_for_what_was_sent_before_it() -> None:
    async def react(client: FakeClient, inbox: str) -> None:
        await asyncio.sleep(0.001)
        await client.answer(f"{inbox}.0", STORED)

    publisher = Publisher(frozenset({"TIMER_EVENTS"}), lambda: None, look_alike_grace_s=0.0)
    await publisher.start(FakeClient(react).client)

    publisher.error_reported(Exception('nats: permissions violation for publish to "timer.events.acme.x"'))
    [stored] = await publisher.publish(EVENTS[:1])

    assert stored.outcome is Published.CONFIRMED


@pytest.mark.parametrize(
    "confirmation",
    [STORED, b'{"seq":1,"stream":"TIMER_EVENTS"}', b'{"domain":"hub","stream":"TIMER_EVENTS","seq":1}'],
)
async def test_a_confirmation_counts_in_whatever_order_its_fields_come(confirmation: bytes) -> None:
    async def react(client: FakeClient, inbox: str) -> None:
        for index in range(len(EVENTS)):
            await client.answer(f"{inbox}.{index}", b'{"stream":"OTHERS","seq":1}')
            await client.answer(f"{inbox}.{index}", confirmation)

    publisher = Publisher(frozenset({"TIMER_EVENTS"}), lambda: None)
    await publisher.start(FakeClient(react).client)

    results = await publisher.publish(EVENTS)

    assert {result.outcome for result in results} == {Published.CONFIRMED}


async def test_nothing_to_publish_is_not_sent() -> None:
    async def react(client: FakeClient, inbox: str) -> None:
        raise AssertionError("something was sent")

    publisher = Publisher(frozenset(), lambda: None)
    await publisher.start(FakeClient(react).client)

    assert await publisher.publish([]) == []
