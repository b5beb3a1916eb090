"""Waiting for the first of several things: what is started has an owner, no critical error is lost."""

import asyncio
from contextlib import suppress

import pytest

from tests.support.patience import PATIENCE_S
from timer_service.domain.errors import StoreBusy, StoreFailed
from timer_service.waiting import Over, first_critical, first_done, owned, unless


async def _forever(log: list[str]) -> str:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        log.append("ended")
    return "never"


async def _answer(text: str) -> str:
    await asyncio.sleep(0)
    return text


async def test_a_step_that_is_done_first_gives_its_result() -> None:
    assert await unless(asyncio.Event(), _answer("done")) == "done"


async def test_a_step_is_ended_and_waited_for_once_the_event_is_set() -> None:
    over, log = asyncio.Event(), list[str]()
    asyncio.get_running_loop().call_soon(over.set)

    with pytest.raises(Over):
        await unless(over, _forever(log))

    assert log == ["ended"]


async def test_what_a_step_has_taken_is_not_dropped_because_the_event_is_set_too() -> None:
    over = asyncio.Event()

    async def take() -> str:
        over.set()
        return "taken"

    assert await unless(over, take()) == "taken"


async def test_the_error_of_a_step_is_passed_on() -> None:
    async def fail() -> None:
        raise StoreBusy("locked")

    with pytest.raises(StoreBusy, match="locked"):
        await unless(asyncio.Event(), fail())


async def test_nothing_outlives_its_owner_that_is_cancelled() -> None:
    log = list[str]()
    owner = asyncio.ensure_future(unless(asyncio.Event(), _forever(log)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner

    assert log == ["ended"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_owner_that_is_cancelled_twice_still_waits_for_its_tasks() -> None:
    let_go, log = asyncio.Event(), list[str]()

    async def reluctant() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with suppress(asyncio.CancelledError):
                await let_go.wait()
            log.append("ended")

    owner = asyncio.ensure_future(unless(asyncio.Event(), reluctant()))
    for _ in range(2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        owner.cancel()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await owner

    assert log == ["ended"]


async def test_a_step_that_swallows_its_cancellation_is_cancelled_again() -> None:
    swallowed = 0

    async def deaf() -> None:
        nonlocal swallowed
        while swallowed < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1

    async with asyncio.timeout(PATIENCE_S):
        async with owned(deaf(), cancel_again_s=0.001):
            await asyncio.sleep(0)

    assert swallowed == 3


async def test_a_critical_error_that_comes_while_a_task_is_ended_is_not_swallowed() -> None:
    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ExceptionGroup("both", [StoreBusy("locked"), StoreFailed("the disk is gone")])

    with pytest.raises(StoreFailed, match="the disk is gone"):
        async with owned(fails_at_its_end(), _answer("done")) as (_, quick):
            await first_done(quick)


def test_of_several_errors_the_critical_one_is_found_however_deep() -> None:
    critical = StoreFailed("the disk is gone")
    inner = ExceptionGroup("inner", [StoreBusy("locked"), critical])

    assert first_critical(BaseExceptionGroup("outer", [StoreBusy("locked"), inner])) is critical
    assert first_critical(ExceptionGroup("outer", [StoreBusy("locked")])) is None
    assert first_critical(critical) is critical
    assert first_critical(None) is None
