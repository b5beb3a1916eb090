"""A command that the broker stored before the due time counts, whatever happened to the service meanwhile."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from nats.js.api import StreamConfig

from tests.support.broker import told
from tests.support.messages import encode, in_seconds, schedule
from tests.support.world import World

FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def _make_streams(world: World) -> None:
    """Let a service make its streams and its consumer, and end it."""
    service = world.service().start_ready()
    assert service.terminate() == 0


async def _flood(world: World, tenant: str, count: int, body: Callable[[int], bytes]) -> None:
    """Publish as fast as the broker takes it; wait until it has it all."""
    before = (await world.jetstream.stream_info(world.commands_stream)).state.last_seq
    for number in range(count):
        await world.client.publish(f"{world.prefix}.commands.{tenant}.ScheduleTimer", body(number))
    await told(world.client)

    async def stored() -> bool:
        state = (await world.jetstream.stream_info(world.commands_stream)).state
        return state.last_seq >= before + count

    await world.until(stored, f"{count} messages in the stream")


async def _until(moment: datetime) -> None:
    await asyncio.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()))


async def _before_due(send: Callable[[datetime], Awaitable[None]]) -> datetime:
    """Send, and again for a later due time where that took too long; return the due time."""
    lead_s = 2
    while True:
        due = in_seconds(lead_s)
        await send(due)
        if datetime.now(UTC) < due:
            return due
        lead_s *= 2


def _calls(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["payload"]["serviceCallId"] for event in events]


async def test_what_was_cancelled_or_moved_while_the_service_was_away_does_not_fire(world: World) -> None:
    await _make_streams(world)

    async def send(due: datetime) -> None:
        await world.schedule("acme", "cancelled", due)
        await world.schedule("acme", "moved", due)
        await world.schedule("acme", "left-alone", due)
        await _flood(world, "acme", 2_500, lambda n: encode(schedule("acme", f"other-{n}", FAR)))
        await world.cancel("acme", "cancelled")
        await world.schedule("acme", "moved", FAR)

    await _until(await _before_due(send))

    world.service().start()

    await world.wait_until_consumed()
    assert _calls(await world.wait_for_events(1)) == ["left-alone"]
    row = await world.wait_for_row("acme", "moved", state="Scheduled")
    assert row["due_at"] == "2100-01-01T00:00:00.000Z"
    await world.wait_for_row("acme", "cancelled", state="Cancelled")


async def test_what_was_cancelled_while_the_service_was_stopped_over_the_due_time_does_not_fire(
    world: World,
) -> None:
    service = world.service().start_ready()
    last_round: list[str] = []

    async def send(due: datetime) -> None:
        os.kill(service.pid, signal.SIGCONT)
        last_round[:] = [f"order-{number:02}-{due:%H%M%S%f}" for number in range(40)]
        for call in last_round:
            await world.schedule("acme", call, due)
        await world.schedule("acme", "left-alone", due)
        await world.wait_until_consumed()
        os.kill(service.pid, signal.SIGSTOP)
        for call in last_round:
            await world.cancel("acme", call)

    await _until(await _before_due(send))

    os.kill(service.pid, signal.SIGCONT)

    await world.wait_until_consumed()
    await world.wait_for_row("acme", "left-alone", state="Reached")
    assert set(_calls(await world.events())) & {"left-alone", *last_round} == {"left-alone"}


async def test_a_flood_of_one_tenant_holds_up_no_timer_of_another(world: World) -> None:
    # With small batches the flood takes its time, and the timer is due while most of it waits.
    service = world.service(batch_size=10).start_ready()
    await world.schedule("globex", "alone", in_seconds(1))
    await world.wait_until_consumed()
    os.kill(service.pid, signal.SIGSTOP)
    await _flood(world, "acme", 5_000, lambda n: encode(schedule("acme", f"other-{n}", FAR)))
    await _until(in_seconds(1))

    os.kill(service.pid, signal.SIGCONT)

    await world.wait_until_consumed()
    assert _calls(await world.wait_for_events(1)) == ["alone"]
    alone = await world.wait_for_row("globex", "alone", state="Reached")
    last = await world.wait_for_row("acme", "other-4999")
    assert alone["reached_at"] < last["registered_at"], "the event was out only after the flood"


async def test_a_message_that_stays_holds_up_its_tenants_timer_for_the_limit_and_nobody_elses(
    world: World,
) -> None:
    await _make_streams(world)
    # No letter can be written, so that what is refused stays in the stream.
    letters = (await world.jetstream.stream_info(world.letters_stream)).config
    await world.jetstream.delete_stream(world.letters_stream)
    await world.jetstream.add_stream(
        StreamConfig(name=world.letters_stream, subjects=letters.subjects, max_msgs=1, discard="new")  # type: ignore[arg-type]
    )
    await world.send_raw(f"{world.prefix}.deadletter.full", b"{}")
    await world.send_raw(f"{world.prefix}.commands.acme.ScheduleTimer", b"rubbish")
    for tenant in ("acme", "globex"):
        await world.schedule(tenant, "order-1", in_seconds(0))

    service = world.service(catch_up="1s").start()

    assert [e["tenantId"] for e in await world.wait_for_events(2)] == ["globex", "acme"]
    line = service.wait_for_log("catch_up.given_up")
    assert (line["level"], line["tenants"], line["tenant_id"], line["timers"]) == ("warning", 1, "acme", 1)


async def test_without_a_limit_nothing_waits(world: World) -> None:
    await _make_streams(world)
    await world.schedule("acme", "order-1", in_seconds(-1))
    service = world.service(catch_up="0").start_ready()

    assert _calls(await world.wait_for_events(1)) == ["order-1"]
    assert service.events("catch_up.given_up") == []
