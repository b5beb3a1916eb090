"""Timers in memory: time passes when a test says so, and waits for handlers."""

import asyncio
from datetime import timedelta

import pytest

from tests.support.documents import marked_blocks
from timer_client import Firing
from timer_client.testing import FakeTimers
from timer_client.testing.fake import START
from timer_client.testing.memory_broker import matches

DAY = timedelta(days=1)


async def test_the_program_of_the_page_passes() -> None:
    names: dict[str, object] = {}
    exec(marked_blocks("docs/testing.md")["example: fake"], names)
    tests = [test for name, test in names.items() if name.startswith("test_")]

    for test in tests:
        await test()  # type: ignore[operator]

    assert len(tests) == 1


async def test_a_year_of_daily_timers_each_scheduled_by_the_one_before() -> None:
    timers, reached = FakeTimers(), []

    async def again(firing: Firing) -> None:
        reached.append(firing.reached_at)
        if len(reached) < 365:
            await timers.schedule(f"day-{len(reached)}", firing.reached_at + DAY)

    async with timers.consume("billing", again):
        await timers.schedule("day-0", START + DAY)
        await timers.advance(days=400)

    assert reached == [START + number * DAY for number in range(1, 366)]
    assert timers.now() == START + 400 * DAY


async def test_a_retry_waits_for_its_delay_on_the_same_clock() -> None:
    timers, tries = FakeTimers(), []

    async def handle(firing: Firing) -> None:
        tries.append(timers.now())
        if len(tries) < 3:
            raise RuntimeError("not yet")

    async with timers.consume("billing", handle, retry_delays=(timedelta(hours=1), timedelta(hours=5))):
        await timers.schedule("order-1", START + DAY)
        await timers.advance(days=2)

    assert tries == [START + DAY, START + DAY + timedelta(hours=1), START + DAY + timedelta(hours=6)]


async def test_time_waits_for_a_handler_and_says_for_which() -> None:
    timers, go_on = FakeTimers(settle_timeout=timedelta(seconds=1)), asyncio.Event()

    async def hang(_: Firing) -> None:
        await go_on.wait()

    async with timers.consume("billing", hang):
        await timers.schedule("order-1", START + DAY)
        with pytest.raises(TimeoutError, match=r"time stands at 2026-01-02 12:00.*test-billing"):
            await timers.advance(days=2)
        go_on.set()


async def test_assertions_and_steps() -> None:
    timers = FakeTimers()
    await timers.schedule("order-1", START + DAY)
    await timers.of("globex").schedule("order-2", START + 2 * DAY)

    await timers.assert_scheduled("order-1", in_=DAY)
    await timers.refute_scheduled("order-2")
    await timers.assert_scheduled("order-2", at=START + 2 * DAY, tenant="globex")
    with pytest.raises(AssertionError, match="order-2 is not scheduled; scheduled: order-1 at 2026-01-02"):
        await timers.assert_scheduled("order-2")
    await timers.fire_now("order-1")
    assert (await timers.get("order-1")).reached_at == timers.now() == START
    assert await timers.advance_to_next() == START + 2 * DAY
    assert await timers.advance_to_next() == START + 2 * DAY
    assert await timers.all_scheduled(tenant="globex") == []
    with pytest.raises(ValueError, match="time cannot go back"):
        await timers.advance(to=START)


async def test_watching_shows_each_event() -> None:
    timers, subscribed = FakeTimers(), asyncio.Event()
    watching = asyncio.ensure_future(anext(timers.watch(subscribed=subscribed.set)))
    await subscribed.wait()

    await timers.schedule("order-1", START)

    assert (await watching).payload.service_call_id == "order-1"


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b.c", False),
        ("a.b", "a.c", False),
    ],
)
def test_subjects_match_as_on_a_broker(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
