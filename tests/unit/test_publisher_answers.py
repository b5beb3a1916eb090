"""What the broker says of publications: each message gets its own answer, and only a real one."""

import asyncio

import pytest

from tests.support.nats_client import FakeClient
from timer_service.adapters.nats import publisher as publisher_module
from timer_service.adapters.nats.publisher import Publisher
from timer_service.adapters.nats.tolerant_client import Outgoing
from timer_service.ports.event_sink import Published

EVENTS = [Outgoing("timer.events.acme.X", b"1"), Outgoing("timer.events.globex.X", b"2")]
STORED = b'{"stream":"TIMER_EVENTS","seq":1}'


async def test_a_subject_that_we_may_not_publish_to_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "LOOK_ALIKE_GRACE_S", 0.0)
    forbidden = 'nats: permissions violation for publish to "timer.events.globex.x"'

    async def react(client: FakeClient, inbox: str) -> None:
        publisher.error_reported(Exception("nats: stale connection"))
        publisher.error_reported(Exception(forbidden))
        await asyncio.sleep(0.001)
        await client.answer(f"{inbox}.0", STORED)

    fake = FakeClient(react)
    publisher = Publisher(fake.client, frozenset({"TIMER_EVENTS"}), stream_missing=lambda: None)
    await publisher.start()

    stored, refused = await publisher.publish(EVENTS)

    assert stored.outcome is Published.CONFIRMED
    assert (refused.outcome, refused.detail) == (Published.REJECTED, forbidden)


@pytest.mark.parametrize(
    "confirmation",
    [STORED, b'{"seq":1,"stream":"TIMER_EVENTS"}', b'{"domain":"hub","stream":"TIMER_EVENTS","seq":1}'],
)
async def test_a_confirmation_counts_in_whatever_order_its_fields_come(confirmation: bytes) -> None:
    async def react(client: FakeClient, inbox: str) -> None:
        for index in range(len(EVENTS)):
            await client.answer(f"{inbox}.{index}", b'{"stream":"OTHERS","seq":1}')
            await client.answer(f"{inbox}.{index}", confirmation)

    publisher = Publisher(FakeClient(react).client, frozenset({"TIMER_EVENTS"}), stream_missing=lambda: None)
    await publisher.start()

    results = await publisher.publish(EVENTS)

    assert {result.outcome for result in results} == {Published.CONFIRMED}


async def test_nothing_to_publish_is_not_sent() -> None:
    async def react(client: FakeClient, inbox: str) -> None:
        raise AssertionError("something was sent")

    publisher = Publisher(FakeClient(react).client, frozenset(), stream_missing=lambda: None)
    await publisher.start()

    assert await publisher.publish([]) == []
