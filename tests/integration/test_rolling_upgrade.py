"""Two instances of release 0.1.0 on PostgreSQL, replaced one after the other under load (`make upgrade`)."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest
from nats.aio.msg import Msg

from tests.support.broker import told
from tests.support.messages import decode, in_seconds, parse
from tests.support.postgres import fresh_schema
from tests.support.process import TimerServiceProcess
from tests.support.world import World
from timer_service.domain.messages import ServiceCallId, TenantId, firing_id

pytestmark = pytest.mark.upgrade

TENANTS = ("acme", "globex", "initech")
LOT = 150
"""Timers that are scheduled between one step of the upgrade and the next."""
LONGEST_S = 4.0
PAUSE_S = 0.01
_LEFT = "SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled'"

Key = tuple[str, str]


class Load:
    """Tenants that schedule, move and cancel timers, and remember what they were promised."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = Random(1)
        self.due: dict[Key, datetime] = {}
        """The timers that have to fire, and when."""
        self.cancelled: set[Key] = set()
        self.count = 0

    async def work(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self._one()
            await asyncio.sleep(PAUSE_S)

    async def until_more(self) -> None:
        """Wait until another lot is scheduled."""
        wanted = self.count + LOT

        async def enough() -> bool:
            return self.count >= wanted

        await self._world.until(enough, f"{LOT} more timers")

    async def _one(self) -> None:
        tenant, call = TENANTS[self.count % len(TENANTS)], f"order-{self.count}"
        kind = self._chance.choice(("fires", "fires", "fires", "moved", "cancelled"))
        far = in_seconds(3_600)
        due_at = in_seconds(self._chance.uniform(0, LONGEST_S))
        await self._world.schedule(tenant, call, due_at if kind == "fires" else far)
        if kind == "moved":
            await self._world.schedule(tenant, call, due_at)
        if kind == "cancelled":
            await self._world.cancel(tenant, call)
            self.cancelled.add((tenant, call))
        else:
            self.due[tenant, call] = due_at
        self.count += 1


class Published:
    """Every publication of an event, also those that the broker then drops as a repetition."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    async def note(self, message: Msg) -> None:
        self.events.append(decode(message.data))

    def ids(self) -> dict[Key, set[str]]:
        found = defaultdict[Key, set[str]](set)
        for event in self.events:
            found[event["tenantId"], event["payload"]["serviceCallId"]].add(event["id"])
        return found


@asynccontextmanager
async def loaded(world: World) -> AsyncIterator[Load]:
    """Keep up the load while inside the block."""
    load, over = Load(world), asyncio.Event()
    working = asyncio.ensure_future(load.work(over))
    try:
        yield load
    finally:
        over.set()
        await working


async def test_a_rolling_upgrade_under_load_loses_nothing_and_nothing_is_early(
    release: Path, world: World
) -> None:
    published = Published()
    await world.client.subscribe("timer.events.>", cb=published.note)
    await told(world.client)
    async with fresh_schema() as database:
        old = [_instance(world, database, release) for _ in range(2)]
        new = [_instance(world, database) for _ in range(2)]
        for each in old:
            await asyncio.to_thread(each.start_ready)
        async with loaded(world) as load:
            for before, after in zip(old, new, strict=True):
                await load.until_more()
                await asyncio.to_thread(before.wait_for_log, "batch.fired")
                assert await asyncio.to_thread(before.terminate) == 0
                await asyncio.to_thread(after.start_ready)
                # It does its part of the work, the first one beside an old instance.
                await asyncio.to_thread(after.wait_for_log, "batch.fired")
            await load.until_more()
        await world.wait_until_consumed()
        await world.until(_none_is_left(database), "every timer to fire")

    stored = {(event["tenantId"], event["payload"]["serviceCallId"]) for event in await world.events()}
    assert stored == load.due.keys()
    assert published.ids() == {key: {_id(event)} for event in published.events for key in [_key(event)]}
    assert [event for event in published.events if _is_early(event)] == []
    assert {_key(event): parse(event["payload"]["dueAt"]) for event in published.events} == load.due
    assert await world.letters() == []


def _instance(world: World, database: str, source: Path | None = None) -> TimerServiceProcess:
    instance = world.service(store_url=database, batch_size=50)
    instance.source = source
    return instance


def _none_is_left(database: str) -> Callable[[], Awaitable[bool]]:
    async def none() -> bool:
        connection = await asyncpg.connect(database)
        try:
            return bool(await connection.fetchval(_LEFT) == 0)
        finally:
            await connection.close()

    return none


def _key(event: dict[str, Any]) -> Key:
    return event["tenantId"], event["payload"]["serviceCallId"]


def _id(event: dict[str, Any]) -> str:
    """Return the id that the firing has to have, whichever release has published it."""
    payload = event["payload"]
    due_at = parse(payload["dueAt"])
    return str(
        firing_id(
            TenantId(event["tenantId"]),
            ServiceCallId(payload["serviceCallId"]),
            payload["generation"],
            due_at,
        )
    )


def _is_early(event: dict[str, Any]) -> bool:
    return parse(event["payload"]["reachedAt"]) < parse(event["payload"]["dueAt"])
