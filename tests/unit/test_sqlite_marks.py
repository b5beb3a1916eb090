"""Marks that wait for the writer together share one transaction, and fail together where it fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, GLOBEX, call, reached, schedule
from timer_service.adapters.sqlite.marks import Changes, Marks
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.callback import Sink
from timer_service.domain.errors import StoreFull
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import START


class _Transactions:
    """Counts transactions; each begins when the test lets it, and may be made to fail."""

    def __init__(self, writer: aiosqlite.Connection) -> None:
        self._writer = writer
        self.begun = 0
        self.free = asyncio.Event()
        self.error: Exception | None = None
        self.pending = 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Changes]:
        await self.free.wait()
        self.begun += 1
        await self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield self
        except BaseException:
            await self._writer.execute("ROLLBACK")
            raise
        error, self.error = self.error, None
        await self._writer.execute("ROLLBACK" if error else "COMMIT")
        if error:
            raise error


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteTimerStore]:
    async with open_sqlite_store(tmp_path / "timers.db", lambda: START) as opened:
        await opened.apply([schedule(f"order-{n}", 0, number=n) for n in range(1, 5)], START)
        yield opened


async def _state(store: SqliteTimerStore, number: int) -> TimerState:
    timer = await store.get(ACME, call(f"order-{number}"))
    assert timer is not None
    return timer.state


async def _rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_of_the_marks_that_wait_together_learns_its_own_count(store: SqliteTimerStore) -> None:
    transactions = _Transactions(store._writer.connection)
    marks = Marks(store._writer.connection, transactions.begin)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(marks.mark([reached("order-1", 0)])),
            group.create_task(marks.mark([reached("order-2", 0), reached("order-3", 0, generation=7)])),
            group.create_task(marks.mark([reached("order-4", 0)])),
        ]
        await _rest()
        transactions.free.set()

    assert [task.result() for task in tasks] == [1, 1, 1]
    # Once more, because one was changed: that says whose the others are.
    assert (transactions.begun, transactions.pending) == (2, -3)
    assert [await _state(store, number) for number in (1, 2, 3, 4)] == [
        TimerState.REACHED,
        TimerState.REACHED,
        TimerState.SCHEDULED,
        TimerState.REACHED,
    ]


async def test_timers_that_differ_in_the_service_call_alone_are_marked_by_the_same_rule(
    store: SqliteTimerStore,
) -> None:
    moved = schedule("order-2", 60, number=6)
    await store.apply([schedule("order-1", 0, tenant=GLOBEX, number=5), moved], START)

    marked = await store.marks.mark([reached(f"order-{number}", 0) for number in (1, 2, 3, 3)])

    assert marked == 2
    assert [await _state(store, number) for number in (1, 2, 3, 4)] == [
        TimerState.REACHED,
        TimerState.SCHEDULED,
        TimerState.REACHED,
        TimerState.SCHEDULED,
    ]
    assert [timer.state for timer in await store.list_timers(TimerQuery(GLOBEX))] == [TimerState.SCHEDULED]


async def test_many_marks_that_wait_together_take_no_more_statements_than_one(
    store: SqliteTimerStore,
) -> None:
    transactions = _Transactions(store._writer.connection)
    marks = Marks(store._writer.connection, transactions.begin)
    statements: list[str] = []
    await store._writer.connection.set_trace_callback(statements.append)
    transactions.free.set()

    await marks.mark([reached("order-1", 0)], Sink.HTTP)
    alone = len(statements)
    transactions.free.clear()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for number in (2, 3, 4):
            group.create_task(marks.mark([reached(f"order-{number}", 0, reached_s=number)], Sink.HTTP))
        await _rest()
        transactions.free.set()

    assert transactions.begun == 2
    assert len(statements) - alone == alone


async def test_a_group_that_fails_marks_nothing_and_each_of_it_can_be_tried_again(
    store: SqliteTimerStore,
) -> None:
    transactions = _Transactions(store._writer.connection)
    transactions.error = StoreFull("no space")
    marks = Marks(store._writer.connection, transactions.begin)
    events = [[reached("order-1", 0)], [reached("order-2", 0)]]
    transactions.free.set()

    async with asyncio.timeout(PATIENCE_S):
        first = await asyncio.gather(*map(marks.mark, events), return_exceptions=True)
        states = [await _state(store, number) for number in (1, 2)]
        again = await asyncio.gather(*map(marks.mark, events))

    assert [str(error) for error in first] == ["no space", "no space"]
    assert states == [TimerState.SCHEDULED, TimerState.SCHEDULED]
    assert again == [1, 1]


async def test_one_that_is_cancelled_leaves_its_group_to_the_next(store: SqliteTimerStore) -> None:
    transactions = _Transactions(store._writer.connection)
    marks = Marks(store._writer.connection, transactions.begin)

    async with asyncio.timeout(PATIENCE_S):
        first = asyncio.ensure_future(marks.mark([reached("order-1", 0)]))
        second = asyncio.ensure_future(marks.mark([reached("order-2", 0)]))
        await _rest()
        first.cancel()
        await asyncio.wait({first})
        transactions.free.set()
        marked = await second

    assert marked == 1
    assert await _state(store, 2) is TimerState.REACHED


async def test_a_mark_that_comes_later_has_a_transaction_of_its_own(store: SqliteTimerStore) -> None:
    transactions = _Transactions(store._writer.connection)
    transactions.free.set()
    marks = Marks(store._writer.connection, transactions.begin)

    await marks.mark([reached("order-1", 0)])
    await marks.mark([reached("order-2", 0)])

    assert transactions.begun == 2


async def test_a_callback_waits_for_no_mark_that_gathers_and_takes_it_along(store: SqliteTimerStore) -> None:
    transactions = _Transactions(store._writer.connection)
    transactions.free.set()
    marks = Marks(store._writer.connection, transactions.begin, gather_s=3_600)
    gathering = asyncio.ensure_future(marks.mark([reached("order-1", 0)]))
    await _rest()

    async with asyncio.timeout(PATIENCE_S):
        marked = await marks.mark([reached("order-2", 0)], Sink.HTTP)

    gathering.cancel()
    await asyncio.wait({gathering})
    assert (marked, transactions.begun) == (1, 1)
    assert [await _state(store, number) for number in (1, 2)] == [TimerState.REACHED, TimerState.REACHED]
