"""How long a loop that fires timers waits: for what is due next, and so that a backlog holds nobody up."""

import asyncio
from dataclasses import replace

import pytest

from tests.support.rig import Rig
from tests.support.timers import at
from timer_service.right_of_way import RightOfWay
from timer_service.service.pauses import MAX_MADE_WAY, MAX_WAY_S, BatchTimes, Pauses
from timer_service.waiting import owned

PAUSE_S = 0.001
NEXT_DUE_S = 0.01


def pauses(rig: Rig, *, is_expected: bool = False) -> Pauses:
    return Pauses(rig.around, poll_interval_s=5.0, is_expected=is_expected)


async def nothing() -> None:
    """Mark nothing."""


def at_once() -> asyncio.Event:
    """End each wait as soon as it was asked for."""
    event = asyncio.Event()
    event.set()
    return event


async def test_a_batch_that_is_over_before_the_next_due_time_begins_at_once() -> None:
    rig = Rig()

    await pauses(rig).make_way(at(NEXT_DUE_S), BatchTimes(PAUSE_S, NEXT_DUE_S - 0.001), nothing, at_once())

    assert rig.clock.waits == []


async def test_a_batch_that_is_not_over_by_then_lets_it_go_first() -> None:
    rig = Rig()

    await pauses(rig).make_way(at(NEXT_DUE_S), BatchTimes(PAUSE_S, NEXT_DUE_S), nothing, at_once())

    assert rig.clock.waits == [NEXT_DUE_S]


async def test_what_is_left_is_counted_once_the_batch_before_is_marked() -> None:
    rig = Rig()

    async def mark() -> None:
        rig.clock.advance(0.006)

    await pauses(rig).make_way(at(NEXT_DUE_S), BatchTimes(PAUSE_S, 0.005), mark, at_once())

    assert [round(wait_s, 6) for wait_s in rig.clock.waits] == [0.004]


async def test_a_backlog_makes_way_only_so_often_in_a_row() -> None:
    rig = Rig()
    loop, batch = pauses(rig), BatchTimes(PAUSE_S, 1.0)
    waited = list[int]()

    for _ in range(MAX_MADE_WAY + 2):
        await loop.make_way(at(0), batch, nothing, at_once())
        waited.append(len(rig.clock.waits))

    assert waited == [*range(1, MAX_MADE_WAY + 1), MAX_MADE_WAY, MAX_MADE_WAY + 1]


async def test_nobody_waits_for_what_is_due_much_later() -> None:
    rig = Rig()

    await pauses(rig).make_way(at(MAX_WAY_S + 0.001), BatchTimes(PAUSE_S, 1.0), nothing, at_once())

    assert rig.clock.waits == []


class _AboutToBeTaken(RightOfWay):
    """A right of way that a timer on the bus takes in so many seconds, or up to a millisecond later."""

    @property
    def expected_in_s(self) -> float:
        return NEXT_DUE_S


async def test_what_is_due_on_the_bus_counts_too_and_no_wait_ends_before_it() -> None:
    rig = Rig()
    around = replace(rig.around, right_of_way=_AboutToBeTaken())

    await Pauses(around, poll_interval_s=5.0, is_expected=False).make_way(
        None, BatchTimes(PAUSE_S, NEXT_DUE_S + 0.002), nothing, at_once()
    )

    # By a clock that counts from the last whole millisecond, this is up to one less.
    assert [round(wait_s, 6) for wait_s in rig.clock.waits] == [NEXT_DUE_S + 0.002]


def test_one_quick_batch_does_not_mean_that_the_next_is_quick() -> None:
    batch = BatchTimes(PAUSE_S)

    batch.took(0.01)
    batch.took(0.001)
    afterwards = batch.takes_s
    batch.took(0.02)

    assert (round(afterwards, 6), batch.takes_s) == (0.009, 0.02)


@pytest.mark.parametrize("is_expected", [True, False])
async def test_only_the_bus_says_to_pages_and_callbacks_when_it_looks_again(*, is_expected: bool) -> None:
    rig = Rig()
    ways: list[RightOfWay] = [rig.around.right_of_way, rig.around.before_callbacks]

    async with owned(pauses(rig, is_expected=is_expected).sleep(at(3), asyncio.Event())):
        await rig.clock.until_waits(1)
        told = [way.expected_in_s <= 3 for way in ways]

    assert told == [is_expected, is_expected]
    assert [way.expected_in_s for way in ways] == [float("inf")] * 2
