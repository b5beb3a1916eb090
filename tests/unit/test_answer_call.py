"""A call is answered with what it did, and never with a guess."""

import asyncio
from dataclasses import replace

import pytest

from tests.support.clock import ManualClock
from tests.support.timers import ACME, at, call, cancel, schedule
from timer_service.adapters.codec import Subjects
from timer_service.adapters.memory import MemoryEventBus, MemoryTimerStore
from timer_service.domain.errors import BusUnavailable, TimerFiring
from timer_service.domain.messages import Command, Position, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.timer_calls import CallAnswer
from timer_service.workflows.answer_call import PAUSE_S, TRIES, answer_call


class Desk:
    """The workflow between a memory store and a memory bus."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryTimerStore()
        self.bus = MemoryEventBus(self.clock, Subjects("timer"), stream_created_us=2)

    async def answer(self, command: Command) -> CallAnswer:
        def at_position(position: Position) -> Command:
            return replace(command, position=position, is_call=True)

        return await answer_call(at=at_position, store=self.store, bus=self.bus, clock=self.clock)


async def test_a_call_is_answered_with_the_timer_that_it_left() -> None:
    desk = Desk()

    answer = await desk.answer(schedule("order-1", 60))

    assert answer == CallAnswer(Outcome.SCHEDULED, desk.store.timers[ACME, call("order-1")])


async def test_a_call_for_a_timer_that_is_being_fired_waits_for_the_outcome() -> None:
    desk = Desk()
    await desk.store.apply([schedule("order-1", 0)], at(-1))

    async with desk.store.claim_due(at(0), 10) as claim:
        answering = asyncio.ensure_future(desk.answer(cancel("order-1")))
        await desk.clock.until_waits(1)
        await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])
    desk.clock.advance(PAUSE_S)

    assert (await answering).outcome is Outcome.ALREADY_REACHED


async def test_a_call_for_a_timer_that_stays_due_gives_up() -> None:
    desk = Desk()
    await desk.store.apply([schedule("order-1", 0)], at(-1))

    answering = asyncio.ensure_future(desk.answer(cancel("order-1")))
    for tries in range(1, TRIES + 1):
        await desk.clock.until_waits(tries)
        desk.clock.advance(PAUSE_S)

    with pytest.raises(TimerFiring):
        await answering


async def test_a_call_gives_way_to_commands_that_came_in_since() -> None:
    desk = Desk()
    await desk.store.apply([schedule("order-1", 60, stream=3)], at(0))

    with pytest.raises(TimerFiring):
        await desk.answer(cancel("order-1"))


async def test_a_call_is_not_answered_while_the_broker_is_away() -> None:
    desk = Desk()
    desk.bus.connected = False

    with pytest.raises(BusUnavailable):
        await desk.answer(cancel("order-1"))
    assert desk.bus.problem == "the broker is away"


async def test_a_call_is_made_again_where_its_timer_was_purged_before_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    get, answers = desk.store.get, [None]

    async def purged_at_first(tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        return answers.pop() if answers else await get(tenant_id, service_call_id)

    monkeypatch.setattr(desk.store, "get", purged_at_first)

    assert (await desk.answer(schedule("order-1", 60))).outcome is Outcome.UNCHANGED
