"""Virtual time over a real broker: it stands until it is moved, and waits for everybody whom it concerns."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import nats
import pytest
from nats.js.api import DeliverPolicy

from tests.support import messages
from tests.support.broker import NatsServer
from tests.support.patience import PATIENCE_S
from tests.support.team import Team, team
from tests.support.timers import schedule
from timer_client import RequestRefused, ServiceAway, Timers
from timer_client.clock import ClockClient
from timer_client.subjects import Subjects
from timer_service.adapters.codec import decode_command
from timer_service.bootstrap import Parts
from timer_service.config import load_settings
from timer_service.domain.callback import Callback, RetryPolicy
from timer_service.domain.delivery import Answered, CallbackRequest
from timer_service.domain.messages import Position
from timer_service.domain.pace import MAX_FAILURES
from timer_service.service.run import run_service
from timer_service.testing import START, MemoryTimerStore, ScriptedSender
from timer_service.testing.kit import running_service
from timer_service.testing.settling import Settling
from timer_service.testing.virtual import VirtualService, in_memory, open_virtual_service
from timer_service.testing.virtual_clock import VirtualClock
from timer_service.testing.walk import NotSettled, WalkLimits

DAY = timedelta(days=1)
DAYS = 60
"""`make kit` and `make test-clients` have a whole year."""
IMPATIENT = WalkLimits(settle_timeout_s=2.0)
RESTLESS = WalkLimits(moment_timeout_s=0.5)


@asynccontextmanager
async def opened(
    broker: NatsServer, prefix: str, **options: Any
) -> AsyncIterator[tuple[VirtualService, Team]]:
    async with running_service(broker.url, prefix, **options) as virtual, team(broker.url, prefix) as other:
        yield virtual, other


async def test_daily_timers_are_exact_each_scheduled_by_the_one_before(
    shared_broker: NatsServer, prefix: str
) -> None:
    fired: list[dict[str, Any]] = []
    async with opened(shared_broker, prefix) as (virtual, other):

        async def again(firing: dict[str, Any]) -> None:
            fired.append(firing)
            if len(fired) < DAYS:
                await other.schedule(f"day-{len(fired)}", messages.parse(firing["reachedAt"]) + DAY)

        async with other.consuming("billing", again):
            started = time.perf_counter()
            await other.schedule("day-0", START + DAY)
            walked = await virtual.walk.advance_to(START + 400 * DAY)
            print(f"{DAYS} daily timers in {time.perf_counter() - started:.2f} s")

    assert (walked.now, walked.published, walked.arrived) == (START + 400 * DAY, DAYS, True)
    expected = [messages.iso(START + number * DAY) for number in range(1, DAYS + 1)]
    assert [firing["dueAt"] for firing in fired] == expected
    assert [firing["reachedAt"] for firing in fired] == expected


async def test_time_stands_until_it_is_moved(shared_broker: NatsServer, prefix: str) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        await other.schedule("order-1", START + timedelta(milliseconds=1))
        stood = await virtual.walk.advance_to(START)
        moved = await virtual.walk.advance_to(START + timedelta(milliseconds=1))

    assert (stood.now, stood.published) == (START, 0)
    assert (moved.now, moved.published) == (START + timedelta(milliseconds=1), 1)


async def test_what_is_due_in_the_past_fires_without_moving_time(
    shared_broker: NatsServer, prefix: str
) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        await other.schedule("order-1", START - DAY)
        walked = await virtual.walk.advance_to(START)

    assert (walked.now, walked.published) == (START, 1)


async def test_the_next_due_time_is_one_step_away(shared_broker: NatsServer, prefix: str) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        for days in (3, 2, 2):
            await other.schedule(f"order-{days}", START + days * DAY)
        first = await virtual.walk.advance_to_next()
        second = await virtual.walk.advance_to_next()
        third = await virtual.walk.advance_to_next()

    assert [step.now - START for step in (first, second, third)] == [2 * DAY, 3 * DAY, 3 * DAY]
    assert [step.published for step in (first, second, third)] == [1, 1, 0]


async def test_to_move_to_the_same_moment_again_changes_nothing(
    shared_broker: NatsServer, prefix: str
) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        await other.schedule("order-1", START + DAY)
        once = await virtual.walk.advance_to(START + DAY)
        again = await virtual.walk.advance_to(START + DAY)
        with pytest.raises(ValueError, match=r"it is already 2026-01-02T12:00:00\.000Z"):
            await virtual.walk.advance_to(START)

    assert (once.published, again.published) == (1, 0)
    assert once.now == again.now


def _delayed(call: str, delay_ms: int) -> dict[str, Any]:
    command = messages.schedule("acme", call, START)
    return messages.with_payload(command, dueAt=messages.ABSENT, delayMs=delay_ms)


async def test_a_delay_counts_from_the_virtual_clock(shared_broker: NatsServer, prefix: str) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        body = messages.encode(_delayed("order-1", 60_000))
        await other.jetstream.publish(f"{prefix}.commands.acme.ScheduleTimer", body)
        request = messages.encode({"serviceCallId": "order-2", "delayMs": 60_000})
        await other.client.request(f"{prefix}.api.acme.schedule", request, timeout=PATIENCE_S)
        await virtual.walk.advance_to(START)
        timers = Timers(other.client, tenant="acme", prefix=prefix)

        assert [timer.due_at async for timer in timers.list()] == [START + timedelta(minutes=1)] * 2


async def test_a_delay_that_is_delivered_again_later_leaves_its_timer_alone(
    shared_broker: NatsServer, prefix: str
) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        subject, body = f"{prefix}.commands.acme.ScheduleTimer", messages.encode(_delayed("order-1", 60_000))
        for moment in (START, START + timedelta(hours=1)):
            command = decode_command(Subjects(prefix), subject, body, Position(1, 1), delays_from=moment)
            await virtual.store.apply([command], moment)
        timers = Timers(other.client, tenant="acme", prefix=prefix)

        assert (await timers.get("order-1")).due_at == START + timedelta(minutes=1)


async def test_who_does_not_acknowledge_is_named(shared_broker: NatsServer, prefix: str) -> None:
    async with opened(shared_broker, prefix, limits=IMPATIENT) as (virtual, other):
        await other.add_consumer("billing")
        await other.schedule("order-1", START + DAY)
        with pytest.raises(NotSettled) as error:
            await virtual.walk.advance_to(START + 2 * DAY)

    assert str(error.value) == (
        "time stands at 2026-01-02T12:00:00.000Z, nothing has happened for 2 s: "
        "consumer billing (events not delivered to it: 1, delivered and not acknowledged: 0)"
    )


async def test_time_waits_for_a_handler_that_is_still_at_work(shared_broker: NatsServer, prefix: str) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work(_: dict[str, Any]) -> None:
        begun.set()
        await may_end.wait()

    async with opened(shared_broker, prefix) as (virtual, other), other.consuming("billing", work):
        await other.schedule("order-1", START + DAY)
        walking = asyncio.ensure_future(virtual.walk.advance_to(START + 9 * DAY))
        await begun.wait()
        for _ in range(50):  # Enough for a walk that does not wait to go on.
            await other.client.flush()
        stood_at = virtual.walk.now()
        may_end.set()
        walked = await walking

    assert stood_at == START + DAY
    assert walked.now == START + 9 * DAY


async def test_events_that_a_consumer_never_wanted_do_not_hold_time_up(
    shared_broker: NatsServer, prefix: str
) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        await other.add_consumer("of-globex", tenant="globex")
        await other.schedule("order-1", START + DAY)
        await virtual.walk.advance_to(START + DAY)
        await other.add_consumer("latecomer", deliver=DeliverPolicy.NEW)
        walked = await virtual.walk.advance_to(START + 2 * DAY)

    assert walked.now == START + 2 * DAY


async def test_a_consumer_that_always_asks_for_now_does_not_hang_the_walk(
    shared_broker: NatsServer, prefix: str
) -> None:
    numbers = iter(range(1_000_000))
    async with opened(shared_broker, prefix, limits=RESTLESS) as (virtual, other):

        async def at_once(_: dict[str, Any]) -> None:
            await other.schedule(f"order-{next(numbers)}", START)

        async with other.consuming("billing", at_once):
            await other.schedule("order", START)
            with pytest.raises(NotSettled, match=r"time stands at 2026-01-01T12:00:00.000Z, not finished"):
                await virtual.walk.advance_to(START + DAY)


async def test_the_clock_is_moved_by_requests(shared_broker: NatsServer, prefix: str) -> None:
    async with opened(shared_broker, prefix) as (_, other):
        clock = ClockClient(other.client, prefix=prefix)
        await other.schedule("order-1", START + DAY)

        moved = await clock.advance(3 * DAY)

        assert (moved.now, moved.published, await clock.now()) == (START + 3 * DAY, 1, START + 3 * DAY)
        assert (await clock.advance_to(START + 4 * DAY)).now == START + 4 * DAY
        assert (await clock.advance_to_next()).now == START + 4 * DAY
        with pytest.raises(RequestRefused, match="time cannot go back"):
            await clock.advance_to(START)
        with pytest.raises(ValueError, match="must have a time zone"):
            await clock.advance_to(START.replace(tzinfo=None))
        with pytest.raises(ValueError, match="span must not be negative"):
            await clock.advance(-DAY)


@pytest.mark.parametrize(
    "body", [b"{}", b'{"byMs": 5, "next": true}', b'{"next": false}', b'{"byMs": -1}', b"["]
)
async def test_a_request_that_does_not_say_how_far_is_refused(
    shared_broker: NatsServer, prefix: str, body: bytes
) -> None:
    async with opened(shared_broker, prefix) as (virtual, other):
        answer = await other.client.request(f"{prefix}.clock.advance", body, timeout=PATIENCE_S)

        assert answer.headers is not None
        assert answer.headers["Nats-Service-Error-Code"] == "400"
        assert virtual.walk.now() == START


async def test_beyond_the_last_year_there_is_no_time(shared_broker: NatsServer, prefix: str) -> None:
    async with opened(shared_broker, prefix) as (_, other):
        with pytest.raises(RequestRefused, match="byMs: must not go beyond the year 9999"):
            await ClockClient(other.client, prefix=prefix).advance(timedelta(days=3_000_000))


async def test_a_service_on_real_time_has_no_clock_to_move(shared_broker: NatsServer, prefix: str) -> None:
    async with team(shared_broker.url, prefix) as other:
        with pytest.raises(ServiceAway, match="start one with `timer-service dev --clock virtual`"):
            await ClockClient(other.client, prefix=prefix).now()


async def test_before_the_service_has_made_its_streams_time_waits_for_it(
    shared_broker: NatsServer, prefix: str
) -> None:
    async with await nats.connect(shared_broker.url) as client:
        settling = Settling(client, prefix, MemoryTimerStore(), VirtualClock())
        published, look = await settling.published(), await settling.look()

    assert (published, look.published) == (0, 0)
    assert "stream not found" in look.unsettled[0]


@pytest.mark.parametrize("callbacks", [1, MAX_FAILURES + 2], ids=["one", "so many that a receiver rests"])
async def test_callbacks_and_their_retries_follow_the_virtual_clock(
    shared_broker: NatsServer, prefix: str, callbacks: int
) -> None:
    tries = defaultdict[str, list[datetime]](list)

    def fail_once(request: CallbackRequest) -> Answered:
        tries[request.service_call_id].append(clock.now())
        return Answered(503 if request.attempt == 1 else 200)

    @asynccontextmanager
    async def sender(*_: object, **__: object) -> AsyncIterator[ScriptedSender]:
        yield ScriptedSender(fail_once)

    clock, stop = VirtualClock(), asyncio.Event()
    settings = load_settings(broker_url=shared_broker.url, subject_prefix=prefix, http_port=0)
    parts = in_memory(Parts(open_sender=sender, chance=lambda: 0.0))
    async with open_virtual_service(settings, "one", clock, parts) as virtual:
        running = asyncio.ensure_future(run_service(virtual.service, stop))
        callback = Callback("https://shop.example/", retry=RetryPolicy(delays=(timedelta(hours=5),)))
        names = [f"order-{number}" for number in range(callbacks)]
        timers = [replace(schedule(name, DAY.total_seconds()), callback=callback) for name in names]
        await virtual.store.decide(timers, START)
        await virtual.walk.advance_to(START + 3 * DAY)
        stop.set()
        await running

    assert tries == {name: [START + DAY, START + DAY + timedelta(hours=5)] for name in names}
