"""Where is my timer? The answer over NATS and on the command line, on a real broker."""

import json
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig

from tests.support import messages
from tests.support.patience import PATIENCE_S
from tests.support.process import run_cli
from tests.support.requests import ask
from tests.support.world import World


async def explained(world: World, call: str, tenant: str = "acme") -> dict[str, Any]:
    return await ask(world, "explain", tenant, serviceCallId=call)


async def test_the_way_of_a_timer_is_explained_from_its_refusal_to_its_acknowledgement(world: World) -> None:
    world.service(broker_user="page").start_ready()
    await world.send(messages.schedule("acme", "order-1", "2026-01-01T09:00:00"))
    await world.wait_for_letters(1)

    refused = await explained(world, "order-1")
    unknown = await explained(world, "order-1", "globex")

    assert refused["cause"] == "refused"
    assert refused["text"].startswith("No such timer; letter 1 names this id: ")
    assert [(each["letter"], each["reason"]) for each in refused["letters"]] == [(1, "invalid")]
    assert (unknown["cause"], unknown["isWell"]) == ("not_found", False)

    await world.schedule("acme", "order-1", messages.in_seconds(7200 + 800))
    await world.wait_until_consumed()
    later = await explained(world, "order-1")
    assert later["text"].startswith("Due in 2 h 13 min")
    assert later["text"].endswith("; nothing is wrong.")

    consumer = ConsumerConfig(
        name="acme-billing",
        durable_name="acme-billing",
        ack_policy=AckPolicy.EXPLICIT,
        filter_subject=f"{world.prefix}.events.acme.>",
    )
    await world.jetstream.add_consumer(world.events_stream, consumer)
    await world.schedule("acme", "order-0", messages.in_seconds(-1))
    await world.schedule("acme", "order-1", messages.in_seconds(-1))
    await world.wait_for_events(2)
    await world.wait_for_row("acme", "order-1", state="Reached")
    fired = await explained(world, "order-1")
    assert (fired["cause"], fired["sequence"], fired["stream"]) == ("fired", 2, world.events_stream)
    assert fired["consumers"] == [{"name": "acme-billing", "reading": "waiting"}]

    reading = await world.jetstream.pull_subscribe_bind("acme-billing", world.events_stream)
    taken = await reading.fetch(2, timeout=PATIENCE_S)
    taken += [] if len(taken) == 2 else await reading.fetch(1, timeout=PATIENCE_S)
    delivered = await explained(world, "order-1")
    for message in taken:
        await message.ack_sync()
    acknowledged = await explained(world, "order-1")

    assert delivered["consumers"] == [{"name": "acme-billing", "reading": "delivered"}]
    assert acknowledged["text"].endswith(
        f"stored as {world.events_stream} 2; acme-billing has acknowledged it."
    )
    assert acknowledged["isWell"]

    settings: dict[str, Any] = {"broker_url": world.broker.url, "subject_prefix": world.prefix}
    arguments = ("explain", "--tenant", "acme", "--id", "order-1")
    said = run_cli(*arguments, cwd=world.folder, **settings)
    as_json = run_cli(*arguments, "--json", cwd=world.folder, **settings)
    assert said.stdout.strip() == acknowledged["text"]
    assert json.loads(as_json.stdout)["consumers"] == acknowledged["consumers"]


async def test_without_the_rights_to_look_back_an_explanation_says_so(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", messages.in_seconds(-1))
    await world.wait_for_row("acme", "order-1", state="Reached")

    unknown, fired = await explained(world, "order-9"), await explained(world, "order-1")

    told = "the service is not permitted to read this; its operator can grant it (docs/permissions.md)"
    assert (unknown["cause"], unknown["unknown"]) == ("not_found", [f"dead letters: {told}"])
    assert (fired["cause"], fired["unknown"]) == ("fired", [f"events: {told}"])
