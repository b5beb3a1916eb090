"""The loops: when the service looks, sleeps, backs off and stops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from structlog.testing import capture_logs

from tests.support import messages
from tests.support.explanations import explanations
from tests.support.fakes import FragileStore, RecordingBus
from tests.support.patience import PATIENCE_S
from tests.support.rig import POLL_S, Rig, backlog
from tests.support.timers import ACME, at, call, cancel, schedule
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import StoreBusy, StoreFailed, StoreFull
from timer_service.domain.messages import Command, Event, TenantId, TimerKey
from timer_service.domain.timer import TimerState
from timer_service.observability.log_summary import INTERVAL_S
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.health import Health
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack, StoreCounts, TimerQuery
from timer_service.service.fire import LOOK_AGAIN_S
from timer_service.service.purge import PURGE_INTERVAL_S
from timer_service.service.run import run_service
from timer_service.testing import START
from timer_service.testing.clock import TURNS_TO_REST
from timer_service.timers import Timers
from timer_service.waiting import owned


async def _nothing() -> None:
    return None


# When it looks


async def test_it_looks_at_start_and_then_sleeps_the_poll_interval() -> None:
    rig = Rig()

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.advance(POLL_S)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [POLL_S, POLL_S]
    assert rig.store.calls.count("claim_due") == 2


async def test_what_is_overdue_fires_at_start() -> None:
    rig = Rig()
    await rig.keep(schedule("yesterday", -86_400), schedule("last-year", -31_536_000, number=2))

    async with rig.running():
        await rig.clock.until_waits(1)

    assert rig.fired() == [["last-year", "yesterday"]]


async def test_it_wakes_at_the_moment_a_timer_is_due() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 1.234))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.advance(1.234)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [1.234, POLL_S]
    assert rig.fired() == [["order-1"]]
    assert rig.store.timers[ACME, call("order-1")].reached_at == at(1.234)


async def test_looks_at_what_was_read_ahead_do_not_put_off_the_poll() -> None:
    rig = Rig()
    rig.store.reads_ahead = True
    await rig.keep(*(schedule(f"order-{n}", due_s, number=n) for n, due_s in enumerate((2, 4, 5, 7))))

    async with rig.running():
        for sleeps, seconds in enumerate((2, 2, 1), start=1):
            await rig.clock.until_waits(sleeps)
            rig.clock.advance(seconds)
        await rig.clock.until_waits(5)

    # The poll is due at 5 s, and so is a timer that was read ahead: the store is asked right after it.
    assert rig.clock.waits == [2, 2, 1, 0, 2]
    assert rig.fired() == [["order-0"], ["order-1"], ["order-2"]]


async def test_the_poll_interval_is_its_longest_sleep() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 12))

    async with rig.running():
        for sleeps in (1, 2):
            await rig.clock.until_waits(sleeps)
            rig.clock.advance(POLL_S)
        await rig.clock.until_waits(3)
        rig.clock.advance(2)
        await rig.clock.until_waits(4)

    assert rig.clock.waits == [POLL_S, POLL_S, 2, POLL_S]
    assert rig.fired() == [["order-1"]]


async def test_a_nearer_timer_wakes_it() -> None:
    rig = Rig()
    await rig.keep(schedule("later", 4))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.send("sooner", 1)
        await rig.clock.until_waits(2)
        rig.clock.advance(1)
        await rig.clock.until_waits(3)

    assert rig.clock.waits == [4, 1, 3]
    assert rig.fired() == [["sooner"]]


async def test_a_timer_that_is_due_already_wakes_it_and_fires_at_once() -> None:
    rig = Rig()

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.send("order-1", -1)
        await rig.clock.until_waits(2)

    assert rig.fired() == [["order-1"]]
    assert rig.clock.now() == START


@pytest.mark.parametrize("due_s", [2, 3, 9999])
async def test_a_timer_that_is_not_nearer_does_not_wake_it(due_s: float) -> None:
    rig = Rig()
    await rig.keep(schedule("first", 2))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.send("second", due_s)
        await rig.until_kept(2)
        rig.send("marker", 1)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [2, 1]


async def test_a_batch_that_sets_no_due_time_does_not_wake_it() -> None:
    rig = Rig()
    await rig.keep(schedule("first", 2))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.broker.send(
            "timer.commands.acme.CancelTimer", messages.encode(messages.cancel("acme", "unknown"))
        )
        await rig.until_kept(2)
        rig.broker.send("timer.commands.acme.ScheduleTimer", b"rubbish")
        await rig.until_kept(2)
        rig.send("marker", 1)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [2, 1]
    assert list(rig.broker.letters) == [2]


class _SlowStore(FragileStore):
    """A store in which something happens between its answer and the moment the service has it."""

    meanwhile: Callable[[], Awaitable[None]]

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        found = await super().next_due_at(after, sink)
        meanwhile, self.meanwhile = self.meanwhile, _nothing
        await meanwhile()
        return found


async def test_a_timer_accepted_between_the_look_and_the_sleep_is_not_missed() -> None:
    store = _SlowStore()
    rig = Rig(store=store)

    async def accept() -> None:
        rig.send("order-1", 1)
        await rig.until_kept(1)

    store.meanwhile = accept

    async with rig.running():
        await rig.clock.until_waits(2)
        rig.clock.advance(1)
        await rig.clock.until_waits(3)

    # The first sleep was over before it began.
    assert rig.clock.waits == [POLL_S, 1, POLL_S]
    assert rig.fired() == [["order-1"]]


async def test_what_can_wait_waits_for_a_timer_that_is_published() -> None:
    rig = Rig()
    await rig.keep(schedule("first", 0))
    waiting = list[asyncio.Task[None]]()

    async def ask() -> None:
        waiting.append(asyncio.ensure_future(rig.service.right_of_way.in_line(PATIENCE_S)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting[0].done()

    rig.bus.meanwhile = ask

    async with rig.running(), asyncio.timeout(PATIENCE_S):
        while not waiting:
            await asyncio.sleep(0)
        await waiting[0]


async def test_what_can_wait_waits_for_a_timer_that_is_about_to_be_due() -> None:
    rig = Rig()
    await rig.keep(schedule("first", 0.001))

    async with rig.running(), asyncio.timeout(PATIENCE_S):
        await rig.clock.until_waits(1)
        waiting = asyncio.ensure_future(rig.service.right_of_way.in_line(PATIENCE_S))
        await rig.clock.until_waits(1)
        was_waiting = not waiting.done()
        rig.clock.advance(0.001)
        await waiting

    assert was_waiting
    assert rig.fired() == [["first"]]


async def test_a_timer_accepted_while_others_are_published_is_not_missed() -> None:
    rig = Rig()
    await rig.keep(schedule("first", 0))

    async def accept() -> None:
        rig.bus.meanwhile = _nothing
        rig.send("second", 0)
        await rig.until_kept(2)

    rig.bus.meanwhile = accept

    async with rig.running():
        async with asyncio.timeout(PATIENCE_S):
            while len(rig.bus.published) < 2:
                await asyncio.sleep(0)

    assert rig.fired() == [["first"], ["second"]]
    assert rig.clock.now() == START


async def test_without_precise_wake_up_it_looks_only_at_every_poll() -> None:
    rig = Rig(precise_wakeup=False)
    await rig.keep(schedule("first", 1))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.send("second", 0)
        await rig.until_kept(2)
        rig.clock.advance(POLL_S)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [POLL_S, POLL_S]
    assert rig.fired() == [["second", "first"]]


async def test_a_timer_due_this_very_moment_is_slept_for_no_time() -> None:
    rig = Rig()
    await rig.keep(schedule("first", 0), schedule("second", 0.2, number=2))

    async def half_a_second_passes() -> None:
        rig.clock.advance(0.5)
        rig.bus.meanwhile = _nothing

    rig.bus.meanwhile = half_a_second_passes

    async with rig.running():
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [0, POLL_S]
    assert rig.fired() == [["first"], ["second"]]


async def test_a_wall_clock_set_back_neither_fires_early_nor_sleeps_longer() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 2))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.step_to(START - timedelta(hours=1))
        rig.clock.advance(2)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [2, POLL_S]
    assert rig.fired() == []


async def test_a_wall_clock_set_forward_is_noticed_at_the_next_poll() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 3600))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.step_to(START + timedelta(hours=2))
        rig.clock.advance(POLL_S)
        await rig.clock.until_waits(2)

    assert rig.fired() == [["order-1"]]


async def test_it_drains_without_a_sleep_while_more_is_due_than_a_batch() -> None:
    rig = Rig(batch_size=2)
    await rig.keep(*[schedule(f"order-{n}", -9 + n, number=n) for n in range(1, 6)])

    async with rig.running():
        await rig.clock.until_waits(1)

    # After the first batch a look takes half of it, so that the other half can be marked meanwhile.
    assert rig.fired() == [["order-1", "order-2"], ["order-3"], ["order-4"], ["order-5"]]
    assert rig.clock.waits == [POLL_S]


class _TimersInOtherHands(FragileStore):
    """A store with due timers that cannot be claimed for the first looks."""

    looks = 6

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        self.looks -= 1
        async with super().claim_due(now, limit, held_back, sink) as claim:
            yield claim if self.looks < 0 else _MoreThanIsThere()


class _MoreThanIsThere:
    timers = ()
    more = True
    read_ahead = False

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> set[TimerKey]:
        raise NotImplementedError

    async def mark_reached(self, events: Sequence[Event]) -> int:
        raise NotImplementedError


async def test_due_timers_in_the_hands_of_requests_are_not_asked_for_without_a_pause() -> None:
    store = _TimersInOtherHands()
    rig = Rig(store=store)
    await rig.keep(schedule("order-1", 0))

    async with rig.running():
        async with asyncio.timeout(PATIENCE_S):
            while not rig.bus.published:
                looks = store.calls.count("claim_due")
                await rig.clock.until_rest()
                assert store.calls.count("claim_due") <= looks + 3, "it looks without a pause"
                rig.clock.advance(LOOK_AGAIN_S)

    assert rig.fired() == [["order-1"]]


async def test_a_timer_that_cannot_be_published_is_tried_again_after_its_pause() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.bus.answers = lambda _: Published.REJECTED

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.advance(0.5)
        await rig.clock.until_waits(2)
        rig.bus.answers = lambda _: Published.CONFIRMED
        rig.clock.advance(1)
        await rig.clock.until_waits(3)

    assert rig.clock.waits == [0.5, 1, POLL_S]
    assert rig.state("order-1") is TimerState.REACHED


# When the store is unwell

BACKOFF = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_store_that_is_busy_is_tried_again_with_growing_waits() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.store.fail("claim_due", *[StoreBusy("locked")] * 7)

    async with rig.running():
        for count, seconds in enumerate(BACKOFF, start=1):
            await rig.clock.until_waits(count)
            rig.clock.advance(seconds)
        await rig.clock.until_waits(8)

    assert rig.clock.waits == [*BACKOFF, POLL_S]
    assert rig.fired() == [["order-1"]]


async def test_a_success_starts_the_waits_over() -> None:
    rig = Rig()
    rig.store.fail("claim_due", StoreBusy("locked"), StoreBusy("locked"))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.advance(0.05)
        await rig.clock.until_waits(2)
        rig.clock.advance(0.1)
        await rig.clock.until_waits(3)
        rig.store.fail("claim_due", StoreBusy("locked"))
        rig.clock.advance(POLL_S)
        await rig.clock.until_waits(4)

    assert rig.clock.waits == [0.05, 0.1, POLL_S, 0.05]


async def test_chance_shortens_a_wait_to_half_at_the_most() -> None:
    rig = Rig(chance=0.0)
    rig.store.fail("claim_due", StoreBusy("locked"))

    async with rig.running():
        await rig.clock.until_waits(1)

    assert rig.clock.waits == [0.025]


async def test_a_mark_that_fails_is_repeated_without_a_second_publication() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.store.fail("mark_reached", StoreFull("disk"), StoreFull("disk"))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.advance(0.05)
        await rig.clock.until_waits(2)
        rig.clock.advance(0.1)
        await rig.clock.until_waits(3)

    assert rig.fired() == [["order-1"]]
    assert rig.store.calls == ["claim_due", "mark_reached", "next_due_at", *["mark_reached"] * 2]
    assert rig.state("order-1") is TimerState.REACHED


async def test_commands_wait_for_a_store_that_is_full_and_none_is_lost() -> None:
    rig = Rig()
    rig.store.fail("apply", StoreFull("disk"), StoreFull("disk"))

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.send("order-1", 60)
        await rig.clock.until_waits(2)
        still_there = list(rig.broker.pending)
        rig.clock.advance(0.05)
        await rig.clock.until_waits(3)
        rig.clock.advance(0.1)
        await rig.until_kept(1)

    assert still_there == [1]
    assert rig.state("order-1") is TimerState.SCHEDULED


async def test_the_log_tells_of_a_store_once_when_it_fails_and_once_when_it_works() -> None:
    rig = Rig()
    rig.store.fail("claim_due", StoreBusy("locked"), StoreBusy("locked"), StoreBusy("locked"))

    with capture_logs() as log:
        async with rig.running():
            for count, seconds in enumerate(BACKOFF[:3], start=1):
                await rig.clock.until_waits(count)
                rig.clock.advance(seconds)
            await rig.clock.until_waits(4)

    assert log == [
        {"event": "store.unavailable", "log_level": "warning", "kind": "StoreBusy", "detail": "locked"},
        {"event": "store.recovered", "log_level": "info"},
    ]


# When the broker is away


async def test_a_broker_that_is_away_is_tried_again_with_growing_waits_and_nothing_is_lost() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.broker.connected = False

    with capture_logs() as log:
        async with rig.running():
            for count, seconds in enumerate(BACKOFF, start=1):
                await rig.clock.until_waits(count)
                rig.broker.connected = count == len(BACKOFF)
                rig.clock.advance(seconds)
            await rig.clock.until_waits(8)

    assert rig.clock.waits == [*BACKOFF, POLL_S]
    assert rig.state("order-1") is TimerState.REACHED
    assert [line["event"] for line in log] == ["batch.fired"]


async def test_a_connection_lost_while_publishing_backs_off_too() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.bus.answers = lambda _: Published.DISCONNECTED

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.advance(0.05)
        await rig.clock.until_waits(2)
        rig.bus.answers = lambda _: Published.CONFIRMED
        rig.clock.advance(0.1)
        await rig.clock.until_waits(3)

    assert rig.clock.waits == [0.05, 0.1, POLL_S]
    assert rig.fired() == [["order-1"]] * 3


async def test_a_nearer_timer_does_not_cut_a_back_off_short() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.broker.connected = False

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.send("order-2", 0)
        await rig.until_kept(2)
        rig.clock.advance(0.05)
        await rig.clock.until_waits(2)

    assert rig.clock.waits == [0.05, 0.1]


# How it ends


async def test_it_stops_from_its_sleep() -> None:
    rig = Rig()

    async with rig.running() as task:
        await rig.clock.until_waits(1)
        rig.service.stop()
        async with asyncio.timeout(PATIENCE_S):
            await task

    assert rig.store.calls.count("claim_due") == 1


async def test_it_finishes_the_batch_in_hand_and_takes_no_other() -> None:
    rig = Rig(batch_size=2)
    await rig.keep(*[schedule(f"order-{n}", 0, number=n) for n in range(1, 4)])

    async def stop() -> None:
        rig.service.stop()

    rig.bus.meanwhile = stop

    async with rig.running() as task, asyncio.timeout(PATIENCE_S):
        await task

    assert rig.fired() == [["order-1", "order-2"]]
    assert [rig.state(f"order-{n}").value for n in (1, 2, 3)] == ["Reached", "Reached", "Scheduled"]


@pytest.mark.parametrize("method", ["apply", "mark_reached", "claim_due"])
async def test_it_stops_also_while_the_store_fails_again_and_again(method: str) -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.store.fail(method, *[StoreFull("disk")] * 100)

    async with rig.running():
        rig.send("order-2", 60)
        async with asyncio.timeout(PATIENCE_S):
            while rig.store.calls.count(method) < 1:
                await asyncio.sleep(0)

    assert rig.store.calls.count(method) < 5


async def test_commands_that_come_while_it_stops_stay_with_the_broker() -> None:
    rig = Rig()

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.service.stop()
        await rig.clock.until_rest()
        rig.send("order-1", 60)

    assert list(rig.broker.pending) == [1]
    assert rig.store.timers == {}


async def test_a_queue_of_commands_is_not_worked_off_after_it_was_told_to_stop() -> None:
    rig = Rig(batch_size=1)
    for number in range(5):
        rig.send(f"order-{number}", 60)

    async with rig.running():
        async with asyncio.timeout(PATIENCE_S):
            while not rig.store.timers:
                await asyncio.sleep(0)

    # The one in hand, and the one that was taken when the word came.
    assert len(rig.store.timers) <= 2
    assert len(rig.broker.pending) == 5 - len(rig.store.timers)


@pytest.mark.parametrize("method", ["apply", "claim_due"])
async def test_a_failure_that_nobody_can_heal_ends_both_loops(method: str) -> None:
    rig = Rig()
    rig.store.fail(method, StoreFailed("the disk is gone"))
    rig.send("order-1", 60)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await rig.service.run()

    assert [str(error) for error in caught.value.exceptions] == ["the disk is gone"]


@pytest.mark.parametrize("method", ["decide", "get", "list_timers", "count"])
async def test_a_store_that_fails_for_whoever_asks_ends_the_service(method: str) -> None:
    async def failing(*_: object) -> None:
        raise StoreFailed("the disk is gone")

    rig = Rig()
    arguments: dict[str, tuple[object, ...]] = {
        "decide": ([schedule("order-1", 60)], START),
        "get": (ACME, call("order-1")),
        "list_timers": (TimerQuery(ACME),),
        "count": (START,),
    }
    running = asyncio.ensure_future(rig.service.run())
    await rig.clock.until_waits(1)

    setattr(rig.store, method, failing)
    with pytest.raises(StoreFailed):
        await getattr(rig.around.store, method)(*arguments[method])
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await running

    assert [str(error) for error in caught.value.exceptions] == ["the disk is gone"]


async def test_it_runs_until_told_to_stop() -> None:
    rig, stop = Rig(), asyncio.Event()

    with capture_logs() as log:
        running = asyncio.ensure_future(run_service(rig.service, stop))
        await rig.clock.until_waits(1)
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await running

    assert log == [{"event": "service.stopping", "log_level": "info", "grace_s": 10.0}]


async def test_told_to_stop_it_finishes_the_batch_in_hand() -> None:
    rig, stop = Rig(), asyncio.Event()
    await rig.keep(schedule("order-1", 0))

    async def stop_while_the_broker_takes_its_time() -> None:
        stop.set()
        for _ in range(TURNS_TO_REST):
            await asyncio.sleep(0)

    rig.bus.meanwhile = stop_while_the_broker_takes_its_time
    async with asyncio.timeout(PATIENCE_S):
        await run_service(rig.service, stop, grace_s=3600)

    assert rig.state("order-1") is TimerState.REACHED


async def test_a_failure_is_passed_on_to_whoever_runs_it() -> None:
    rig = Rig()
    rig.store.fail("claim_due", StoreFailed("the disk is gone"))

    with capture_logs() as log, pytest.raises(StoreFailed, match="the disk is gone"):
        async with asyncio.timeout(PATIENCE_S):
            await run_service(rig.service, asyncio.Event())

    assert log == []


class _StuckBus(RecordingBus):
    """A bus whose broker never answers."""

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        self.published.append(list(events))
        await asyncio.Event().wait()
        return []


async def test_a_batch_that_never_ends_is_cut_off_after_the_grace_period() -> None:
    rig, stop = Rig(bus=_StuckBus), asyncio.Event()
    await rig.keep(schedule("order-1", 0))
    running = asyncio.ensure_future(run_service(rig.service, stop, grace_s=0.01))

    async with asyncio.timeout(PATIENCE_S):
        while not rig.bus.published:
            await asyncio.sleep(0)
        stop.set()
        await running

    assert rig.state("order-1") is TimerState.SCHEDULED


# What it tells


async def test_the_log_tells_of_each_batch_in_one_line() -> None:
    rig = Rig()
    rig.send("order-1", -2)
    rig.send("order-2", -1)
    rig.broker.send("timer.commands.acme.ScheduleTimer", b"rubbish")

    with capture_logs() as log:
        async with rig.running():
            async with asyncio.timeout(PATIENCE_S):
                while not rig.fired():
                    await asyncio.sleep(0)

    applied, refused, fired = log
    assert applied == {
        "event": "commands.applied",
        "log_level": "info",
        "batches": 1,
        "redelivered": 0,
        "scheduled": 2,
    }
    assert refused.pop("detail").startswith("the body must be JSON in UTF-8")
    assert refused == {
        "event": "command.refused",
        "log_level": "warning",
        "messages": 1,
        "reason": "not_json",
        "subject": "timer.commands.acme.ScheduleTimer",
        "sequence": 3,
    }
    assert fired == {
        "event": "batch.fired",
        "log_level": "info",
        "batches": 1,
        "timers": 2,
        "expired": 0,
        "superseded": 0,
        "max_lateness_ms": 2000,
    }


async def test_a_batch_without_a_command_is_no_batch_of_commands_in_the_log() -> None:
    rig = Rig()
    rig.broker.send("timer.commands.acme.ScheduleTimer", b"rubbish")

    with capture_logs() as log:
        async with rig.running():
            await rig.clock.until_waits(1)

    assert [line["event"] for line in log] == ["command.refused"]


async def test_the_log_tells_of_a_timer_once_when_it_fails_and_once_when_it_works() -> None:
    rig = Rig()
    await rig.keep(schedule("order-1", 0))
    rig.bus.answers = lambda _: Published.REJECTED

    with capture_logs() as log:
        async with rig.running():
            await rig.clock.until_waits(1)
            rig.clock.advance(0.5)
            await rig.clock.until_waits(2)
            rig.bus.answers = lambda _: Published.CONFIRMED
            rig.clock.advance(1)
            await rig.clock.until_waits(3)

    failed, fired, recovered = log
    assert failed == {
        "event": "publish.failed",
        "log_level": "warning",
        "timers": 1,
        "kind": "rejected",
        "detail": "no",
        "tenant_id": "acme",
        "service_call_id": "order-1",
    }
    assert fired["event"] == "batch.fired"
    assert recovered == {"event": "publish.recovered", "log_level": "info", "freed": 1}


# Retention


async def test_old_timers_are_deleted_without_a_pause_until_none_is_left() -> None:
    rig = Rig(retention=timedelta(minutes=10), purge_batch=10)
    await rig.keep(*(cancel(f"order-{number}", number=number) for number in range(35)))
    rig.clock.step_to(at(3600))

    with capture_logs() as logs:
        async with rig.running():
            await rig.clock.until_waits(5)

    assert rig.store.timers == {}
    assert sorted(rig.clock.waits) == [0, 0, 0, POLL_S, PURGE_INTERVAL_S]
    assert [entry["timers"] for entry in logs if entry["event"] == "timers.purged"] == [35]


async def test_other_work_goes_on_between_two_batches_that_are_deleted() -> None:
    rig = Rig(retention=timedelta(minutes=10), purge_batch=1)
    await rig.keep(*(cancel(f"order-{number}", number=number) for number in range(1000)))
    rig.clock.step_to(at(3600))
    rig.send("due", 0)

    async with rig.running():
        async with asyncio.timeout(PATIENCE_S):
            while not rig.bus.published:
                await asyncio.sleep(0)
        left = len(rig.store.timers)

    assert left > 900


async def test_under_load_the_log_grows_with_time_and_nothing_is_left_unsaid_at_the_end() -> None:
    rig, loop = Rig(batch_size=2), asyncio.get_running_loop()
    await rig.keep(*backlog(500))
    began_s = loop.time()

    with capture_logs() as log:
        async with rig.running():
            await rig.clock.until_waits(1)

    fired = [line for line in log if line["event"] == "batch.fired"]
    assert len(fired) <= (loop.time() - began_s) / INTERVAL_S + 2
    assert sum(line["timers"] for line in fired) == 500
    assert sum(line["batches"] for line in fired) == len(rig.bus.published)


# How it says it is


async def test_a_step_of_the_wall_clock_is_no_silence_of_the_worker() -> None:
    rig = Rig()

    async with rig.running():
        await rig.clock.until_waits(1)
        rig.clock.step_to(START + timedelta(days=1))
        health = rig.service.health()

    assert health == Health(stuck=None, problems={})


async def test_a_worker_that_does_not_look_for_long_is_taken_for_dead() -> None:
    rig = Rig(bus=_StuckBus)
    await rig.keep(schedule("order-1", 0))

    async with owned(rig.service.run()):
        await rig.clock.until_rest()
        rig.clock.advance(30)
        alive = rig.service.health()
        rig.clock.advance(1)
        dead = rig.service.health()

    assert (alive.stuck, dead.stuck) == (None, "has not polled for 31 s")


async def test_the_store_counts_as_well_again_while_a_backlog_is_worked_off() -> None:
    rig = Rig(batch_size=2)
    await rig.keep(*backlog(100))
    rig.store.fail("claim_due", StoreBusy("locked"))
    problems = list[dict[str, str]]()

    async def look() -> None:
        problems.append(rig.service.health().problems)

    rig.bus.meanwhile = look

    async with rig.running():
        await rig.clock.until_waits(1)
        unwell = rig.service.health().problems
        rig.clock.advance(1)
        await rig.clock.until_waits(2)

    assert unwell == {"store": "locked"}
    assert len(problems) > 10
    assert not any(problems[1:])


async def test_little_space_is_told_whoever_counted() -> None:
    rig = Rig()
    counts = await rig.store.count(START)

    rig.service.note_counts(replace(counts, free_bytes=1000))

    assert rig.service.health().problems == {"disk": "only 1000 bytes are free"}


async def test_whoever_looks_at_the_gauges_finds_them_up_to_date() -> None:
    rig = Rig()
    await rig.keep(schedule("due", -60), schedule("later", 60, number=2))

    await rig.service.observe()

    shown = rig.metrics.text().decode().splitlines()
    assert {"timer_pending 2.0", "timer_backlog 1.0", "timer_oldest_overdue_seconds 60.0"} <= set(shown)
    assert {"timer_broker_connected 1.0", "timer_store_available 1.0"} <= set(shown)


class _FullDisk(FragileStore):
    async def count(self, now: datetime) -> StoreCounts:
        return replace(await super().count(now), free_bytes=1000)


async def test_the_status_names_a_full_disk_also_where_nobody_asked_over_http() -> None:
    rig = Rig(store=_FullDisk())
    timers = Timers(
        instance="here",
        store=rig.store,
        source=rig.bus,
        clock=rig.clock,
        wake_for=rig.service.wake_for,
        accept_clock_step=lambda: 0.0,
        broker=lambda: None,
        health=rig.service.health,
        recent=rig.metrics.recent,
        counted=rig.service.note_counts,
        explain=explanations(rig.store, rig.clock).explain,
    )

    status = await timers.status()

    assert status.problems == {"disk": "only 1000 bytes are free"}


# When the event stream accepts nothing


def _refuse_all(rig: Rig, outcome: Published) -> None:
    rig.bus.answers = lambda _: outcome


async def _publications_in(rig: Rig, seconds: int) -> int:
    before = sum(map(len, rig.bus.published))
    for _ in range(seconds * 4):
        rig.clock.advance(0.25)
        await rig.clock.until_rest()
    return sum(map(len, rig.bus.published)) - before


def _of_many_tenants(count: int) -> list[Command]:
    return [schedule(f"order-{n}", -9, number=n, tenant=TenantId(f"tenant-{n}")) for n in range(1, count + 1)]


async def test_a_full_event_stream_is_tried_now_and_then_told_once_and_recovered_from() -> None:
    rig = Rig(batch_size=400)
    await rig.keep(*_of_many_tenants(1600))
    _refuse_all(rig, Published.STREAM_REFUSED)

    with capture_logs() as log:
        async with rig.running():
            await rig.clock.until_waits(1)
            first_minute = await _publications_in(rig, 60)
            later_minute = await _publications_in(rig, 60)
            told = rig.service.health().problems
            _refuse_all(rig, Published.CONFIRMED)
            await _publications_in(rig, 15)
            afterwards = rig.service.health().problems

    failures = [line for line in log if line["event"].startswith("publish.")]
    assert first_minute <= 100 * 12
    assert later_minute <= 100 * 7
    assert told == {"publish": "the event stream accepts nothing: no"}
    assert afterwards == {}
    assert [line["event"] for line in failures] == ["publish.failed", "publish.recovered"]
    assert {timer.state for timer in rig.store.timers.values()} == {TimerState.REACHED}


async def test_more_failing_timers_than_can_be_remembered_make_no_busy_loop_and_no_flood_of_lines() -> None:
    most, batch = 500, 200
    rig = Rig(batch_size=batch, max_held_back=most)
    await rig.keep(*_of_many_tenants(800))
    _refuse_all(rig, Published.REJECTED)

    with capture_logs() as log:
        async with rig.running():
            await rig.clock.until_waits(1)
            await _publications_in(rig, 60)
            in_a_minute = await _publications_in(rig, 60)
            told = rig.service.health().problems
            _refuse_all(rig, Published.CONFIRMED)
            await _publications_in(rig, 60)
            afterwards = rig.service.health().problems

    # Those that are remembered and a batch of others, after each of the longest pauses.
    assert in_a_minute <= (most + batch) * 7
    assert told == {"publish": f"more than {most} timers and tenants have events that cannot be published"}
    assert afterwards == {}
    assert sum(line["event"] == "publish.failed" for line in log) <= 5
    assert {timer.state for timer in rig.store.timers.values()} == {TimerState.REACHED}
