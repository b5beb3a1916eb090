"""Who goes first: what can wait lets all that is urgent end, and loses nothing of its own by that."""

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.support.patience import PATIENCE_S
from timer_service.domain.errors import StoreBusy
from timer_service.right_of_way import RightOfWay, TasksInTurns
from timer_service.waiting import owned


async def test_what_can_wait_lets_all_that_is_urgent_end() -> None:
    way = RightOfWay()

    with way.taken():
        with way.taken():
            waiting = asyncio.ensure_future(way.in_line(PATIENCE_S))
            await _turns()
        await _turns()
        was_waiting = not waiting.done()

    assert was_waiting
    await waiting


async def test_after_each_urgent_thing_one_goes_on_however_soon_the_next_one_follows() -> None:
    way = RightOfWay()

    with way.taken():
        waiting = [asyncio.ensure_future(way.in_line(PATIENCE_S)) for _ in range(3)]
        await _turns()
    for expected in (1, 2, 3):
        with way.taken():
            await _turns()
            assert [each.done() for each in waiting] == [n < expected for n in range(3)]


async def test_of_those_who_wait_one_goes_on_in_each_round_of_the_loop() -> None:
    way = RightOfWay()
    with way.taken():
        waiting = [asyncio.ensure_future(way.in_line(PATIENCE_S)) for _ in range(4)]
        await _turns()

    done = [0]
    while done[-1] < 4:
        await asyncio.sleep(0)
        done.append(sum(each.done() for each in waiting))

    assert max(after - before for before, after in itertools.pairwise(done)) == 1


async def test_shortly_before_something_becomes_urgent_nobody_in_line_goes_on() -> None:
    way = RightOfWay()

    with way.expected(0):
        waiting = [asyncio.ensure_future(way.in_line(PATIENCE_S)) for _ in range(2)]
        await _turns()
        was_free = way.is_free()
        were_done = [each.done() for each in waiting]
    with way.taken():
        await _turns()
        were_done += [each.done() for each in waiting]

    assert not was_free
    assert were_done == [False] * 4
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)


async def test_long_before_something_becomes_urgent_all_goes_on() -> None:
    way = RightOfWay()

    with way.expected(PATIENCE_S):
        assert way.is_free()
        await asyncio.wait_for(way.in_line(PATIENCE_S), PATIENCE_S)


async def test_what_is_expected_and_does_not_come_is_not_waited_for_long() -> None:
    way = RightOfWay()

    with way.expected(0):
        await asyncio.wait_for(way.in_line(0.001), PATIENCE_S)


async def test_patience_has_an_end() -> None:
    way = RightOfWay()

    with way.taken():
        # From the moment at which it became urgent: whoever comes later has waited enough, too.
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await way.in_line(0.001)


async def test_where_nothing_has_been_urgent_for_a_while_steps_need_no_turn() -> None:
    way, rounds = RightOfWay(), list[int]()

    async with _rounds() as now, asyncio.TaskGroup() as group:
        for _ in range(5):
            TasksInTurns(group, way, PATIENCE_S).create_task(
                _noted(rounds, now), name="step", one_of_many=True
            )

    assert len(set(rounds)) == 1


async def test_steps_beside_what_is_urgent_now_and_then_are_taken_one_in_each_round() -> None:
    way, rounds = RightOfWay(quiet_s=PATIENCE_S), list[int]()
    with way.taken():
        pass

    async with _rounds() as now, asyncio.TaskGroup() as group:
        for _ in range(5):
            TasksInTurns(group, way, PATIENCE_S).create_task(
                _noted(rounds, now), name="step", one_of_many=True
            )

    assert len(set(rounds)) == 5


@pytest.mark.parametrize("one_of_many", [False, True])
async def test_every_step_of_what_can_wait_lets_what_is_urgent_end(*, one_of_many: bool) -> None:
    way, steps = RightOfWay(), list[str]()
    goes_on = asyncio.Event()

    async def work() -> str:
        steps.append("begun")
        await goes_on.wait()
        steps.append("gone on")
        return "done"

    async with asyncio.TaskGroup() as group:
        tasks = TasksInTurns(group, way, PATIENCE_S)
        task = tasks.create_task(work(), name="work", one_of_many=one_of_many)
        with way.taken():
            await _turns()
            assert steps == []
        await _turns()
        with way.taken():
            goes_on.set()
            await _turns()
            assert steps == ["begun"]

    assert task.result() == "done"


async def test_a_step_that_has_waited_long_enough_is_taken_beside_what_is_urgent() -> None:
    way = RightOfWay()

    with way.taken():
        async with asyncio.TaskGroup() as group:
            task = TasksInTurns(group, way, 0.001).create_task(_answer("taken"), name="work")

        assert task.result() == "taken"


async def test_an_error_of_what_it_waits_for_reaches_the_work() -> None:
    way = RightOfWay()

    async def work() -> str:
        try:
            await _failing()
        except StoreBusy as error:
            return str(error)
        return "no error"

    async def _failing() -> None:
        await asyncio.sleep(0)
        raise StoreBusy("locked")

    async with asyncio.TaskGroup() as group:
        task = TasksInTurns(group, way, PATIENCE_S).create_task(work(), name="work")

    assert task.result() == "locked"


@pytest.mark.parametrize("one_of_many", [False, True])
@pytest.mark.parametrize("waits_for", ["its turn", "something else"])
async def test_work_that_is_cancelled_while_it_waits_tidies_up(waits_for: str, *, one_of_many: bool) -> None:
    way, tidy, never = RightOfWay(), list[bool](), asyncio.Event()

    async def work() -> None:
        try:
            await (asyncio.sleep(0) if waits_for == "its turn" else never.wait())
        finally:
            tidy.append(True)

    async with asyncio.TaskGroup() as group:
        tasks = TasksInTurns(group, way, PATIENCE_S)
        task = tasks.create_task(work(), name="work", one_of_many=one_of_many)
        await asyncio.sleep(0)
        with way.taken():
            await _turns()
            task.cancel()
            await _turns()

    assert task.cancelled()
    assert tidy == [True]


async def test_a_time_limit_holds_while_the_work_waits_for_its_turn() -> None:
    way = RightOfWay()

    async def work() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(0)
                return "went on"
        except TimeoutError:
            return "too late"

    async with asyncio.TaskGroup() as group:
        task = TasksInTurns(group, way, PATIENCE_S).create_task(work(), name="work")
        await asyncio.sleep(0)
        with way.taken():
            while not task.done():
                await asyncio.sleep(0)

    assert task.result() == "too late"


async def test_work_that_ends_before_its_first_step_is_closed() -> None:
    async def work() -> None:
        raise AssertionError

    begun = work()
    async with asyncio.TaskGroup() as group:
        TasksInTurns(group, RightOfWay(), PATIENCE_S).create_task(begun, name="work").cancel()

    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


async def _answer(text: str) -> str:
    await asyncio.sleep(0)
    return text


async def _noted(rounds: list[int], now: Callable[[], int]) -> None:
    rounds.append(now())


@asynccontextmanager
async def _rounds() -> AsyncIterator[Callable[[], int]]:
    """Count the rounds of the event loop."""
    count = 0

    async def counting() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    async with owned(counting()):
        yield lambda: count


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
