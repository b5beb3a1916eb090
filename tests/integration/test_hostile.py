"""Hostile delivery over a real broker: who handles whatever comes fails, who looks at it first does not."""

import asyncio
import os
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from tests.support.broker import NatsServer
from tests.support.team import Team, team
from timer_client import Firing, Timers
from timer_service.testing import START
from timer_service.testing.kit import running_service

FIRINGS = int(os.environ.get("HOSTILE_FIRINGS", "90"))
"""`make hostile` sets more."""
MINUTE = timedelta(minutes=1)


async def _schedule_orders(other: Team, count: int) -> None:
    """Schedule timers some of which are due together, and move every third."""
    due = {f"order-{number}": START + (number // 10 + 1) * MINUTE for number in range(count)}
    for start in range(0, count, 100):
        names = list(due)[start : start + 100]
        await asyncio.gather(*(other.schedule(name, due[name]) for name in names))
    for name in list(due)[::3]:
        await other.schedule(name, due[name] + timedelta(seconds=1))


async def test_a_naive_consumer_handles_firings_twice_out_of_order_and_what_is_stale(
    shared_broker: NatsServer, prefix: str
) -> None:
    handled: Counter[tuple[str, int]] = Counter()
    order: list[str] = []

    async def naive(firing: dict[str, Any]) -> None:
        handled[firing["serviceCallId"], firing["generation"]] += 1
        order.append(firing["dueAt"])

    async with (
        running_service(shared_broker.url, prefix, hostile_delivery=True) as virtual,
        team(shared_broker.url, prefix) as other,
        other.consuming("naive", naive),
    ):
        await _schedule_orders(other, 30)
        await virtual.walk.advance_to(START + timedelta(days=1))

    assert all(handled[f"order-{number}", 2 if number % 3 == 0 else 1] >= 2 for number in range(30))
    assert [number for number in range(30) if handled[f"order-{number}", 1] and number % 3 == 0]
    assert order != sorted(order)


async def test_our_consumer_handles_each_timer_once_and_nothing_stale(
    shared_broker: NatsServer, prefix: str
) -> None:
    handled: Counter[tuple[str, int]] = Counter()

    async def handle(firing: Firing) -> None:
        handled[firing.service_call_id, firing.generation] += 1

    async with (
        running_service(shared_broker.url, prefix, hostile_delivery=True) as virtual,
        team(shared_broker.url, prefix) as other,
    ):
        timers = Timers(other.client, tenant="acme", prefix=prefix)
        async with timers.consume("careful", handle, drop_stale=True) as consumer:
            started = time.perf_counter()
            await _schedule_orders(other, FIRINGS)
            await virtual.walk.advance_to(START + timedelta(days=30))
            print(f"{FIRINGS} hostile firings in {time.perf_counter() - started:.1f} s: {consumer.counts}")

    expected = {(f"order-{number}", 2 if number % 3 == 0 else 1): 1 for number in range(FIRINGS)}
    assert dict(handled) == expected
    assert consumer.counts.repeated >= FIRINGS
    assert consumer.counts.stale >= FIRINGS // 3


async def test_ids_alone_do_not_keep_stale_firings_out(shared_broker: NatsServer, prefix: str) -> None:
    handled: Counter[str] = Counter()

    async def handle(firing: Firing) -> None:
        handled[firing.service_call_id] += 1

    async with (
        running_service(shared_broker.url, prefix, hostile_delivery=True) as virtual,
        team(shared_broker.url, prefix) as other,
    ):
        timers = Timers(other.client, tenant="acme", prefix=prefix)
        async with timers.consume("half-careful", handle):
            await _schedule_orders(other, 30)
            await virtual.walk.advance_to(START + timedelta(days=1))

    assert {name for name, times in handled.items() if times > 1} == {f"order-{n}" for n in range(0, 30, 3)}
