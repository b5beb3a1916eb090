"""When timers fire: never early, on time without waiting for the poll, overdue ones at once."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg

from tests.support.broker import told
from tests.support.messages import in_seconds, iso
from tests.support.sqlite import due_ms
from tests.support.world import World

NEVER_MS = 3_600_000
"""A poll that no test lives to see: what fires does so because the worker was woken for it."""
FAR = 3600.0
_MOVE = f"UPDATE timer_schedules SET due_at = ?1, pending_due_ms = {due_ms('?1')} WHERE service_call_id = ?2"


class Arrivals:
    """A subscriber that notes when each event reached it."""

    def __init__(self) -> None:
        self.at: dict[str, datetime] = {}
        self.events: list[dict[str, Any]] = []

    async def note(self, message: Msg) -> None:
        event = json.loads(message.data)
        self.at[event["payload"]["serviceCallId"]] = datetime.now(UTC)
        self.events.append(event)


async def _subscribe(world: World) -> Arrivals:
    arrivals = Arrivals()
    await world.client.subscribe(f"{world.prefix}.events.*.DueTimeReached", cb=arrivals.note)
    await told(world.client)
    return arrivals


async def _wait_for(world: World, arrivals: Arrivals, count: int) -> None:
    async def arrived() -> bool:
        return len(arrivals.events) >= count

    await world.until(arrived, f"{count} events at the subscriber")


def _edit(world: World, edit: Callable[[sqlite3.Connection], object]) -> None:
    with contextlib.closing(sqlite3.connect(world.db_path)) as link, link:
        edit(link)


async def test_no_timer_fires_early_by_a_millisecond(world: World) -> None:
    world.service().start_ready()
    arrivals = await _subscribe(world)
    first = in_seconds(1)
    due = {f"order-{number}": first + timedelta(milliseconds=7 * number) for number in range(300)}

    for call, due_at in due.items():
        await world.schedule("acme", call, due_at)
    await _wait_for(world, arrivals, 300)

    events = {event["payload"]["serviceCallId"]: event["payload"] for event in arrivals.events}
    assert {call: event["dueAt"] for call, event in events.items()} == {
        call: iso(due_at) for call, due_at in due.items()
    }
    handled_early = {call for call, event in events.items() if event["reachedAt"] < event["dueAt"]}
    arrived_early = {call for call, due_at in due.items() if arrivals.at[call] < due_at}
    assert (handled_early, arrived_early) == (set(), set())


async def test_a_lone_timer_fires_without_waiting_for_the_poll(world: World) -> None:
    world.service(polling_interval=NEVER_MS).start_ready()
    due = in_seconds(1.2)

    await world.schedule("acme", "order-1", due)
    [event] = await world.wait_for_events(1)

    assert event["payload"]["dueAt"] == iso(due) <= event["payload"]["reachedAt"]


async def test_a_nearer_timer_wakes_a_worker_that_sleeps_for_a_farther_one(world: World) -> None:
    world.service(polling_interval=NEVER_MS).start_ready()
    await world.schedule("acme", "far", in_seconds(FAR))
    await world.schedule("acme", "fired", in_seconds(0))
    await world.wait_for_row("acme", "fired", state="Reached")

    await world.schedule("acme", "near", in_seconds(0.5))
    events = await world.wait_for_events(2)

    assert [event["payload"]["serviceCallId"] for event in events] == ["fired", "near"]


async def test_a_timer_moved_nearer_wakes_the_worker(world: World) -> None:
    world.service(polling_interval=NEVER_MS).start_ready()
    await world.schedule("acme", "order-1", in_seconds(FAR))
    await world.wait_for_row("acme", "order-1", generation=1)
    due = in_seconds(0.5)

    await world.schedule("acme", "order-1", due)
    [event] = await world.wait_for_events(1)

    assert (event["payload"]["dueAt"], event["payload"]["generation"]) == (iso(due), 2)


async def test_timers_keep_waking_the_worker_one_after_the_other(world: World) -> None:
    world.service(polling_interval=NEVER_MS).start_ready()
    arrivals = await _subscribe(world)
    start = in_seconds(5)
    due = {f"order-{number}": start + timedelta(milliseconds=150 * number) for number in range(8)}

    for call in sorted(due, reverse=True):
        await world.schedule("acme", call, due[call])
    await world.wait_until_consumed()
    consumed = in_seconds(0)
    await _wait_for(world, arrivals, 8)

    # On a machine that took the five seconds to schedule them, some came in overdue.
    assert consumed > start or list(arrivals.at) == list(due)
    assert {call for call, due_at in due.items() if arrivals.at[call] < due_at} == set()


async def test_without_wake_ups_timers_fire_at_the_next_poll(world: World) -> None:
    interval = timedelta(milliseconds=700)
    world.service(precise_wakeup="false", polling_interval=700).start_ready()
    start = in_seconds(1)
    due = [start + timedelta(milliseconds=30 * number) for number in range(20)]

    for number, due_at in enumerate(due):
        await world.schedule("acme", f"order-{number}", due_at)
    await world.wait_until_consumed()
    all_known = max(due[-1], in_seconds(0))
    events = [event["payload"] for event in await world.wait_for_events(20)]

    assert {event["serviceCallId"] for event in events if event["reachedAt"] < event["dueAt"]} == set()
    polls = {event["reachedAt"] for event in events}
    # 20 due times in less than an interval: a worker that only polls meets them once or twice. A poll can
    # take what is there in two parts, on a machine that is busy.
    most = 2 * ((all_known - due[0]) // interval + 2)
    assert len(polls) <= most, f"handled at {len(polls)} different moments: woken, although wake-ups are off"


async def test_without_wake_ups_a_timer_that_comes_in_overdue_waits_for_the_next_poll(world: World) -> None:
    interval = timedelta(milliseconds=700)
    world.service(precise_wakeup="false", polling_interval=700).start_ready()

    start = in_seconds(0)
    for number in range(20):
        await world.schedule("acme", f"order-{number}", in_seconds(0))
        await asyncio.sleep(0.03)
    await world.wait_until_consumed()
    all_known = in_seconds(0)
    events = [event["payload"] for event in await world.wait_for_events(20)]

    polls = {event["reachedAt"] for event in events}
    # A poll can take what is there in two parts, on a machine that is busy.
    most = 2 * ((all_known - start) // interval + 2)
    assert len(polls) <= most, f"handled at {len(polls)} different moments: woken, although wake-ups are off"


async def test_the_poll_finds_what_no_command_told_of(world: World) -> None:
    world.service(polling_interval=300).start_ready()
    due = in_seconds(FAR)
    await world.schedule("acme", "order-1", due)
    await world.wait_for_row("acme", "order-1", state="Scheduled")

    # As a clock stepped forward, or a restored backup, would make it due.
    _edit(world, lambda link: link.execute(_MOVE, ("2020-01-01T00:00:00.000Z", "order-1")))
    events = await world.wait_for_events(1)

    assert [event["payload"]["dueAt"] for event in events] == ["2020-01-01T00:00:00.000Z"]


async def test_timers_overdue_for_a_day_fire_at_once_after_a_restart_oldest_first(world: World) -> None:
    # Neither the poll nor one batch alone could bring them all.
    service = world.service(polling_interval=NEVER_MS, batch_size=10).start_ready()
    calls = [f"order-{number}" for number in range(50)]
    for call in calls:
        await world.schedule("acme", call, in_seconds(FAR))
    await world.wait_until_consumed()
    service.terminate()
    yesterday = in_seconds(-24 * 3600)
    # Neither by id nor by the order of arrival: 37 has no divisor in common with 50.
    due = {call: iso(yesterday + timedelta(seconds=37 * n % 50)) for n, call in enumerate(calls)}
    _edit(
        world,
        lambda link: link.executemany(
            _MOVE,
            [(due_at, call) for call, due_at in due.items()],
        ),
    )

    service.restart()
    events = [event["payload"] for event in await world.wait_for_events(50)]

    oldest_first = sorted(calls, key=lambda call: due[call])
    assert [(event["serviceCallId"], event["dueAt"]) for event in events] == [
        (call, due[call]) for call in oldest_first
    ]
