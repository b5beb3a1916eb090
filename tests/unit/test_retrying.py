"""Changes are repeated until the store takes them; it is told once that the store is unwell."""

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.support.fakes import FragileStore
from tests.support.timers import ACME, at, call, reached, schedule
from timer_service.adapters.retrying import RetryingStore
from timer_service.domain.errors import GivenUp, StoreBusy, StoreFailed, StoreFull
from timer_service.domain.timer import Outcome, TimerState
from timer_service.testing import START, ManualClock


class Bench:
    """A fragile store behind a patient one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.inner = FragileStore()
        self.store = RetryingStore(self.inner, clock=self.clock, chance=lambda: 1.0)
        self.waits = 0
        self.store.on_wait = self._note

    def _note(self) -> None:
        self.waits += 1


async def test_a_change_is_repeated_with_growing_waits_until_it_works() -> None:
    bench = Bench()
    bench.inner.fail("apply", StoreBusy("locked"), StoreFull("no space"))

    applying = asyncio.ensure_future(bench.store.apply([schedule("order-1", 60)], START))
    for seconds in (0.05, 0.1):
        await bench.clock.until_rest()
        bench.clock.advance(seconds)

    assert await applying == [Outcome.SCHEDULED]
    assert bench.clock.waits == [0.05, 0.1]
    assert bench.waits == 2


async def test_a_repeated_change_is_made_at_its_own_time() -> None:
    bench = Bench()
    bench.inner.fail("apply", StoreBusy("locked"))

    applying = asyncio.ensure_future(bench.store.apply([schedule("order-1", 60)], START))
    await bench.clock.until_rest()
    bench.clock.advance(1)
    await applying

    assert bench.inner.timers[ACME, call("order-1")].registered_at == at(1)


async def test_only_the_mark_of_a_claim_is_repeated() -> None:
    bench = Bench()
    await bench.store.apply([schedule("order-1", 0)], START)
    bench.inner.calls.clear()
    bench.inner.fail("mark_reached", StoreBusy("locked"))

    async with bench.store.claim_due(START, 10) as claim:
        marking = asyncio.ensure_future(claim.mark_reached([reached("order-1", 0)]))
        await bench.clock.until_rest()
        bench.clock.advance(1)
        marked = await marking

    assert marked == 1
    assert bench.inner.calls == ["claim_due", "mark_reached", "mark_reached"]
    assert bench.inner.timers[ACME, call("order-1")].state is TimerState.REACHED


async def test_a_stop_ends_the_wait_and_the_change_is_given_up() -> None:
    bench = Bench()
    bench.inner.fail("apply", *[StoreFull("no space")] * 3)

    applying = asyncio.ensure_future(bench.store.apply([schedule("order-1", 60)], START))
    await bench.clock.until_rest()
    bench.store.stop()

    with pytest.raises(GivenUp, match="no space"):
        await applying
    assert bench.inner.timers == {}


async def test_what_nobody_can_heal_is_not_repeated() -> None:
    bench = Bench()
    bench.inner.fail("apply", StoreFailed("the disk is gone"))

    with pytest.raises(StoreFailed):
        await bench.store.apply([schedule("order-1", 60)], START)

    assert bench.clock.waits == []


async def test_a_look_that_fails_is_told_once_and_left_to_the_caller() -> None:
    bench = Bench()
    bench.inner.fail("claim_due", StoreBusy("locked"), StoreBusy("locked"))

    with capture_logs() as log:
        for _ in range(2):
            with pytest.raises(StoreBusy):
                async with bench.store.claim_due(START, 10):
                    pass
        problem = bench.store.problem
        async with bench.store.claim_due(START, 10):
            pass

    assert (problem, bench.store.problem) == ("locked", None)
    assert log == [
        {"event": "store.unavailable", "log_level": "warning", "kind": "StoreBusy", "detail": "locked"},
        {"event": "store.recovered", "log_level": "info"},
    ]


async def test_the_store_is_well_again_only_when_nothing_fails_any_more() -> None:
    bench = Bench()
    bench.inner.fail("claim_due", StoreBusy("locked"))
    bench.inner.fail("next_due_at", StoreBusy("locked too"))

    with pytest.raises(StoreBusy):
        async with bench.store.claim_due(START, 10):
            pass
    with pytest.raises(StoreBusy):
        await bench.store.next_due_at(START)
    async with bench.store.claim_due(START, 10):
        pass
    halfway = bench.store.problem
    await bench.store.next_due_at(START)

    assert (halfway, bench.store.problem) == ("locked too", None)
