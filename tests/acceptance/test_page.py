"""The page of the real service beside a real broker."""

import asyncio
import json
from typing import Any
from urllib.request import urlopen

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from tests.support import messages
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.world import World


async def shown(port: int, screen: str) -> Any:
    def ask() -> Any:
        with urlopen(f"http://127.0.0.1:{port}/ui/{screen}", timeout=PATIENCE_S) as reply:
            return json.load(reply)

    return await asyncio.to_thread(ask)


async def around(port: int, wanted: str) -> dict[str, Any]:
    """Return what System shows around the service, as soon as it has what is wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := (await shown(port, "system?format=json"))["around"]).get(wanted):
            await asyncio.sleep(0.05)
    return dict(found)


async def test_system_shows_instances_streams_and_how_far_behind_readers_are(world: World) -> None:
    port = free_port()
    consumer = ConsumerConfig(
        durable_name="acme-billing",
        ack_policy=AckPolicy.EXPLICIT,
        filter_subject=f"{world.prefix}.events.acme.>",
    )
    service = world.service(broker_user="page", page_port=port).start_ready()
    await world.jetstream.add_consumer(world.events_stream, consumer)
    for name in ("order-1", "order-2"):
        await world.schedule("acme", name, messages.in_seconds(-1))
    await world.wait_for_events(2)

    found = await around(port, "instances")

    assert found["trouble"] == []
    assert [each["isWell"] for each in found["instances"]] == [True]
    assert {each["name"]: each["messages"] for each in found["streams"]}[world.events_stream] == 2
    [reader] = [each for each in found["readers"] if each["name"] == "acme-billing"]
    assert (reader["waiting"], reader["unacknowledged"]) == (2, 0)
    assert [line for line in service.log if line.get("level") == "error"] == []


@pytest.mark.parametrize("right", ["CONSUMER.LIST", "status"])
async def test_system_names_the_rights_that_are_missing(world: World, right: str) -> None:
    port = free_port()
    world.service(broker_user="service", page_port=port).start_ready()

    async with asyncio.timeout(PATIENCE_S):
        while not any(right in text for text in (await around(port, "trouble"))["trouble"]):
            await asyncio.sleep(0.05)
