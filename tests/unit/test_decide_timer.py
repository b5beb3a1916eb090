"""A request is answered with what it did, and never with a guess."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from tests.support.timers import ACME, at, call, cancel, schedule
from timer_client.subjects import Subjects
from timer_service.domain.errors import BusUnavailable, StoreBusy, StoreFailed, TimerFiring, TimerOvertaken
from timer_service.domain.messages import Command, Position
from timer_service.domain.timer import Outcome
from timer_service.ports.timer_store import Decided
from timer_service.testing import ManualClock, MemoryEventBus, MemoryTimerStore
from timer_service.workflows.decide_timer import (
    MAX_GROUP,
    PAUSE_S,
    TRIES,
    RequestDesk,
    Settled,
    SettledTogether,
)


class GroupingStore(MemoryTimerStore):
    """A memory store that keeps the groups, and takes its time and its errors from the test."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.errors: list[Exception] = []
        self.poisoned: set[str] = set()

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        self.groups.append([r.service_call_id for r in requests])
        await self.open.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.poisoned & {r.service_call_id for r in requests}:
            raise ValueError("no such value")
        return await super().decide(requests, now)


class CountingBus(MemoryEventBus):
    asked = 0

    async def last_position(self) -> Position:
        self.asked += 1
        return await super().last_position()


class Office:
    """The desk between a memory store and a memory bus."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = GroupingStore()
        self.bus = CountingBus(self.clock, Subjects("timer"), stream_created_us=2)
        self.desk = RequestDesk(store=self.store, source=self.bus, clock=self.clock)

    async def answer(self, command: Command) -> Settled:
        return await self.desk.decide(command)

    def ask(self, command: Command) -> "asyncio.Task[Settled]":
        return asyncio.create_task(self.answer(command))

    async def busy(self) -> "asyncio.Task[Settled]":
        """Keep the store busy with one request, so that those to come gather."""
        self.store.open.clear()
        first = self.ask(schedule("first"))
        await settle()
        return first


async def settle() -> None:
    """Let everybody go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_is_answered_with_the_timer_that_it_left() -> None:
    office = Office()

    answer = await office.answer(schedule("order-1", 60))

    assert answer == Settled(Outcome.SCHEDULED, office.store.timers[ACME, call("order-1")])


async def test_a_request_stands_at_the_newest_position_of_the_stream() -> None:
    office = Office()
    office.bus.send("timer.commands.acme.ScheduleTimer", b"{}")

    await office.answer(schedule("order-1", 60))

    assert office.store.timers[ACME, call("order-1")].position == Position(2, 1)


async def test_what_is_at_hand_goes_into_one_transaction() -> None:
    office = Office()
    first = await office.busy()
    others = [office.ask(schedule(f"order-{number}")) for number in range(5)]
    await settle()

    office.store.open.set()
    answers = [await task for task in (first, *others)]

    assert office.store.groups == [["first"], [f"order-{number}" for number in range(5)]]
    assert office.bus.asked == 2
    assert [answer.timer.service_call_id for answer in answers[1:]] == office.store.groups[1]


async def test_a_group_is_bounded() -> None:
    office = Office()
    first = await office.busy()
    others = [office.ask(schedule(f"order-{number}")) for number in range(MAX_GROUP + 1)]
    await settle()

    office.store.open.set()
    for task in (first, *others):
        assert (await task).outcome is Outcome.SCHEDULED

    assert [len(group) for group in office.store.groups] == [1, MAX_GROUP, 1]


async def test_two_requests_for_one_timer_never_share_a_transaction() -> None:
    office = Office()
    first = await office.busy()
    tasks = [
        office.ask(schedule("order-1", 60)),
        office.ask(cancel("order-1")),
        office.ask(cancel("order-2")),
    ]
    await settle()

    office.store.open.set()
    answers = [await task for task in (first, *tasks)]

    assert office.store.groups == [["first"], ["order-1", "order-2"], ["order-1"]]
    shown = [(answer.outcome.value, answer.timer.state.value) for answer in answers[1:]]
    assert shown == [("scheduled", "Scheduled"), ("cancelled", "Cancelled"), ("not_found", "Cancelled")]


async def test_an_error_of_the_store_is_the_answer_to_the_whole_group() -> None:
    office = Office()
    first = await office.busy()
    tasks = [office.ask(schedule(f"order-{number}")) for number in range(3)]
    await settle()
    office.store.errors = [StoreBusy("locked"), StoreFailed("broken")]

    office.store.open.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)

    assert [type(result) for result in results] == [StoreBusy, *[StoreFailed] * 3]


