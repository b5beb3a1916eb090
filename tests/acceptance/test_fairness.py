"""No tenant and no timer holds up another."""

import asyncio
import contextlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig

from tests.support.broker import NatsServer
from tests.support.messages import ABSENT, encode, in_seconds, iso, schedule
from tests.support.process import TimerServiceProcess
from tests.support.sqlite import due_ms
from tests.support.world import NO_REDELIVERY_MS, World

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR = 3600.0


async def _stopped_service(world: World, **settings: object) -> TimerServiceProcess:
    """Return a service that has made its file and its streams, and was stopped."""
    service = world.service(**settings).start_ready()
    assert service.terminate() == 0
    return service


def _insert_due(world: World, timers: Iterable[tuple[str, str, datetime]]) -> None:
    """Put scheduled timers into the file of a stopped service: tenant, service call, due time."""
    now = iso(in_seconds(0))
    with contextlib.closing(sqlite3.connect(world.db_path)) as link, link:
        link.executemany(
            "INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, "
            "registered_at, stream_created_us, stream_sequence, pending_due_ms) "
            f"VALUES (?1, ?2, 'Scheduled', ?3, 1, ?4, 1, 1, {due_ms('?3')})",
            [(tenant, call, iso(due), now) for tenant, call, due in timers],
        )


def _backlog(tenant: str, count: int) -> list[tuple[str, str, datetime]]:
    """Return overdue timers; the order of their ids is not the order of their due times."""
    return [
        (tenant, f"order-{number * 7919 % count:06}", LONG_AGO + timedelta(seconds=number))
        for number in range(count)
    ]


