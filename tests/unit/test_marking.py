"""What is published is marked beside the next look: in bounds; nothing is lost, hidden or published twice."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from tests.support.fakes import FragileStore
from tests.support.patience import PATIENCE_S
from tests.support.rig import POLL_S, Rig, backlog
from tests.support.timers import at, cancel, reached, schedule
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import StoreBusy, StoreFailed
from timer_service.domain.messages import Command, Event, TimerKey
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.event_sink import Published
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack
from timer_service.service.run import run_service


async def _nothing() -> None:
    return None


class _HangingMarks(FragileStore):
    """A store that marks when the test says so, and tells how many marks wait."""

    def __init__(self, max_claims: int = 100) -> None:
        super().__init__()
        self.max_claims = max_claims
        self.released = asyncio.Event()
        self.waiting = 0
        self.claims = 0
        self.most_claims = 0

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        async with super().claim_due(now, limit, held_back, sink) as claim:
            self.claims += 1
            self.most_claims = max(self.most_claims, self.claims)
            try:
                yield _HangingClaim(self, claim)
            finally:
                self.claims -= 1


class _HangingClaim:
    def __init__(self, store: _HangingMarks, claim: Claim) -> None:
        self._store = store
        self._claim = claim

    @property
    def timers(self) -> Sequence[DueTimer]:
        return self._claim.timers

    @property
    def more(self) -> bool:
        return self._claim.more

    @property
    def read_ahead(self) -> bool:
        return self._claim.read_ahead

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> Collection[TimerKey]:
        return await self._claim.settle(timers, verdict)

    async def mark_reached(self, events: Sequence[Event]) -> int:
        self._store.waiting += 1
        await self._store.released.wait()
        self._store.waiting -= 1
        return await self._claim.mark_reached(events)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def _one_by_one(count: int) -> list[Command]:
    return [schedule(f"order-{n}", n, number=n) for n in range(1, count + 1)]


async def _come_due(rig: Rig, count: int) -> None:
    """Let this many seconds pass, one by one, as far as the worker follows."""
    for _ in range(count):
        await rig.clock.until_rest()
        rig.clock.advance(1)
    await rig.clock.until_rest()


async def test_timers_are_published_while_the_marks_of_others_hang() -> None:
    store = _HangingMarks()
    rig = Rig(store=store)
    await rig.keep(*_one_by_one(4))

    async with rig.running():
        await _come_due(rig, 4)
        published, waiting = rig.fired(), store.waiting
        store.released.set()

    assert published == [["order-1"], ["order-2"], ["order-3"], ["order-4"]]
    assert waiting == 4
    assert {rig.state(f"order-{n}") for n in range(1, 5)} == {TimerState.REACHED}
    assert rig.fired() == published


async def test_no_more_than_a_batch_is_published_and_not_marked() -> None:
    store = _HangingMarks()
    rig = Rig(store=store, batch_size=3)
    await rig.keep(*_one_by_one(5))

    async with rig.running():
        await _come_due(rig, 5)
        before = rig.fired()
        store.released.set()
        await rig.clock.until_rest()

    assert before == [["order-1"], ["order-2"], ["order-3"]]
    assert rig.fired() == [["order-1"], ["order-2"], ["order-3"], ["order-4", "order-5"]]


async def test_no_more_claims_are_open_than_the_store_can_hold() -> None:
    store = _HangingMarks(max_claims=2)
    rig = Rig(store=store)
    await rig.keep(*_one_by_one(5))

    async with rig.running():
        await _come_due(rig, 5)
        before = rig.fired()
        store.released.set()
        await rig.clock.until_rest()

    assert before == [["order-1"], ["order-2"]]
    assert store.most_claims == 2
    assert [name for batch in rig.fired() for name in batch] == [f"order-{n}" for n in range(1, 6)]


async def test_under_backlog_the_next_batch_is_published_while_one_is_marked() -> None:
    store = _HangingMarks()
    rig = Rig(store=store, batch_size=1)
    await rig.keep(*[schedule(f"order-{n}", -9 + n, number=n) for n in range(1, 5)])

    async with rig.running():
        await _until(lambda: len(rig.bus.published) == 2)
        waiting = store.waiting
        store.released.set()
        await rig.clock.until_waits(1)

    assert waiting >= 1
    assert rig.fired() == [["order-1"], ["order-2"], ["order-3"], ["order-4"]]


async def test_what_was_not_confirmed_is_not_hidden_behind_a_mark() -> None:
    store = _HangingMarks()
    rig = Rig(store=store)
    await rig.keep(schedule("good", 0), schedule("bad", 0, number=2), schedule("next", 1, number=3))
    rig.bus.answers = lambda e: Published.REJECTED if e.service_call_id == "bad" else Published.CONFIRMED

    async with rig.running():
        await _until(lambda: store.waiting == 1)
        await _come_due(rig, 2)
        before = rig.fired()
        store.released.set()
        await rig.clock.until_rest()

    assert before == [["bad", "good"]]
    assert rig.fired() == [["bad", "good"], ["bad", "next"]]


async def test_a_timer_rescheduled_before_its_mark_fires_again_at_its_new_time() -> None:
    store = _HangingMarks()
    rig = Rig(store=store)
    await rig.keep(schedule("order-1", 1))

    async with rig.running():
        await _come_due(rig, 1)
        await store.apply([schedule("order-1", 1.5, number=2)], rig.clock.now())
        rig.clock.advance(1)
        await rig.clock.until_rest()
        hidden = rig.fired()
        store.released.set()
        await rig.clock.until_rest()

    # While it is claimed it is not found; its mark wakes the worker.
    assert hidden == [["order-1"]]
    assert [batch[0] for batch in rig.bus.published] == [
        reached("order-1", 1, reached_s=1),
        reached("order-1", 1.5, reached_s=2, generation=2),
    ]
    assert rig.state("order-1") is TimerState.REACHED


async def test_a_cancel_by_command_before_the_mark_stands() -> None:
    store = _HangingMarks()
    rig = Rig(store=store)
    await rig.keep(schedule("order-1", 1))

    async with rig.running():
        await _come_due(rig, 1)
        await store.apply([cancel("order-1", number=2)], rig.clock.now())
        store.released.set()

    assert rig.state("order-1") is TimerState.CANCELLED


async def test_a_cancel_by_request_before_the_mark_is_told_that_it_is_due() -> None:
    store = _HangingMarks()
    rig = Rig(store=store)
    await rig.keep(schedule("order-1", 1))

    async with rig.running():
        await _come_due(rig, 1)
        [decided] = await store.decide([cancel("order-1", number=2)], at(0))
        store.released.set()

    assert decided.outcome is Outcome.DUE
    assert rig.state("order-1") is TimerState.REACHED


async def test_a_mark_that_is_lost_is_repeated_and_published_once() -> None:
    rig = Rig()
    await rig.keep(*_one_by_one(3))
    rig.store.fail("mark_reached", StoreBusy("locked"))

    async with rig.running():
        await _come_due(rig, 4)

    assert rig.fired() == [["order-1"], ["order-2"], ["order-3"]]
    assert {rig.state(f"order-{n}") for n in range(1, 4)} == {TimerState.REACHED}


async def test_it_finishes_the_marks_when_it_is_told_to_stop() -> None:
    store = _HangingMarks()
    rig = Rig(store=store)
    await rig.keep(*_one_by_one(2))

    async with rig.running() as task:
        await _come_due(rig, 2)
        rig.service.stop()
        await rig.clock.until_rest()
        ended_before = task.done()
        store.released.set()

    assert not ended_before
    assert (rig.state("order-1"), rig.state("order-2")) == (TimerState.REACHED, TimerState.REACHED)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_store_that_fails_under_backlog_is_waited_for_and_nothing_fires_twice() -> None:
    rig = Rig(batch_size=1)
    await rig.keep(*[schedule(f"order-{n}", -9 + n, number=n) for n in range(1, 7)])

    async def fail_once() -> None:
        rig.bus.meanwhile = _nothing
        rig.store.fail("claim_due", StoreBusy("locked"), StoreBusy("locked"))

    rig.bus.meanwhile = fail_once

    async with rig.running():
        for count in (1, 2):
            await rig.clock.until_waits(count)
            rig.clock.advance(1)
        await rig.clock.until_waits(3)

    assert sorted(rig.fired()) == [[f"order-{n}"] for n in range(1, 7)]
    assert rig.clock.waits == [0.05, 0.1, POLL_S]


async def test_a_disk_that_fails_in_one_mark_ends_everything_at_once() -> None:
    rig = Rig(batch_size=2)
    await rig.keep(*backlog(200))

    async def fail_in_the_third_batch() -> None:
        await asyncio.sleep(0)
        if len(rig.bus.published) == 3:
            rig.store.fail("mark_reached", StoreFailed("the disk is gone"))

    rig.bus.meanwhile = fail_in_the_third_batch
    with pytest.raises(StoreFailed, match="the disk is gone"):
        async with asyncio.timeout(PATIENCE_S):
            await run_service(rig.service, asyncio.Event())

    # Not more than what was on its way beside the mark.
    assert len(rig.bus.published) <= 4
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("first", [StoreBusy("locked"), StoreFailed("the disk is gone")])
async def test_a_failed_disk_in_one_mark_is_not_hidden_by_a_busy_one_in_another(first: Exception) -> None:
    rig = Rig(batch_size=2)
    await rig.keep(*backlog(200))
    other = StoreFailed("the disk is gone") if isinstance(first, StoreBusy) else StoreBusy("locked")

    async def both_fail() -> None:
        rig.bus.meanwhile = both_publish
        rig.store.fail("mark_reached", first, other)

    async def both_publish() -> None:
        await asyncio.sleep(0)

    async def backlog_begins() -> None:
        rig.bus.meanwhile = both_fail

    rig.bus.meanwhile = backlog_begins
    with pytest.raises(StoreFailed, match="the disk is gone"):
        async with asyncio.timeout(PATIENCE_S):
            await run_service(rig.service, asyncio.Event())


async def test_a_connection_lost_under_backlog_makes_the_worker_wait() -> None:
    rig = Rig(batch_size=2)
    await rig.keep(*backlog(40))

    async def not_again_and_again() -> None:
        assert len(rig.bus.published) < 20, "it publishes without a pause"

    rig.bus.answers = lambda _: Published.CONFIRMED if len(rig.bus.published) <= 3 else Published.DISCONNECTED
    rig.bus.meanwhile = not_again_and_again

    async with rig.running():
        await rig.clock.until_waits(1)
        published = len(rig.bus.published)
        for count in (2, 3, 4):
            rig.clock.advance(1)
            await rig.clock.until_waits(count)

    # The look that lost the connection; then one after each pause.
    assert published <= 5
    assert len(rig.bus.published) == published + 3
    assert rig.clock.waits == [0.05, 0.1, 0.2, 0.4]
