"""Tenants never touch each other's timers."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.support.broker import NatsServer, told
from tests.support.messages import cancel, encode, in_seconds, iso, schedule, with_payload
from tests.support.patience import PATIENCE_S
from tests.support.world import World

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR = 3600.0


async def _fire_marker(world: World) -> None:
    """Send a timer that is due now and wait until it has fired: all commands before it are handled."""
    await world.schedule("marker", "marker", in_seconds(0))
    await world.wait_for_row("marker", "marker", state="Reached")


async def test_two_tenants_with_the_same_service_call_id_have_a_timer_each(world: World) -> None:
    world.service().start_ready()
    first, second = in_seconds(0.3), in_seconds(0.5)

    await world.schedule("acme", "order-1", first, correlationId="of-acme")
    await world.schedule("umbrella", "order-1", second, correlationId="of-umbrella")
    await world.wait_until_consumed()
    await world.wait_until_all_reached(2)
    of_acme, of_umbrella = await world.events("acme"), await world.events("umbrella")

    seen = [
        (event["tenantId"], event["payload"]["tenantId"], event["payload"]["dueAt"], event["correlationId"])
        for event in of_acme + of_umbrella
    ]
    assert seen == [
        ("acme", "acme", iso(first), "of-acme"),
        ("umbrella", "umbrella", iso(second), "of-umbrella"),
    ]


async def test_a_cancel_leaves_the_timer_of_another_tenant_alone(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.schedule("umbrella", "order-1", in_seconds(FAR))
    before = await world.wait_for_row("umbrella", "order-1", state="Scheduled")

    await world.cancel("acme", "order-1")
    await world.wait_for_row("acme", "order-1", state="Cancelled")

    assert world.row("umbrella", "order-1") == before


async def test_a_reschedule_leaves_the_timer_of_another_tenant_alone(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.schedule("umbrella", "order-1", in_seconds(FAR))
    before = await world.wait_for_row("umbrella", "order-1", state="Scheduled")

    await world.schedule("acme", "order-1", LONG_AGO)
    await world.wait_for_row("acme", "order-1", state="Reached")

    assert world.row("umbrella", "order-1") == before
    assert [event["tenantId"] for event in await world.events()] == ["acme"]


async def test_case_matters_in_tenants_and_service_calls(world: World) -> None:
    world.service().start_ready()
    names = [("acme", "order-1"), ("ACME", "order-1"), ("acme", "ORDER-1"), ("ACME", "ORDER-1")]
    for tenant, call in names:
        await world.schedule(tenant, call, in_seconds(FAR))
    await world.wait_for_row("ACME", "ORDER-1", state="Scheduled")

    await world.cancel("acme", "ORDER-1")
    await world.schedule("ACME", "order-1", LONG_AGO)
    await world.wait_for_row("ACME", "order-1", state="Reached")

    assert {(row["tenant_id"], row["service_call_id"]): row["state"] for row in world.rows()} == {
        ("acme", "order-1"): "Scheduled",
        ("ACME", "order-1"): "Reached",
        ("acme", "ORDER-1"): "Cancelled",
        ("ACME", "ORDER-1"): "Scheduled",
    }
    assert [(event["tenantId"], event["aggregateId"]) for event in await world.events()] == [
        ("ACME", "order-1")
    ]


def _claims(call: str) -> dict[str, dict[str, Any]]:
    """Return commands that name the tenant umbrella somewhere, though acme sends them."""
    soon, theirs = in_seconds(0), "umbrella"
    return {
        "schedule, all of it": schedule(theirs, call, soon),
        "schedule, envelope": with_payload(schedule(theirs, call, soon), tenantId="acme"),
        "schedule, payload": with_payload(schedule("acme", call, soon), tenantId=theirs),
        "cancel, all of it": cancel(theirs, call),
        "cancel, envelope": with_payload(cancel(theirs, call), tenantId="acme"),
        "cancel, payload": with_payload(cancel("acme", call), tenantId=theirs),
    }


@pytest.mark.parametrize("claim", _claims("order-1"))
async def test_a_command_that_names_another_tenant_is_set_aside_and_changes_no_row(
    world: World, claim: str
) -> None:
    world.service().start_ready()
    for tenant in ("acme", "umbrella"):
        await world.schedule(tenant, "order-1", in_seconds(FAR))
    await world.wait_for_row("umbrella", "order-1", state="Scheduled")
    before = world.rows()
    commands = [_claims(call)[claim] for call in ("order-1", "order-unknown")]
    subject = f"{world.prefix}.commands.acme.{commands[0]['type']}"

    sequences = [await world.send(command, subject=subject) for command in commands]
    letters = await world.wait_for_letters(2)
    await _fire_marker(world)

    # To the tenant of the subject: it is the one who was allowed to send.
    assert [
        (letter["reason"], letter["letterSubject"], letter["subject"], letter["sequence"])
        for letter in letters
    ] == [("tenant_mismatch", f"{world.prefix}.deadletter.acme", subject, sequence) for sequence in sequences]
    assert world.rows("WHERE tenant_id <> 'marker'") == before
    assert [event["tenantId"] for event in await world.events()] == ["marker"]


async def test_a_tenant_that_differs_in_case_only_is_another_tenant(world: World) -> None:
    world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")
    command = cancel("acme", "order-1")

    await world.send(command, subject=f"{world.prefix}.commands.ACME.CancelTimer")
    letters = await world.wait_for_letters(1)

    assert [(letter["reason"], letter["letterSubject"]) for letter in letters] == [
        ("tenant_mismatch", f"{world.prefix}.deadletter.ACME")
    ]
    assert world.rows() == [before]


# The broker keeps tenants apart by subject


PERMISSIONS = """
authorization {
  users = [
    { user: operator, password: secret }
    { user: acme, password: secret, permissions: {
        publish: ["timer.commands.acme.>"]
        subscribe: ["timer.events.acme.>", "timer.deadletter.acme", "_INBOX.acme.>"] } }
  ]
}
"""


@pytest.fixture
def closed_broker(tmp_path: Path) -> Iterator[NatsServer]:
    """A broker that lets acme at its own subjects only."""
    server = NatsServer(tmp_path / "broker", PERMISSIONS).start()
    yield server
    server.stop()


@pytest.fixture
async def closed_world(closed_broker: NatsServer, tmp_path: Path) -> AsyncIterator[World]:
    opened = await World(tmp_path, closed_broker, "timer").open(user="operator", password="secret")
    yield opened
    await opened.close()


async def test_subject_permissions_are_all_that_keeps_a_tenant_to_its_own(closed_world: World) -> None:
    world = closed_world
    world.service(broker_user="operator", broker_password="secret").start_ready()
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error).lower())

    acme = await nats.connect(
        world.broker.url, user="acme", password="secret", inbox_prefix="_INBOX.acme", error_cb=note
    )
    own = await acme.subscribe("timer.events.acme.>")
    for_others = await acme.subscribe("timer.events.>")
    await world.schedule("umbrella", "order-1", LONG_AGO)
    await world.wait_for_row("umbrella", "order-1", state="Reached")

    await acme.jetstream(timeout=PATIENCE_S).publish(
        "timer.commands.acme.ScheduleTimer", encode(schedule("acme", "order-1", LONG_AGO))
    )
    await acme.publish("timer.commands.umbrella.CancelTimer", encode(cancel("umbrella", "order-2")))
    await told(acme)
    event = await own.next_msg(timeout=PATIENCE_S)
    await _fire_marker(world)
    await told(acme)

    assert event.subject == "timer.events.acme.DueTimeReached"
    assert (own.pending_msgs, for_others.pending_msgs) == (0, 0)
    assert world.row("umbrella", "order-2") is None
    assert sorted(refused) == [
        'nats: permissions violation for publish to "timer.commands.umbrella.canceltimer"',
        'nats: permissions violation for subscription to "timer.events.>"',
    ]
    await acme.close()
