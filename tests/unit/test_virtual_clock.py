"""The virtual clock alone: it stands, moves forward only, and lets nobody wait for it in vain."""

import asyncio
from datetime import timedelta

import pytest

from tests.support.patience import PATIENCE_S
from timer_service.testing import START
from timer_service.testing.virtual_clock import VirtualClock

HOUR = timedelta(hours=1)


async def test_it_shows_what_it_was_set_to_truncated_to_the_millisecond() -> None:
    clock = VirtualClock(START + timedelta(microseconds=1999))

    assert clock.now() == START + timedelta(milliseconds=1)


async def test_who_waits_wakes_when_time_moves() -> None:
    clock, wake = VirtualClock(), asyncio.Event()
    waiting = [asyncio.ensure_future(clock.wait(PATIENCE_S * 10, wake)) for _ in range(2)]
    await asyncio.sleep(0)

    clock.move_to(START + HOUR)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*waiting)
    assert clock.now() == START + HOUR


async def test_who_waits_wakes_for_the_event_while_time_stands() -> None:
    clock, wake = VirtualClock(), asyncio.Event()
    waiting = asyncio.ensure_future(clock.wait(PATIENCE_S * 10, wake))
    await asyncio.sleep(0)

    wake.set()

    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert clock.now() == START


@pytest.mark.parametrize("seconds", [-1, 0, 0.001])
async def test_a_pause_ends_in_real_time_while_virtual_time_stands(seconds: float) -> None:
    clock = VirtualClock()

    async with asyncio.timeout(PATIENCE_S):
        await clock.wait(seconds, asyncio.Event())

    assert clock.now() == START


async def test_time_does_not_go_back() -> None:
    clock = VirtualClock()

    with pytest.raises(ValueError, match="time cannot go back"):
        clock.move_to(START - HOUR)

    assert clock.now() == START
