"""Old commands that come late, and streams and consumers that are made again."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StreamConfig

from tests.support.broker import told
from tests.support.messages import in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.process import TimerServiceProcess
from tests.support.world import World

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR = 3600.0
CONSUMER = "timer-service"


async def _stopped_service(world: World) -> TimerServiceProcess:
    """Return a service that has made its streams and its consumer, and was stopped."""
    service = world.service().start_ready()
    assert service.terminate() == 0
    return service


async def _take_one(world: World) -> Msg:
    """Receive the next command in the service's place, and leave it unacknowledged."""
    commands = await world.jetstream.pull_subscribe_bind(CONSUMER, stream=world.commands_stream)
    (message,) = await commands.fetch(1, timeout=PATIENCE_S)
    return message


async def _deliver_again(world: World, message: Msg, service: TimerServiceProcess) -> dict[str, Any]:
    """Give the command back, so that the service gets it now; return what the service says of it."""
    await message.nak()
    await told(world.client)
    return service.wait_for_log("commands.applied", where=lambda line: line["redelivered"] == 1)


async def _fire_marker(world: World) -> list[str]:
    """Send a timer that is due now, wait until it has fired, and return whose events there are by then."""
    await world.schedule("acme", "marker", in_seconds(0))
    await world.wait_for_row("acme", "marker", state="Reached")
    return [event["payload"]["serviceCallId"] for event in await world.events()]


async def _wait_for_new_stream(world: World, name: str, old: datetime | None) -> None:
    async def made_again() -> bool:
        with contextlib.suppress(NatsError):
            return (await world.jetstream.stream_info(name)).created != old
        return False

    await world.until(made_again, f"{name} to be made again")


# Old commands delivered again


async def test_an_old_schedule_delivered_after_a_newer_reschedule_changes_nothing(world: World) -> None:
    service = await _stopped_service(world)
    await world.schedule("acme", "order-1", LONG_AGO, correlationId="old")
    old = await _take_one(world)
    service.restart()
    due = in_seconds(FAR)
    await world.schedule("acme", "order-1", due, correlationId="new")
    before = await world.wait_for_row("acme", "order-1", due_at=iso(due))

    told = await _deliver_again(world, old, service)
    fired = await _fire_marker(world)

    assert told["superseded"] == 1
    assert world.row("acme", "order-1") == before
    assert fired == ["marker"]


async def test_an_old_schedule_delivered_after_a_cancel_changes_nothing(world: World) -> None:
    service = await _stopped_service(world)
    await world.schedule("acme", "order-1", LONG_AGO)
    old = await _take_one(world)
    service.restart()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.cancel("acme", "order-1")
    before = await world.wait_for_row("acme", "order-1", state="Cancelled", generation=1)

    told = await _deliver_again(world, old, service)
    fired = await _fire_marker(world)

    assert told["superseded"] == 1
    assert world.row("acme", "order-1") == before
    assert fired == ["marker"]


async def test_a_cancel_that_overtakes_its_schedule_wins(world: World) -> None:
    service = await _stopped_service(world)
    await world.schedule("acme", "order-1", LONG_AGO)
    overtaken = await _take_one(world)
    service.restart()
    await world.cancel("acme", "order-1")
    before = await world.wait_for_row("acme", "order-1", state="Cancelled")

    told = await _deliver_again(world, overtaken, service)
    fired = await _fire_marker(world)

    # What the cancel could not know is filled in: the timer ends as if both had come in order.
    filled_in = {"due_at": "2020-01-01T00:00:00.000Z", "generation": 1}
    assert told["superseded"] == 1
    assert world.row("acme", "order-1") == {**before, **filled_in}
    assert fired == ["marker"]


async def test_an_old_cancel_delivered_after_a_newer_schedule_changes_nothing(world: World) -> None:
    service = await _stopped_service(world)
    await world.cancel("acme", "order-1")
    old = await _take_one(world)
    service.restart()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")

    told = await _deliver_again(world, old, service)

    assert told["superseded"] == 1
    assert world.row("acme", "order-1") == before


async def test_an_old_schedule_delivered_after_one_for_the_same_time_and_a_cancel_changes_nothing(
    world: World,
) -> None:
    service = await _stopped_service(world)
    due = in_seconds(FAR)
    await world.schedule("acme", "order-1", LONG_AGO)
    old = await _take_one(world)
    service.restart()
    for _ in range(2):
        await world.schedule("acme", "order-1", due)
    await world.cancel("acme", "order-1")
    await world.cancel("acme", "order-1")
    sequence = await world.schedule("acme", "order-1", due)
    before = await world.wait_for_row("acme", "order-1", stream_sequence=sequence)

    told = await _deliver_again(world, old, service)

    assert (before["state"], before["generation"]) == ("Scheduled", 2)
    assert told["superseded"] == 1
    assert world.row("acme", "order-1") == before


@pytest.mark.parametrize("kind", ["schedule", "cancel"])
async def test_an_old_command_delivered_after_the_timer_was_reached_changes_nothing(
    world: World, kind: str
) -> None:
    service = await _stopped_service(world)
    if kind == "schedule":
        await world.schedule("acme", "order-1", in_seconds(FAR))
    else:
        await world.cancel("acme", "order-1")
    old = await _take_one(world)
    service.restart()
    await world.schedule("acme", "order-1", LONG_AGO)
    before = await world.wait_for_row("acme", "order-1", state="Reached")

    await _deliver_again(world, old, service)
    fired = await _fire_marker(world)

    assert world.row("acme", "order-1") == before
    assert fired == ["order-1", "marker"]


