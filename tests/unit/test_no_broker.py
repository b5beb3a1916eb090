"""A service without a broker: nothing comes in, nothing goes out, and requests are answered."""

import asyncio
from datetime import timedelta

from tests.support.timers import reached, schedule
from timer_service.adapters.no_broker import NoBroker
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.messages import Position
from timer_service.domain.timer import Outcome
from timer_service.ports.event_sink import Published
from timer_service.testing import ManualClock, MemoryTimerStore
from timer_service.workflows.catch_up import CatchUp
from timer_service.workflows.decide_timer import RequestDesk
from timer_service.workflows.fire_due_timers import publish_due_timers
from timer_service.workflows.hold_back import HoldBack
from timer_service.workflows.open_questions import OpenQuestions


async def test_a_request_is_answered_and_ordered() -> None:
    store, clock = MemoryTimerStore(), ManualClock()
    desk = RequestDesk(store=store, source=NoBroker(store).source, clock=clock)

    settled = await desk.decide(schedule("order-1", 60))
    moved = await desk.decide(schedule("order-1", 90))

    assert (settled.outcome, moved.outcome, moved.is_ordered) == (
        Outcome.SCHEDULED,
        Outcome.RESCHEDULED,
        True,
    )


async def test_a_store_that_knew_a_broker_before_takes_requests() -> None:
    store, clock = MemoryTimerStore(), ManualClock()
    await store.begin_epoch(StreamEpoch(5, 5))
    await store.apply([schedule("order-1", 60, number=3, stream=5)], clock.now())
    source = NoBroker(store).source

    settled = await RequestDesk(store=store, source=source, clock=clock).decide(schedule("order-1", 90))

    assert await source.last_seen_position() == Position(5, 3)
    assert settled.outcome is Outcome.RESCHEDULED


async def test_what_is_due_on_the_bus_stays_scheduled_and_says_why() -> None:
    store, clock = MemoryTimerStore(), ManualClock()
    await store.apply([schedule("order-1", -1)], clock.now())
    bus = NoBroker(store)

    async with publish_due_timers(
        store=store,
        source=bus.source,
        sink=bus.sink,
        clock=clock,
        limit=10,
        hold_back=HoldBack(),
        catch_up=CatchUp(timedelta(seconds=30)),
        questions=OpenQuestions(),
    ) as batch:
        report = await batch.mark()

    [(_, result)] = report.failed
    assert (result.outcome, report.marked) == (Published.REJECTED, 0)
    assert "TIMER_BROKER_URL=none" in result.detail


async def test_nothing_ever_comes_in() -> None:
    source = NoBroker(MemoryTimerStore()).source

    receiving = asyncio.ensure_future(source.receive())
    await asyncio.sleep(0)  # As far as it gets: nothing but a cancellation wakes it from there.
    came = receiving.done()
    receiving.cancel()

    assert not came
    assert (await source.backlog({})).tenants == frozenset()
    assert await NoBroker(MemoryTimerStore()).sink.publish([reached("order-1")]) != []
