"""Alarms ring once, and leave nothing behind."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from timer_service.adapters.alarm import Alarm, PreciseAlarm, TimerCalls, loop_alarm, precise_alarm

ALARMS = [loop_alarm, precise_alarm]


async def rung(make: Alarm, seconds: float) -> float:
    """Return how long it took until the alarm rang."""
    bell = asyncio.Event()
    started = time.monotonic()
    with make(seconds, bell.set):
        async with asyncio.timeout(PATIENCE_S):
            await bell.wait()
    return time.monotonic() - started


@pytest.mark.parametrize("make", ALARMS)
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.0004])
async def test_an_alarm_of_no_time_rings_too(make: Alarm, seconds: float) -> None:
    assert await rung(make, seconds) >= seconds


async def test_a_precise_alarm_is_not_early() -> None:
    assert await rung(precise_alarm, 0.0123) >= 0.0123


@pytest.mark.parametrize("make", ALARMS)
async def test_an_alarm_rings_once(make: Alarm) -> None:
    rings: list[int] = []

    with make(0.0, lambda: rings.append(1)):
        while not rings:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)

    assert rings == [1]


@pytest.mark.parametrize("make", ALARMS)
async def test_an_alarm_does_not_ring_after_its_block(make: Alarm) -> None:
    rings: list[int] = []

    with make(0.0, lambda: rings.append(1)):
        pass
    await rung(make, 0.001)

    assert rings == []


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files by /proc")
async def test_no_file_stays_open() -> None:
    def open_files() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = open_files()

    for _ in range(50):
        await rung(precise_alarm, 0.0)

    assert open_files() <= before


@pytest.mark.parametrize(
    "calls", [None, (lambda *_: -1, lambda *_: -1)], ids=["no such system", "no file to give"]
)
async def test_without_a_timer_of_the_system_the_loop_rings(calls: TimerCalls | None) -> None:
    assert await rung(PreciseAlarm(calls), 0.0) >= 0
