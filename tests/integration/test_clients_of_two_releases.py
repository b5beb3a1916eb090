"""The client of release 0.1.0 with this service, and this client with that service (`make upgrade`)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.messages import in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.release import start_old
from tests.support.requests import ask_until_answered
from tests.support.world import World
from timer_client import Firing, Outcome, Reached, RequestRefused, TimerNotFound, Timers
from timer_client.errors import ServiceAway
from timer_service.domain.messages import ServiceCallId, TenantId, firing_id

pytestmark = pytest.mark.upgrade

FAR = datetime(2100, 1, 1, tzinfo=UTC)
# The old client does all that it can, and tells what it was told.
OLD = """
import asyncio, json, sys
from datetime import datetime
import nats
import timer_service.wire
from timer_service.client import CallRefused, TimerClient

async def first(events):
    async for reached in events:
        return reached

async def main(url, soon, far):
    async with await nats.connect(url) as connection:
        client, subscribed = TimerClient(connection), asyncio.Event()
        watching = asyncio.ensure_future(first(client.watch("acme", subscribed=subscribed.set)))
        await subscribed.wait()
        await client.schedule("acme", "soon", soon, correlation_id="request-1")
        for name in ("far", "unwanted"):
            await client.schedule("acme", name, far)
        await client.cancel("acme", "unwanted")
        reached = await watching
        while (await client.get("acme", "soon"))["state"] != "Reached":
            pass
        while (await client.get("acme", "unwanted"))["state"] != "Cancelled":
            pass
        try:
            await client.get("acme", "unknown")
        except CallRefused as error:
            refused = error.code
        print(json.dumps({
            "event": json.loads(reached.body),
            "read": [reached.payload.service_call_id, reached.payload.generation, reached.lateness_ms >= 0],
            "far": await client.get("acme", "far"),
            "listed": [timer async for timer in client.list_timers("acme", 10, state="Cancelled")],
            "refused": refused,
            "source": timer_service.wire.__file__,
            "status": sorted(await client.status()),
        }))

asyncio.run(main(sys.argv[1], *map(datetime.fromisoformat, sys.argv[2:])))
"""
STATUS = {
    *("version", "broker", "problems", "pending", "backlog", "oldestOverdueSeconds", "nextDueAt"),
    *("databaseBytes", "commandsPerSecond", "firedPerSecond", "latenessP50Seconds", "latenessP99Seconds"),
}


async def test_the_old_client_schedules_cancels_asks_and_reads_events_of_the_new_service(
    release: Path, world: World
) -> None:
    world.service().start_ready()
    await ask_until_answered(world, "list")
    soon = in_seconds(1)

    told = await _told(release, world, soon)

    assert told["event"] | {"timestampMs": 0, "payload": told["event"]["payload"] | {"reachedAt": ""}} == {
        "id": _id("soon", soon),
        "type": "DueTimeReached",
        "tenantId": "acme",
        "timestampMs": 0,
        "aggregateId": "soon",
        "correlationId": "request-1",
        "payload": {
            "_tag": "DueTimeReached",
            "tenantId": "acme",
            "serviceCallId": "soon",
            "dueAt": iso(soon),
            "reachedAt": "",
            "generation": 1,
        },
    }
    assert told["read"] == ["soon", 1, True]
    assert told["far"] | {"registeredAt": ""} == {
        "tenantId": "acme",
        "serviceCallId": "far",
        "state": "Scheduled",
        "dueAt": iso(FAR),
        "generation": 1,
        "registeredAt": "",
    }
    assert [timer["serviceCallId"] for timer in told["listed"]] == ["unwanted"]
    assert (told["refused"], told["source"]) == ("404", str(release / "timer_service" / "wire.py"))
    assert set(told["status"]) >= STATUS


async def test_the_new_client_schedules_cancels_asks_and_reads_events_of_the_old_service(
    release: Path, world: World
) -> None:
    soon = in_seconds(2)
    async with _old_service(release, world) as timers, _watched(timers) as events:
        await timers.schedule("soon", soon, correlation_id="request-1")
        decision = await timers.schedule("far", FAR, confirm=True)
        await timers.schedule("unwanted", FAR, confirm=True)
        cancelled = await timers.cancel("unwanted", confirm=True)
        ended = await timers.wait("soon")
        consumed = await _consumed(timers)
        event = await events
        listed = [(timer.service_call_id, timer.state) async for timer in timers.list()]
        with pytest.raises(TimerNotFound):
            await timers.get("unknown")

    assert (decision.outcome, decision.timer.due_at) == (Outcome.SCHEDULED, FAR)
    assert (cancelled.outcome, cancelled.timer.state) == (Outcome.CANCELLED, "Cancelled")
    assert (ended.state, ended.generation, ended.correlation_id) == ("Reached", 1, "request-1")
    assert (consumed.service_call_id, consumed.due_at, str(consumed.id)) == ("soon", soon, _id("soon", soon))
    assert (event.payload.service_call_id, str(event.envelope.id)) == ("soon", _id("soon", soon))
    assert listed == [("soon", "Reached"), ("far", "Scheduled"), ("unwanted", "Cancelled")]


async def test_the_old_service_refuses_what_it_does_not_know(release: Path, world: World) -> None:
    async with _old_service(release, world) as timers:
        with pytest.raises(RequestRefused, match="dueAt"):
            await timers.schedule("later", timedelta(hours=1), confirm=True)
        with pytest.raises(ServiceAway):
            await timers.explain("later")
        await timers.schedule("later", timedelta(hours=1))
        [letter] = await world.wait_for_letters(1)

    assert letter["reason"] == "invalid"


def _id(call: str, due_at: datetime) -> str:
    return str(firing_id(TenantId("acme"), ServiceCallId(call), 1, due_at))


async def _told(release: Path, world: World, soon: datetime) -> dict[str, Any]:
    client = start_old(release, OLD, world.broker.url, soon.isoformat(), FAR.isoformat())
    output, errors = await asyncio.to_thread(client.communicate, timeout=PATIENCE_S)
    assert client.returncode == 0, errors
    told: dict[str, Any] = json.loads(output)
    return told


@asynccontextmanager
async def _old_service(release: Path, world: World) -> AsyncIterator[Timers]:
    service = world.service()
    service.source = release
    service.start_ready()
    await ask_until_answered(world, "list")
    yield Timers(world.client, tenant="acme")


@asynccontextmanager
async def _watched(timers: Timers) -> AsyncIterator["asyncio.Future[Reached]"]:
    """Watch for the first event while inside the block."""
    subscribed = asyncio.Event()

    async def first() -> Reached:
        return await anext(timers.watch(subscribed=subscribed.set))

    watching = asyncio.ensure_future(first())
    await subscribed.wait()
    yield watching


async def _consumed(timers: Timers) -> Firing:
    """Return the first firing that a consumer is given."""
    given = asyncio.get_running_loop().create_future()

    async def handle(firing: Firing) -> None:
        given.set_result(firing)

    async with timers.consume("first", handle):
        firing: Firing = await given
        return firing