async def test_a_request_that_the_store_cannot_take_spoils_no_other() -> None:
    office = Office()
    first = await office.busy()
    tasks = [office.ask(schedule(name)) for name in ("good", "poison", "fine")]
    await settle()
    office.store.poisoned = {"poison"}

    office.store.open.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)

    assert [type(result) for result in results] == [Settled, Settled, ValueError, Settled]


async def test_who_goes_away_takes_nobody_along() -> None:
    office = Office()
    first = await office.busy()
    leaver, other = office.ask(schedule("order-1")), office.ask(schedule("order-2"))
    await settle()

    leaver.cancel()
    first.cancel()
    await settle()
    office.store.open.set()

    assert (await other).outcome is Outcome.SCHEDULED
    assert (ACME, call("order-1")) not in office.store.timers


async def test_a_request_for_a_timer_that_is_being_fired_waits_for_the_outcome() -> None:
    office = Office()
    await office.store.apply([schedule("order-1", 0)], at(-1))

    async with office.store.claim_due(at(0), 10) as claim:
        answering = office.ask(cancel("order-1"))
        await office.clock.until_waits(1)
        await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])
    office.clock.advance(PAUSE_S)

    assert (await answering).outcome is Outcome.ALREADY_REACHED


async def test_who_waits_for_a_firing_holds_nobody_up() -> None:
    office = Office()
    await office.store.apply([schedule("order-1", 0)], at(-1))
    async with office.store.claim_due(at(0), 10):
        first = await office.busy()
        waiting, other = office.ask(cancel("order-1")), office.ask(schedule("order-2"))
        await settle()
        office.store.open.set()
        await first

        assert (await other).outcome is Outcome.SCHEDULED
        assert not waiting.done()
        waiting.cancel()


async def test_a_request_for_a_timer_that_stays_due_says_so() -> None:
    office = Office()
    await office.store.apply([schedule("order-1", 0)], at(-1))

    answering = office.ask(cancel("order-1"))
    for tries in range(1, TRIES + 1):
        await office.clock.until_waits(tries)
        office.clock.advance(PAUSE_S)

    with pytest.raises(TimerFiring):
        await answering


async def test_a_request_that_newer_commands_overtake_again_and_again_does_not_call_the_timer_due() -> None:
    office = Office()
    await office.store.apply([schedule("order-1", 60, stream=3)], at(0))

    answering = office.ask(cancel("order-1"))
    for tries in range(1, TRIES):
        await office.clock.until_waits(tries)
        office.clock.advance(PAUSE_S)

    with pytest.raises(TimerOvertaken):
        await answering


async def test_a_request_is_not_answered_while_the_broker_is_away() -> None:
    office = Office()
    office.bus.connected = False

    with pytest.raises(BusUnavailable):
        await office.answer(cancel("order-1"))
    assert office.bus.problem == "the broker is away"


# While the broker is away


async def test_while_the_broker_is_away_a_request_is_answered_if_its_way_in_needs_none() -> None:
    office = Office()
    office.bus.connected = False
    needs_none = asyncio.ensure_future(office.desk.decide(schedule("order-1", 60), without_broker=True))
    needs_one = office.ask(schedule("order-2", 60))

    settled = await needs_none
    with pytest.raises(BusUnavailable):
        await needs_one

    assert (settled.outcome, settled.is_ordered) == (Outcome.SCHEDULED, False)
    assert {key[1] for key in office.store.timers} == {"order-1"}


async def test_while_the_broker_is_away_a_batch_says_so_and_an_empty_one_needs_nobody() -> None:
    office = Office()
    office.bus.connected = False

    settled = await office.desk.decide_all([schedule("order-1", 60), schedule("order-2", 60)])
    empty = await office.desk.decide_all([])

    assert [each.outcome for each in settled.decided] == [Outcome.SCHEDULED] * 2
    assert (settled.is_ordered, empty) == (False, SettledTogether(()))


async def test_a_request_without_the_broker_is_newer_than_every_command_that_was_seen() -> None:
    office = Office()
    seen, later = Position(2, 7), Position(2, 8)
    await office.store.apply([replace(schedule("order-1", 60), position=seen)], office.clock.now())
    office.bus.handled_sequence = seen.sequence
    office.bus.connected = False

    settled = await office.desk.decide(cancel("order-1"), without_broker=True)
    outcomes = await office.store.apply(
        [replace(schedule("order-1", 90), position=later)], office.clock.now()
    )

    assert (settled.outcome, outcomes) == (Outcome.CANCELLED, [Outcome.SCHEDULED])


async def test_with_the_broker_a_request_of_any_way_in_is_ordered() -> None:
    settled = await Office().desk.decide(schedule("order-1", 60), without_broker=True)

    assert settled.is_ordered