# Streams and consumers made again


@pytest.mark.parametrize("who", ["service", "operator"])
async def test_newer_commands_count_after_the_command_stream_was_made_again_under_a_running_service(
    world: World, who: str
) -> None:
    service = world.service().start_ready()
    await _use_up_sequences(world)
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")
    old = await world.jetstream.stream_info(world.commands_stream)

    await world.jetstream.delete_stream(world.commands_stream)
    if who == "operator":
        with contextlib.suppress(NatsError):  # The service may be faster.
            await _make_command_stream(world)
    await _wait_for_new_stream(world, world.commands_stream, old.created)
    due = in_seconds(2 * FAR)
    sequence = await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", due_at=iso(due))
    await world.cancel("acme", "order-1")
    await world.wait_for_row("acme", "order-1", state="Cancelled", generation=2)

    assert sequence < before["stream_sequence"]
    assert row == {
        **before,
        "due_at": iso(due),
        "generation": 2,
        "stream_created_us": row["stream_created_us"],
        "stream_sequence": sequence,
    }
    assert row["stream_created_us"] > before["stream_created_us"]
    assert service.is_running


@pytest.mark.parametrize("who", ["service", "operator"])
async def test_newer_commands_count_after_the_command_stream_was_made_again_under_a_stopped_service(
    world: World, who: str
) -> None:
    service = world.service().start_ready()
    await _use_up_sequences(world)
    before = await world.wait_for_row("acme", "order-1", state="Scheduled")
    service.terminate()

    await world.jetstream.delete_stream(world.commands_stream)
    if who == "operator":
        await _make_command_stream(world)
    service.restart()
    service.wait_for_log("broker.connected")
    due = in_seconds(0.3)
    sequence = await world.schedule("acme", "order-1", due)
    row = await world.wait_for_row("acme", "order-1", state="Reached")

    assert sequence < before["stream_sequence"]
    assert (row["due_at"], row["generation"], row["registered_at"]) == (
        iso(due),
        2,
        before["registered_at"],
    )
    assert [event["payload"]["generation"] for event in await world.events()] == [2]


async def test_a_command_of_the_new_stream_is_not_lost_to_an_acknowledgement_of_the_old_one(
    world: World,
) -> None:
    world.service().start_ready()
    for number in range(20):
        await world.schedule("acme", f"old-{number}", in_seconds(FAR))
    old = await world.jetstream.stream_info(world.commands_stream)

    # At once, while the service still holds commands of the old stream under the same sequences.
    await world.jetstream.delete_stream(world.commands_stream)
    await _wait_for_new_stream(world, world.commands_stream, old.created)
    for number in range(20):
        await world.schedule("acme", f"new-{number}", in_seconds(FAR))
    await world.wait_until_consumed()

    kept = {row["service_call_id"] for row in world.rows("WHERE service_call_id LIKE 'new-%'")}
    assert kept == {f"new-{number}" for number in range(20)}


async def test_a_deleted_consumer_is_made_again_and_misses_no_command(world: World) -> None:
    service = world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.wait_for_row("acme", "order-1", state="Scheduled")
    await world.wait_until_consumed()

    await world.jetstream.delete_consumer(world.commands_stream, CONSUMER)
    await world.schedule("acme", "order-2", LONG_AGO)
    await world.cancel("acme", "order-1")
    await world.wait_for_row("acme", "order-1", state="Cancelled")
    events = await world.wait_for_events(1)

    assert [event["payload"]["serviceCallId"] for event in events] == ["order-2"]
    assert service.is_running


async def test_a_deleted_event_stream_is_made_again_and_timers_fire_into_it(world: World) -> None:
    service = world.service().start_ready()
    await world.schedule("acme", "before", LONG_AGO)
    await world.wait_for_row("acme", "before", state="Reached")
    old = await world.jetstream.stream_info(world.events_stream)

    await world.jetstream.delete_stream(world.events_stream)
    for number in range(30):
        await world.schedule("acme", f"order-{number}", LONG_AGO)
    await _wait_for_new_stream(world, world.events_stream, old.created)
    await world.wait_until_all_reached(31)
    events = await world.events()

    assert sorted(event["payload"]["serviceCallId"] for event in events) == sorted(
        f"order-{number}" for number in range(30)
    )
    assert service.is_running


async def test_streams_and_consumer_lost_while_the_service_is_stopped_are_made_again(world: World) -> None:
    service = world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.wait_for_row("acme", "order-1", state="Scheduled")
    service.terminate()
    for name in (world.commands_stream, world.events_stream, world.letters_stream):
        await world.jetstream.delete_stream(name)

    service.restart()
    service.wait_for_log("broker.connected")
    due = in_seconds(0)
    await world.schedule("acme", "order-1", due)
    await world.send_raw(f"{world.prefix}.commands.acme.ScheduleTimer", b"not JSON")
    events = await world.wait_for_events(1)
    letters = await world.wait_for_letters(1)

    assert [event["payload"]["dueAt"] for event in events] == [iso(due)]
    assert [letter["reason"] for letter in letters] == ["not_json"]


async def _use_up_sequences(world: World) -> None:
    """Schedule a timer, last of several commands, so that a new stream begins far below its sequence."""
    for number in range(9):
        await world.cancel("acme", f"unknown-{number}")
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.wait_until_consumed()


async def _make_command_stream(world: World) -> None:
    await world.jetstream.add_stream(
        StreamConfig(
            name=world.commands_stream,
            subjects=[f"{world.prefix}.commands.>"],
            retention=RetentionPolicy.WORK_QUEUE,
        )
    )
