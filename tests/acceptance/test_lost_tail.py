"""The broker comes back without its newest messages: it is told, and what is sent from then on counts."""

import asyncio

import pytest

from tests.support.http import fetch_json, metric
from tests.support.messages import in_seconds
from tests.support.ports import free_port
from tests.support.world import World

FAR_S = 3600


@pytest.mark.parametrize("service_runs", [True, False], ids=["while it runs", "while it is away"])
async def test_after_the_broker_lost_its_newest_commands_a_cancel_takes_effect(
    world: World, service_runs: bool
) -> None:
    port = free_port()
    service = world.service(http_port=port).start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR_S))
    await world.wait_until_consumed()
    world.broker.keep_data()
    await world.wait_for_broker()
    for number in range(2, 6):
        await world.schedule("acme", "order-1", in_seconds(FAR_S + number))
    await world.wait_until_consumed()
    if not service_runs:
        service.terminate()

    await asyncio.to_thread(world.broker.lose_tail)
    await world.wait_for_broker()
    if not service_runs:
        service.restart()
    service.wait_for_log("stream.tail_lost")
    sequence = await world.cancel("acme", "order-1")
    await world.wait_for_row("acme", "order-1", state="Cancelled")

    assert sequence == 2
    status, report = fetch_json(port, "/readyz")
    assert (status, list(report["warnings"])) == (200, ["commands"])
    assert metric(port, "timer_stream_tail_lost") == 1
