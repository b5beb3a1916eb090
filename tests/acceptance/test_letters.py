"""A letter stream in trouble holds up no good command, and loses no letter that there is room for."""

from typing import Any

from nats.js.api import DiscardPolicy

from tests.support.broker import told
from tests.support.http import fetch_json, metric
from tests.support.messages import in_seconds
from tests.support.ports import free_port
from tests.support.world import World

BAD = 1_800
"""More than a consumer without room for refused messages would have pending: 1,000 at this batch size."""


async def limit_letters(world: World, **limits: Any) -> None:
    config = (await world.jetstream.stream_info(world.letters_stream)).config
    await world.jetstream.update_stream(config.evolve(**limits))


async def test_garbage_of_one_tenant_stops_nobody_while_no_letter_can_be_written(world: World) -> None:
    port = free_port()
    service = world.service(batch_size=100, http_port=port).start_ready()
    await limit_letters(world, max_bytes=1, discard=DiscardPolicy.NEW)
    for number in range(BAD):
        await world.client.publish(f"{world.prefix}.commands.acme.ScheduleTimer", b"rubbish %d" % number)
    await told(world.client)

    async def all_parked() -> bool:
        return metric(port, "timer_dead_letters_waiting") == BAD

    await world.until(all_parked, "every refused message to wait for its letter")
    await world.schedule("globex", "order-1", in_seconds(0))
    await world.wait_for_row("globex", "order-1", state="Reached")

    async def all_named() -> bool:
        # Now and then some of them are tried again, and do not wait meanwhile.
        return f"{BAD} refused messages wait" in fetch_json(port, "/readyz")[1]["warnings"]["dead letters"]

    await world.until(all_named, "the warning to name all of them")
    status, report = fetch_json(port, "/readyz")
    await limit_letters(world, max_bytes=-1, discard=DiscardPolicy.OLD)
    await world.wait_until_consumed(timeout_s=120)
    service.wait_for_log("deadletter.recovered")

    assert (status, list(report["warnings"])) == (200, ["dead letters"])
    assert len({letter["sequence"] for letter in await world.letters()}) == BAD
    assert len(await world.letters()) == BAD
    assert len(service.events("deadletter.delayed")) == 1
    assert fetch_json(port, "/readyz") == (200, {"status": "ok"})
