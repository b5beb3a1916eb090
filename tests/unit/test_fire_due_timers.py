"""Due timers are published first and marked once the broker has them."""

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

import pytest

from tests.support import messages
from tests.support.fakes import FragileStore, RecordingBus
from tests.support.timers import ACME, GLOBEX, at, call, cancel, expired, reached, schedule
from timer_client.subjects import Subjects
from timer_service.adapters.codec import encode_event
from timer_service.domain.errors import BusUnavailable, StoreBusy, StoreFailed
from timer_service.domain.messages import Command, Event
from timer_service.domain.timer import TimerState
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.testing import ManualClock, MemoryEventBus
from timer_service.workflows.catch_up import CatchUp, CatchUpChange
from timer_service.workflows.fire_due_timers import (
    FireReport,
    PublishedBatch,
    next_look,
    publish_due_timers,
)
from timer_service.workflows.hold_back import HoldBack, HoldBackChange
from timer_service.workflows.open_questions import OpenQuestions
from timer_service.workflows.schedule_timers import schedule_timers

NO_CHANGE = HoldBackChange(held=0, freed=0)


class Desk:
    """The workflow between a memory store and a memory bus."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FragileStore()
        self.broker = MemoryEventBus(self.clock, Subjects("timer"))
        self.bus = RecordingBus(self.broker)
        self.hold_back = HoldBack()
        self.catch_up = CatchUp(timedelta(seconds=30))
        self.questions = OpenQuestions()

    async def keep(self, *commands: Command) -> None:
        await self.store.apply(commands, self.clock.now())
        self.store.calls.clear()

    def publishing(self, limit: int = 100) -> AbstractAsyncContextManager[PublishedBatch]:
        return publish_due_timers(
            store=self.store,
            source=self.bus,
            sink=self.bus,
            clock=self.clock,
            limit=limit,
            hold_back=self.hold_back,
            catch_up=self.catch_up,
            questions=self.questions,
        )

    async def fire(self, limit: int = 100) -> FireReport:
        """Publish a batch and mark it."""
        async with self.publishing(limit) as batch:
            return await batch.mark()

    async def next_look(self, report: FireReport) -> datetime | None:
        return await next_look(
            store=self.store,
            hold_back=self.hold_back,
            catch_up=self.catch_up,
            looked_at=report.looked_at,
        )

    def state(self, name: str, tenant: str = ACME) -> TimerState:
        return self.store.timers[tenant, call(name)].state  # type: ignore[index]


def stored(event: Event) -> dict[str, tuple[str, bytes]]:
    """Return what the broker holds after this event alone."""
    message_id = str(event.id)
    kind = type(event).__name__
    return {message_id: (f"timer.events.{event.tenant_id}.{kind}", encode_event(event, message_id))}


async def test_a_due_timer_is_published_and_marked() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 60, correlation="request-1"), schedule("order-2", 90, number=2))
    desk.clock.advance(60.5)

    report = await desk.fire()

    event = reached("order-1", 60, reached_s=60.5, correlation="request-1")
    assert report == FireReport(
        looked_at=at(60.5),
        confirmed=[event],
        failed=[],
        confirmed_at=at(60.5),
        marked=1,
        hold_back=NO_CHANGE,
        catch_up=CatchUpChange(),
        disconnected=False,
        more=False,
        read_ahead=False,
    )
    assert await desk.next_look(report) == at(90)
    assert desk.broker.events == stored(event)
    timer = desk.store.timers[ACME, call("order-1")]
    assert (timer.state, timer.reached_at) == (TimerState.REACHED, at(60.5))


async def test_a_timer_fires_in_its_millisecond_and_not_the_one_before() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 60))

    desk.clock.step_to(at(59.999))
    early = await desk.fire()
    next_look_at = await desk.next_look(early)
    desk.clock.step_to(at(60))
    on_time = await desk.fire()

    assert (early.confirmed, next_look_at) == ([], at(60))
    assert on_time.confirmed == [reached("order-1", 60, reached_s=60)]


async def test_with_catching_up_turned_off_a_due_timer_fires_although_commands_of_its_tenant_wait() -> None:
    desk = Desk()
    desk.catch_up = CatchUp(timedelta())
    await desk.keep(schedule("order-1", 60))
    desk.broker.send("timer.commands.acme.CancelTimer", messages.encode(messages.cancel(ACME, "order-1")))
    desk.clock.advance(60)

    report = await desk.fire()

    assert report.confirmed == [reached("order-1", 60, reached_s=60)]
    assert report.catch_up == CatchUpChange()


async def test_nothing_due_means_nothing_published() -> None:
    desk = Desk()

    report = await desk.fire()

    assert report == FireReport(
        looked_at=at(0),
        confirmed=[],
        failed=[],
        confirmed_at=at(0),
        marked=0,
        hold_back=NO_CHANGE,
        catch_up=CatchUpChange(),
        disconnected=False,
        more=False,
        read_ahead=False,
    )
    assert await desk.next_look(report) is None
    assert desk.bus.published == []
    assert desk.store.calls == ["claim_due", "next_due_at"]


async def test_a_fired_timer_is_not_due_again() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    await desk.fire()

    again = await desk.fire()

    assert again.confirmed == []
    assert len(desk.bus.published) == 1


async def test_a_timer_overdue_for_a_year_fires_with_its_own_due_time() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", -31_536_000))

    report = await desk.fire()

    assert report.confirmed == [reached("order-1", -31_536_000, reached_s=0)]


async def test_the_oldest_is_published_first() -> None:
    desk = Desk()
    await desk.keep(schedule("new", 30), schedule("old", 10, number=2), schedule("middle", 20, number=3))
    desk.clock.advance(60)

    await desk.fire()

    assert [[event.service_call_id for event in batch] for batch in desk.bus.published] == [
        ["old", "middle", "new"]
    ]


async def test_more_than_a_batch_is_said_so_that_the_rest_follows_at_once() -> None:
    desk = Desk()
    await desk.keep(schedule("a", 1), schedule("b", 2, number=2), schedule("c", 3, number=3))
    desk.clock.advance(60)

    first = await desk.fire(limit=2)
    second = await desk.fire(limit=2)

    assert (len(first.confirmed), first.more) == (2, True)
    assert (len(second.confirmed), second.more) == (1, False)
    assert desk.store.calls == ["claim_due", "mark_reached", "claim_due", "mark_reached"]


async def test_a_timer_that_came_due_while_publishing_is_the_next_look() -> None:
    desk = Desk()
    await desk.keep(schedule("a", 0), schedule("b", 0.2, number=2))

    async def half_a_second_passes() -> None:
        desk.clock.advance(0.5)

    desk.bus.meanwhile = half_a_second_passes
    report = await desk.fire()

    assert (report.confirmed_at, report.more) == (at(0.5), False)
    assert await desk.next_look(report) == at(0.2)


# Publish first, mark after


async def test_nothing_is_marked_while_the_broker_is_away() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    desk.broker.connected = False

    with pytest.raises(BusUnavailable):
        await desk.fire()

    assert desk.state("order-1") is TimerState.SCHEDULED
    assert desk.store.calls == []


async def test_only_what_the_broker_confirmed_is_marked() -> None:
    desk = Desk()
    await desk.keep(schedule("good", 0), schedule("bad", 0, number=2))
    desk.bus.answers = lambda e: Published.REJECTED if e.service_call_id == "bad" else Published.CONFIRMED

    report = await desk.fire()

    assert report == FireReport(
        looked_at=at(0),
        confirmed=[reached("good", 0)],
        failed=[(reached("bad", 0), PublishResult(Published.REJECTED, "no"))],
        confirmed_at=at(0),
        marked=1,
        hold_back=HoldBackChange(held=1, freed=0),
        catch_up=CatchUpChange(),
        disconnected=False,
        more=False,
        read_ahead=False,
    )
    assert await desk.next_look(report) == at(0.5)
    assert (desk.state("good"), desk.state("bad")) == (TimerState.REACHED, TimerState.SCHEDULED)


async def test_a_crash_between_publish_and_mark_repeats_the_event_under_the_same_id() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    desk.store.fail("mark_reached", StoreFailed("killed here"))
    with pytest.raises(StoreFailed):
        await desk.fire()
    desk.clock.advance(7)

    report = await desk.fire()

    first, again = [batch[0] for batch in desk.bus.published]
    assert report.confirmed == [reached("order-1", 0, reached_s=7)]
    assert again.id == first.id
    assert desk.broker.events == stored(first)


async def test_only_the_mark_is_repeated_while_the_store_is_unwell() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    desk.store.fail("mark_reached", StoreBusy("locked"), StoreBusy("locked"))

    async with desk.publishing() as batch:
        for _ in range(2):
            with pytest.raises(StoreBusy):
                await batch.mark()
        report = await batch.mark()

    assert report.marked == 1
    assert len(desk.bus.published) == 1
    assert desk.store.calls == ["claim_due", *["mark_reached"] * 3]


async def test_a_reschedule_between_publish_and_mark_is_not_lost() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))

    async def reschedule() -> None:
        await desk.store.apply([schedule("order-1", 60, number=2)], desk.clock.now())

    desk.bus.meanwhile = reschedule
    report = await desk.fire()
    desk.clock.advance(60)
    later = await desk.fire()

    assert (report.confirmed, report.marked, report.more) == ([reached("order-1", 0)], 0, True)
    assert later.confirmed == [reached("order-1", 60, reached_s=60, generation=2)]


async def test_a_cancel_between_publish_and_mark_stands() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))

    async def withdraw() -> None:
        await desk.store.apply([cancel("order-1", number=2)], desk.clock.now())

    desk.bus.meanwhile = withdraw
    report = await desk.fire()

    assert (report.marked, report.more) == (0, True)
    assert desk.state("order-1") is TimerState.CANCELLED


# Failures stay alone


async def test_a_timer_that_cannot_be_published_is_passed_over_until_its_pause_ends() -> None:
    desk = Desk()
    await desk.keep(schedule("bad", 0))
    desk.bus.answers = lambda _: Published.REJECTED
    await desk.fire()

    desk.clock.step_to(at(0.499))
    next_look_at = await desk.next_look(await desk.fire())
    desk.clock.step_to(at(0.5))
    await desk.fire()

    assert next_look_at == at(0.5)
    assert [event.service_call_id for batch in desk.bus.published for event in batch] == ["bad", "bad"]


async def test_a_pause_is_not_waited_for_where_a_timer_is_due_sooner() -> None:
    desk = Desk()
    await desk.keep(schedule("bad", 0), schedule("soon", 0.2, number=2))
    desk.bus.answers = lambda _: Published.REJECTED

    report = await desk.fire()

    assert await desk.next_look(report) == at(0.2)


async def test_a_timer_works_again_once_the_broker_takes_it() -> None:
    desk = Desk()
    await desk.keep(schedule("bad", 0))
    desk.bus.answers = lambda _: Published.REJECTED
    await desk.fire()
    desk.bus.answers = lambda _: Published.CONFIRMED
    desk.clock.advance(0.5)

    report = await desk.fire()

    assert report.hold_back == HoldBackChange(held=0, freed=1)
    assert desk.state("bad") is TimerState.REACHED


async def test_a_tenant_that_the_broker_rejects_does_not_hold_up_another() -> None:
    desk = Desk()
    await desk.keep(
        *[schedule(f"bad-{n}", -10, number=n) for n in range(1, 21)],
        schedule("good", 0, tenant=GLOBEX, number=21),
    )
    desk.bus.answers = lambda e: Published.REJECTED if e.tenant_id == ACME else Published.CONFIRMED

    await desk.fire(limit=5)

    assert desk.state("good", GLOBEX) is TimerState.REACHED


async def test_a_tenants_timers_that_always_fail_do_not_hold_up_its_others_forever() -> None:
    desk = Desk()
    await desk.keep(
        *[schedule(f"bad-{n}", -10, number=n) for n in range(1, 21)], schedule("good", 0, number=21)
    )
    desk.bus.answers = lambda e: Published.CONFIRMED if e.service_call_id == "good" else Published.REJECTED

    for _ in range(600):
        await desk.fire(limit=10)
        desk.clock.advance(1)

    assert desk.state("good") is TimerState.REACHED


async def test_a_lost_connection_holds_nobody_back() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0), schedule("order-2", 0, number=2))
    desk.bus.answers = lambda e: (
        Published.CONFIRMED if e.service_call_id == "order-1" else Published.DISCONNECTED
    )

    cut = await desk.fire()
    desk.bus.answers = lambda _: Published.CONFIRMED
    again = await desk.fire()

    assert (cut.disconnected, cut.marked, cut.hold_back) == (True, 1, NO_CHANGE)
    assert again.confirmed == [reached("order-2", 0)]


# Commands that wait


def send_cancel(desk: Desk, name: str) -> int:
    """Send a CancelTimer through the broker, which nobody has read yet."""
    body = messages.encode(messages.cancel("acme", name))
    return desk.broker.send("timer.commands.acme.CancelTimer", body)


async def test_a_due_timer_waits_for_a_command_of_its_tenant_and_no_other_does() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0), schedule("order-1", 0, tenant=GLOBEX))
    sequence = send_cancel(desk, "order-1")

    first = await desk.fire()
    await desk.store.apply([cancel("order-1", number=2)], desk.clock.now())
    desk.broker.settle(sequence)
    second = await desk.fire()

    assert [event.tenant_id for event in first.confirmed] == [GLOBEX]
    assert (first.catch_up.waiting, first.more) == (1, False)
    assert second.confirmed == []
    assert desk.state("order-1") is TimerState.CANCELLED


async def test_a_stream_that_takes_nothing_is_not_taken_for_well_while_due_timers_wait_for_commands() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    desk.bus.answers = lambda _: Published.STREAM_REFUSED
    await desk.fire()
    sequence = send_cancel(desk, "order-1")
    reports = []

    for _ in range(2):  # It is found to wait, and then passed over.
        desk.clock.advance(1)
        reports.append(await desk.fire())
    problem = desk.hold_back.problem
    await desk.store.apply([cancel("order-1", number=2)], desk.clock.now())
    desk.broker.settle(sequence)
    last = await desk.fire()

    assert [(report.failed, report.hold_back) for report in reports] == [([], NO_CHANGE)] * 2
    assert problem is not None
    assert (last.hold_back.resumed, desk.hold_back.problem) == (True, None)


async def test_the_clock_is_read_before_the_broker_is_asked() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 1))

    async def time_passes() -> None:
        desk.clock.advance(2)

    desk.bus.before_telling = time_passes

    # What was stored after the broker told, and before the timer was due, is not known yet.
    assert (await desk.fire()).confirmed == []


@pytest.mark.parametrize(("passed_s", "reached_s"), [(2, 3), (-2, 1)])
async def test_a_time_is_reached_when_its_timer_was_found_and_never_before_the_look(
    passed_s: float, reached_s: float
) -> None:
    desk = Desk()
    desk.clock.advance(1)
    await desk.keep(schedule("order-1", 1))

    async def the_clock_moves() -> None:
        desk.clock.step_to(at(1 + passed_s))

    desk.bus.before_telling = the_clock_moves

    assert (await desk.fire()).confirmed == [reached("order-1", 1, reached_s=reached_s)]


async def test_what_is_applied_while_the_broker_is_asked_is_acknowledged_once_it_has_told() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    send_cancel(desk, "order-1")

    async with asyncio.TaskGroup() as tasks:

        async def it_is_applied() -> None:
            scheduling = schedule_timers(
                batch=await desk.broker.receive(),
                store=desk.store,
                clock=desk.clock,
                questions=desk.questions,
            )
            tasks.create_task(scheduling)
            for _ in range(9):  # As far as it gets.
                await asyncio.sleep(0)

        desk.bus.before_telling = it_is_applied
        report = await desk.fire()

    # The store was read before that.
    assert (report.confirmed, report.catch_up.waiting) == ([], 1)
    assert (await desk.broker.backlog({})).tenants == frozenset()


async def test_with_somebody_waiting_the_store_is_read_after_the_broker_has_told() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))
    sequence = send_cancel(desk, "order-1")
    await desk.fire()

    async def another_instance_applies_it() -> None:
        await desk.store.apply([cancel("order-1", number=2)], desk.clock.now())
        desk.broker.settle(sequence)

    desk.bus.before_telling = another_instance_applies_it

    assert (await desk.fire()).confirmed == []


# Timers that expire


def expiring(name: str = "order-1", due_s: float = 0, *, number: int = 1) -> Command:
    """Return a schedule whose event is of use for five seconds."""
    return schedule(name, due_s, number=number, expires_after_s=5)


async def test_up_in_time_a_timer_that_can_expire_fires_as_any_other() -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.clock.advance(5)

    report = await desk.fire()

    assert report.confirmed == [reached("order-1", 0, reached_s=5)]
    assert desk.broker.events == stored(reached("order-1", 0, reached_s=5))
    assert desk.state("order-1") is TimerState.REACHED


async def test_down_for_longer_it_is_told_as_expired_and_never_as_reached() -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.clock.advance(5.001)

    report = await desk.fire()

    event = expired("order-1", 0, expired_s=5.001)
    assert report.confirmed == [event]
    assert desk.broker.events == stored(event)
    timer = desk.store.timers[ACME, call("order-1")]
    assert (timer.state, timer.expired_at, timer.reached_at) == (TimerState.EXPIRED, at(5.001), None)
    assert (await desk.fire()).confirmed == []


@pytest.mark.parametrize("first_try_s", [1, 9])
async def test_a_second_try_repeats_the_first_however_late_or_early_it_comes(first_try_s: float) -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.clock.step_to(at(first_try_s))
    desk.store.fail("mark_reached", StoreFailed("killed here"))
    with pytest.raises(StoreFailed):
        await desk.fire()
    desk.clock.step_to(at(10 - first_try_s))

    await desk.fire()

    [[first], [again]] = desk.bus.published
    assert (type(again), again.id) == (type(first), first.id)
    assert desk.broker.events == stored(first)


@pytest.mark.parametrize(
    ("first_answer", "later"),
    [
        (Published.UNANSWERED, reached("order-1", 0, reached_s=60)),
        (Published.REJECTED, expired("order-1", 0, expired_s=60)),
        (Published.STREAM_REFUSED, expired("order-1", 0, expired_s=60)),
    ],
)
async def test_only_what_the_broker_certainly_does_not_have_may_expire_yet(
    first_answer: Published, later: Event
) -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.bus.answers = lambda _: first_answer
    await desk.fire()
    desk.clock.advance(60)
    desk.bus.answers = lambda _: Published.CONFIRMED

    report = await desk.fire()

    assert report.confirmed == [later]


async def test_what_was_in_doubt_once_is_not_taken_back_by_a_refusal() -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.bus.answers = lambda _: Published.UNANSWERED
    await desk.fire()
    desk.clock.advance(2)
    desk.bus.answers = lambda _: Published.REJECTED
    await desk.fire()
    desk.clock.advance(60)
    desk.bus.answers = lambda _: Published.CONFIRMED

    report = await desk.fire()

    assert report.confirmed == [reached("order-1", 0, reached_s=62)]


async def test_nothing_is_decided_while_the_broker_is_away() -> None:
    desk = Desk()
    desk.catch_up = CatchUp(timedelta())
    await desk.keep(expiring())
    desk.broker.connected = False

    with pytest.raises(BusUnavailable):
        await desk.fire()

    assert desk.store.timers[ACME, call("order-1")].verdict is None
    assert "settle" not in desk.store.calls


async def test_a_store_that_cannot_keep_the_verdict_lets_nothing_out() -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.store.fail("settle", StoreBusy("busy"))

    with pytest.raises(StoreBusy):
        await desk.fire()

    assert desk.bus.published == []


async def test_a_timer_that_cannot_expire_costs_no_write_before_it_is_published() -> None:
    desk = Desk()
    await desk.keep(schedule("order-1", 0))

    await desk.fire()

    assert desk.store.calls == ["claim_due", "mark_reached"]


async def test_a_move_between_the_expiry_and_its_mark_is_not_lost() -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.clock.advance(10)

    async def move() -> None:
        desk.bus.meanwhile = _no_more
        await desk.store.apply([expiring("order-1", 10, number=2)], desk.clock.now())

    desk.bus.meanwhile = move
    first = await desk.fire()
    again = await desk.fire()

    assert (first.confirmed, first.marked, first.more) == ([expired(expired_s=10)], 0, True)
    assert again.confirmed == [reached("order-1", 10, reached_s=10, generation=2)]
    assert desk.state("order-1") is TimerState.REACHED


async def test_a_cancel_between_the_expiry_and_its_mark_counts() -> None:
    desk = Desk()
    await desk.keep(expiring())
    desk.clock.advance(10)

    async def withdraw() -> None:
        await desk.store.apply([cancel("order-1", number=2)], desk.clock.now())

    desk.bus.meanwhile = withdraw

    report = await desk.fire()

    assert (report.confirmed, report.marked) == ([expired(expired_s=10)], 0)
    assert desk.state("order-1") is TimerState.CANCELLED


async def test_what_was_moved_before_its_verdict_was_kept_is_not_published() -> None:
    desk = Desk()
    await desk.keep(expiring("order-1"), expiring("order-2", number=2))
    desk.store.before_settling = lambda: desk.store.apply([expiring("order-1", 60, number=3)], at(0))

    report = await desk.fire()

    assert report.confirmed == [reached("order-2", 0, reached_s=0)]
    assert report.more, "what was changed meanwhile may be due"
    assert desk.state("order-1") is TimerState.SCHEDULED


async def _no_more() -> None:
    return None
