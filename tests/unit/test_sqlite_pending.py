"""The number of pending timers stays right while they change, also during the count."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import aiosqlite
import pytest

from timer_service.adapters.sqlite.limits import DEFAULT_LIMITS
from timer_service.adapters.sqlite.pending import PendingCount
from timer_service.adapters.sqlite.questions import Questions
from timer_service.adapters.sqlite.statements import COUNT_PENDING


class CountingConnection:
    """A connection that counts ten timers, once it may."""

    def __init__(self) -> None:
        self.counts = 0
        self.is_counting, self.may_end = asyncio.Event(), asyncio.Event()

    async def execute(self, sql: str) -> None:
        pass

    async def execute_fetchall(self, sql: str) -> list[tuple[Any, ...]]:
        if sql == COUNT_PENDING:
            self.counts += 1
            self.is_counting.set()
            await self.may_end.wait()
        return [(10,)]


class Desk:
    def __init__(self) -> None:
        self.connection = CountingConnection()
        connections = [cast("aiosqlite.Connection", self.connection)]
        self.pending = PendingCount(Questions(Path("timers.db"), connections, DEFAULT_LIMITS), asyncio.Lock())

    async def begin(self) -> "asyncio.Future[int]":
        counting = asyncio.ensure_future(self.pending.count())
        await self.connection.is_counting.wait()
        return counting

    def change(self, by: int) -> None:
        with self.pending.changed_by(by):
            pass

    def fail(self, by: int) -> None:
        with suppress(OSError), self.pending.changed_by(by):
            raise OSError("nobody knows whether it was committed")


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_what_changes_during_a_count_is_counted_too(desk: Desk) -> None:
    counting = await desk.begin()
    desk.change(3)
    desk.change(-1)
    desk.connection.may_end.set()

    assert await counting == 12
    desk.change(5)
    assert (await desk.pending.count(), desk.connection.counts) == (17, 1)


async def test_after_a_change_of_unknown_outcome_all_is_counted_again(desk: Desk) -> None:
    desk.connection.may_end.set()
    await desk.pending.count()
    desk.fail(3)

    assert not desk.pending.is_known
    assert (await desk.pending.count(), desk.connection.counts) == (10, 2)


async def test_a_count_that_a_change_of_unknown_outcome_falls_into_is_not_kept(desk: Desk) -> None:
    counting = await desk.begin()
    desk.fail(3)
    desk.connection.may_end.set()

    assert await counting == 10
    assert not desk.pending.is_known