def _calls(events: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the service calls of each tenant in the order of their events."""
    calls = defaultdict(list)
    for event in events:
        calls[event["tenantId"]].append(event["payload"]["serviceCallId"])
    return dict(calls)


# Backlogs


async def test_a_backlog_of_one_tenant_does_not_hold_up_the_one_timer_of_another(world: World) -> None:
    service = await _stopped_service(world)
    backlog = _backlog("big", 20_000)
    _insert_due(world, [*backlog, ("small", "order-1", in_seconds(0))])

    service.restart()
    await world.wait_for_event_count(20_001)
    events = await world.events()

    position = [event["tenantId"] for event in events].index("small")
    assert position <= 2_000, "it is due last of all, but a batch may not be without it"
    assert _calls(events) == {"big": [call for _, call, _ in backlog], "small": ["order-1"]}


async def test_a_timer_that_comes_due_during_a_backlog_fires_before_most_of_it(world: World) -> None:
    service = await _stopped_service(world, batch_size=20)
    _insert_due(world, _backlog("big", 3_000))

    service.restart()
    service.wait_for_log("batch.fired")
    await world.schedule("small", "order-1", in_seconds(0))
    await world.wait_for_event_count(3_001)
    events = await world.events()
    row = await world.wait_for_row("small", "order-1", state="Reached")

    position = [event["tenantId"] for event in events].index("small")
    known_since = max(row["due_at"], row["registered_at"])
    overtook = [event for event in events[:position] if event["payload"]["reachedAt"] > known_since]
    # Half of a batch may be published while the other half is marked; four batches are generous.
    assert len(overtook) <= 4 * 20, "it waited for the backlog"


async def test_every_tenants_backlog_fires_oldest_first_and_small_ones_are_done_early(world: World) -> None:
    service = await _stopped_service(world, batch_size=50)
    sizes = {"big": 2_000, "middle": 200, "small": 20, "tiny": 1}
    backlogs = {tenant: _backlog(tenant, size) for tenant, size in sizes.items()}
    # All of the big tenant's are older, so that going by age alone would let it go first.
    younger = [
        (tenant, call, due + timedelta(days=365))
        for tenant in ("middle", "small", "tiny")
        for tenant, call, due in backlogs[tenant]
    ]
    _insert_due(world, backlogs["big"] + younger)

    service.restart()
    await world.wait_for_event_count(sum(sizes.values()))
    tenants = [event["tenantId"] for event in await world.events()]
    calls = _calls(await world.events())

    assert calls == {tenant: [call for _, call, _ in backlog] for tenant, backlog in backlogs.items()}
    done = {tenant: len(tenants) - tenants[::-1].index(tenant) for tenant in sizes}
    assert list(dict(sorted(done.items(), key=lambda item: item[1]))) == ["tiny", "small", "middle", "big"]
    assert done["middle"] <= 1_000


# Tenants and timers that cannot be published


OPEN = """
authorization { users = [ { user: service, password: secret }, { user: tester, password: secret } ] }
"""
BAD_DENIED = """
authorization {
  users = [
    { user: service, password: secret, permissions: { publish: { deny: "timer.events.bad.>" } } }
    { user: tester, password: secret }
  ]
}
"""


@pytest.fixture
def denying_broker(tmp_path: Path) -> Iterator[NatsServer]:
    """A broker that does not let the service publish the events of tenant bad."""
    server = NatsServer(tmp_path / "broker", BAD_DENIED).start()
    yield server
    server.stop()


@pytest.fixture
async def denying_world(denying_broker: NatsServer, tmp_path: Path) -> AsyncIterator[World]:
    opened = await World(tmp_path, denying_broker, "timer").open(user="tester", password="secret")
    yield opened
    await opened.close()


async def test_a_tenant_that_may_not_be_published_holds_up_nobody_and_fires_once_it_may(
    denying_world: World,
) -> None:
    world = denying_world
    service = world.service(broker_user="service", broker_password="secret").start_ready()
    for number in range(50):
        await world.schedule("bad", f"order-{number:02}", LONG_AGO + timedelta(seconds=number))
    service.wait_for_log("publish.failed")

    calls = await _schedule_over(world, "good", seconds=1)
    events = await world.wait_for_events(len(calls))
    states = {row["state"] for row in world.rows("WHERE tenant_id = 'bad'")}
    world.broker.reconfigure(OPEN)
    world.broker.reload()
    await world.wait_until_all_reached(len(calls) + 50)
    await world.wait_for_broker()

    assert _calls(events) == {"good": calls}
    assert states == {"Scheduled"}
    after = _calls((await world.events())[len(calls) :])
    assert sorted(after["bad"]) == [f"order-{number:02}" for number in range(50)]


async def test_a_tenant_that_may_not_be_published_does_not_stop_one_that_differs_in_case_only(
    denying_world: World,
) -> None:
    world = denying_world
    service = await _stopped_service(world, broker_user="service", broker_password="secret")
    calls = [f"order-{number:02}" for number in range(50)]
    _insert_due(world, [(tenant, call, LONG_AGO) for tenant in ("bad", "BAD") for call in calls])

    async def marked() -> bool:
        return len(world.rows("WHERE tenant_id = 'BAD' AND state = 'Reached'")) == 50

    service.restart()
    await world.wait_for_event_count(50)
    await world.until(marked, "what was published to be marked")

    assert {tenant: sorted(fired) for tenant, fired in _calls(await world.events()).items()} == {"BAD": calls}
    assert {row["state"] for row in world.rows("WHERE tenant_id = 'bad'")} == {"Scheduled"}


async def test_a_tenant_without_a_stream_holds_up_nobody_and_fires_once_it_has_one(world: World) -> None:
    await world.jetstream.add_stream(
        StreamConfig(name=world.events_stream, subjects=[f"{world.prefix}.events.good.>"])
    )
    service = world.service().start_ready()
    for number in range(50):
        await world.schedule("bad", f"order-{number:02}", LONG_AGO + timedelta(seconds=number))
    service.wait_for_log("publish.failed")

    calls = await _schedule_over(world, "good", seconds=1)
    events = await world.wait_for_events(len(calls))
    states = {row["state"] for row in world.rows("WHERE tenant_id = 'bad'")}
    await world.jetstream.update_stream(
        StreamConfig(name=world.events_stream, subjects=[f"{world.prefix}.events.>"])
    )
    await world.wait_until_all_reached(len(calls) + 50)

    assert _calls(events) == {"good": calls}
    assert states == {"Scheduled"}
    after = _calls((await world.events())[len(calls) :])
    assert sorted(after["bad"]) == [f"order-{number:02}" for number in range(50)]


async def test_tenants_that_keep_failing_do_not_delay_the_commands_of_others(world: World) -> None:
    await world.jetstream.add_stream(
        StreamConfig(name=world.events_stream, subjects=[f"{world.prefix}.events.good.>"])
    )
    service = world.service(ack_wait=NO_REDELIVERY_MS).start_ready()
    rounds, at_a_time = 400, 10

    for number in range(rounds):
        if number % 25 == 0:
            await _publish(world, f"bad-{number}", "order-1")
        for part in range(at_a_time):
            await _publish(world, "good", f"order-{number}-{part}")
        await asyncio.sleep(0.004)  # So that commands keep coming while others fail.
    await world.wait_for_event_count(rounds * at_a_time)
    await world.wait_until_consumed()

    assert service.events("publish.failed") != []
    assert await world.deliveries() == rounds * at_a_time + 16, "a command was lost and delivered again"


async def test_one_timer_that_is_too_large_to_publish_holds_up_nobody(world: World) -> None:
    service = await _stopped_service(world)
    world.broker.stop()
    world.broker.reconfigure("max_payload: 1800")
    world.broker.start()
    await world.wait_for_broker()
    service.restart()
    # An event names the service call twice: the command is small enough, the event is not.
    large = "🕰" * 255
    command = json.dumps(schedule("acme", large, LONG_AGO, aggregateId=ABSENT), ensure_ascii=False)

    await world.send_raw("timer.commands.acme.ScheduleTimer", command.encode())
    service.wait_for_log("publish.failed")
    calls = await _schedule_over(world, "acme", seconds=1)
    events = await world.wait_for_events(len(calls))
    world.broker.stop()
    world.broker.reconfigure("")
    world.broker.start()
    await world.wait_until_all_reached(len(calls) + 1)
    await world.wait_for_broker()

    assert _calls(events) == {"acme": calls}
    assert _calls(await world.events()) == {"acme": [*calls, large]}


async def _schedule_over(world: World, tenant: str, seconds: float) -> list[str]:
    """Schedule timers one by one over some time, each due shortly after; return their calls by due time."""
    calls = [f"soon-{number:03}" for number in range(round(seconds * 20))]
    for call in calls:
        await world.schedule(tenant, call, in_seconds(0.1))
        await asyncio.sleep(0.05)
    return calls


async def _publish(world: World, tenant: str, call: str) -> None:
    """Send a timer that is due now, without waiting for the broker's confirmation."""
    command = schedule(tenant, call, in_seconds(0))
    await world.client.publish(f"{world.prefix}.commands.{tenant}.ScheduleTimer", encode(command))
