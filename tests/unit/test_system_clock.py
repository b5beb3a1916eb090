"""The machine's clock keeps the promises of the port."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.patience import PATIENCE_S
from timer_service.adapters.system import SystemClock, chance, local_now


def test_now_is_the_present_millisecond_in_utc_and_never_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_767_268_800_123_999_999)

    assert SystemClock().now() == datetime(2026, 1, 1, 12, 0, 0, 123_000, tzinfo=UTC)


def test_a_delay_counts_from_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_767_268_800_123_000_001)

    assert SystemClock().delays_from() == datetime(2026, 1, 1, 12, 0, 0, 124_000, tzinfo=UTC)


def test_now_moves_with_the_wall_clock() -> None:
    before = datetime.now(UTC)

    now = SystemClock().now()

    assert before - timedelta(milliseconds=1) < now <= datetime.now(UTC)
    assert now.tzinfo is UTC


async def test_a_wait_ends_when_its_time_has_passed() -> None:
    started = time.monotonic()

    await SystemClock().wait(0.02, asyncio.Event())

    assert time.monotonic() - started >= 0.019


async def test_a_wait_ends_when_it_is_woken() -> None:
    wake = asyncio.Event()
    waiting = asyncio.ensure_future(SystemClock().wait(3600, wake))
    await asyncio.sleep(0)

    wake.set()

    async with asyncio.timeout(PATIENCE_S):
        await waiting


async def test_a_wait_that_is_woken_before_it_begins_is_over_at_once() -> None:
    wake = asyncio.Event()
    wake.set()

    async with asyncio.timeout(PATIENCE_S):
        await SystemClock().wait(3600, wake)


async def test_a_wait_for_no_time_lets_others_run_and_ends() -> None:
    others = asyncio.ensure_future(asyncio.sleep(0))

    await SystemClock().wait(0, asyncio.Event())

    assert others.done()


async def test_a_wait_can_be_cancelled() -> None:
    waiting = asyncio.ensure_future(SystemClock().wait(3600, asyncio.Event()))
    await asyncio.sleep(0)

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_chance_is_from_0_to_1_and_varies() -> None:
    numbers = [chance() for _ in range(100)]

    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) > 1


def test_local_now_is_in_utc() -> None:
    assert local_now().tzinfo is UTC
