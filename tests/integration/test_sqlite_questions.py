"""What questions to the SQLite store cost, and that they hold up neither tenants nor writes nor the log."""

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.sqlite import Hook
from tests.support.steps import counted
from tests.support.timers import ACME, GLOBEX, at, call, correlation, schedule
from timer_service.adapters.sqlite.limits import BUSY_TIMEOUT_MS, SqliteLimits
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.questions import ANSWERERS, Questions
from timer_service.adapters.sqlite.statements import FIX_THE_MOMENT
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.errors import StoreBusy, StoreFailed
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import START

DEEP = 20_000
LIMIT = 100
FIRST_DUE = datetime(2030, 1, 1, tzinfo=UTC)

# `:apart` 0 gives all timers one due time, 1 gives each its own. Every timer belongs to one request.
FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count - 1)
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  correlation_id, reached_at, stream_created_us, stream_sequence, pending_due_ms)
SELECT 'acme', printf('order-%06d', n), :state,
  strftime('%Y-%m-%dT%H:%M:%S.000Z', 1893456000 + n * :apart, 'unixepoch'), 1, '2025-01-01T00:00:00.000Z',
  'request-1', CASE :state WHEN 'Reached' THEN '2025-01-01T00:00:00.000Z' END, 1, n,
  CASE :state WHEN 'Scheduled' THEN (1893456000 + n * :apart) * 1000 END
FROM numbers
"""
# It reads the table and never ends.
ENDLESS = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers)
SELECT count(*) FROM numbers, (SELECT count(*) FROM timer_schedules)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timers.db"


@asynccontextmanager
async def opened(path: Path, **limits: Any) -> AsyncIterator[SqliteTimerStore]:
    async with open_sqlite_store(path, lambda: START, limits=SqliteLimits(**limits)) as store:
        yield store


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteTimerStore]:
    async with opened(path) as it:
        yield it


def filled(path: Path, state: TimerState, apart: int) -> Path:
    async def make() -> None:
        async with open_sqlite_store(path, lambda: START) as store:
            values = {"count": DEEP, "state": state.value, "apart": apart}
            await store._writer.connection.execute(FILL, values)

    asyncio.run(make())
    return path


@pytest.fixture(scope="module", params=[0, 1], ids=["one due time", "a due time each"])
def deep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a file with many reached timers of one tenant and one request, and how far apart they are."""
    path = tmp_path_factory.mktemp("deep") / "timers.db"
    return filled(path, TimerState.REACHED, request.param), request.param


@pytest.fixture(scope="module", params=[0, 1], ids=["one due time", "a due time each"])
def deep_pending(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """Return the same with pending timers."""
    path = tmp_path_factory.mktemp("deep_pending") / "timers.db"
    return filled(path, TimerState.SCHEDULED, request.param), request.param


@pytest.mark.parametrize(
    "query",
    [
        TimerQuery(ACME, limit=LIMIT),
        TimerQuery(ACME, state=TimerState.REACHED, limit=LIMIT),
        TimerQuery(ACME, correlation_id=correlation("request-1"), limit=LIMIT),
        TimerQuery(ACME, due_from=FIRST_DUE, limit=LIMIT),
        TimerQuery(ACME, due_from=FIRST_DUE, correlation_id=correlation("request-1"), limit=LIMIT),
    ],
    ids=["all", "by state", "by correlation", "from a due time", "by correlation from a due time"],
)
async def test_the_first_page_and_the_last_cost_the_same(deep: tuple[Path, int], query: TimerQuery) -> None:
    await check_first_and_last_page(*deep, query)


@pytest.mark.parametrize(
    "query",
    [
        TimerQuery(ACME, limit=LIMIT),
        TimerQuery(ACME, state=TimerState.SCHEDULED, limit=LIMIT),
        TimerQuery(ACME, due_from=FIRST_DUE, limit=LIMIT),
    ],
    ids=["all", "by state", "from a due time"],
)
async def test_so_do_those_of_pending_timers(deep_pending: tuple[Path, int], query: TimerQuery) -> None:
    await check_first_and_last_page(*deep_pending, query)


async def check_first_and_last_page(path: Path, apart: int, query: TimerQuery) -> None:
    last = DEEP - LIMIT - 1
    after = (FIRST_DUE + timedelta(seconds=last * apart), call(f"order-{last:06}"))
    async with open_sqlite_store(path, lambda: START) as store:
        async with counted(*store._questions._connections) as first_steps:
            first_page = await store.list_timers(query)
        async with counted(*store._questions._connections) as last_steps:
            last_page = await store.list_timers(replace(query, after=after))

    assert [timer.service_call_id for timer in first_page] == [f"order-{n:06}" for n in range(LIMIT)]
    assert [timer.service_call_id for timer in last_page] == [
        f"order-{n:06}" for n in range(last + 1, last + 1 + LIMIT)
    ]
    assert 0 < last_steps[0] <= 1.5 * first_steps[0]


async def test_counting_passes_pending_timers_only(deep: tuple[Path, int], tmp_path: Path) -> None:
    path = tmp_path / "timers.db"
    shutil.copyfile(deep[0], path)
    async with open_sqlite_store(path, lambda: START) as store:
        await store.apply([schedule(f"waiting-{n}", 60, number=n) for n in range(10)], at(0))
        async with counted(*store._questions._connections) as steps:
            counts = await store.count(at(0))

    assert counts.pending == 10
    assert steps[0] < 500


# The time limit


async def test_a_question_that_takes_too_long_is_interrupted_and_told_to_ask_again(path: Path) -> None:
    async with opened(path, question_timeout_s=PATIENCE_S) as store:
        hasty = Questions(path, store._questions._connections, SqliteLimits(question_timeout_s=0.5))
        for _ in range(2 * ANSWERERS):
            with pytest.raises(StoreBusy) as caught:
                await hasty.ask(ACME, ENDLESS)

        assert str(caught.value) == "a query took longer than 0.5 s"
        assert await store.get(ACME, call("order-1")) is None
        assert (await store.count(at(0))).pending == 0


async def test_a_question_that_begins_after_its_time_holds_up_no_other(path: Path) -> None:
    async with opened(path, question_timeout_s=PATIENCE_S) as store:
        hasty = Questions(path, store._questions._connections, SqliteLimits(question_timeout_s=0.1))
        gate = threading.Event()
        for connection in hasty._connections:  # Each is busy, so that nothing begins before its time is over.
            connection._tx.put_nowait((asyncio.get_running_loop().create_future(), gate.wait))
        with pytest.raises(StoreBusy):
            await hasty.ask(ACME, ENDLESS)

        gate.set()
        hasty._timeout_s = PATIENCE_S
        answers = [await hasty.ask(ACME, "SELECT 7") for _ in range(ANSWERERS)]

    assert answers == [[(7,)]] * ANSWERERS


async def test_one_tenants_endless_questions_hold_up_no_other_tenant(path: Path) -> None:
    async with opened(path, question_timeout_s=PATIENCE_S) as store:
        await store.apply([schedule("mine", tenant=GLOBEX)], at(0))
        endless = [asyncio.ensure_future(store._questions.ask(ACME, ENDLESS)) for _ in range(20)]
        await asyncio.sleep(0)

        found = await store.get(GLOBEX, call("mine"))
        counts = await store.count(at(0))
        for question in endless:
            question.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

        assert found is not None
        assert counts.pending == 1
        assert await store.get(ACME, call("mine")) is None
        assert dict(store._questions._shares) == {}


async def test_a_tenant_that_never_stops_asking_has_one_connection_at_a_time(store: SqliteTimerStore) -> None:
    at_once: list[int] = []
    asking = 0

    async def ask(again: int) -> None:
        nonlocal asking
        async with store._questions.asking(ACME) as connection:
            asking += 1
            at_once.append(asking)
            # The next one comes while one asks and another waits.
            following = asyncio.ensure_future(ask(again - 1)) if again else None
            await connection.execute_fetchall("SELECT 1")
            asking -= 1
        if following is not None:
            await following

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(ask(10) for _ in range(2 * ANSWERERS)))

    assert set(at_once) == {1}
    assert dict(store._questions._shares) == {}


# Counting beside writing


async def test_a_long_count_holds_up_no_command_and_counts_it_all_the_same(store: SqliteTimerStore) -> None:
    await store.apply([schedule(f"order-{n}", 60, number=n) for n in range(1_000)], at(0))
    counting, go_on = threading.Event(), threading.Event()

    def wait() -> int:
        counting.set()
        go_on.wait(60)
        return 0

    for connection in store._questions._connections:
        await connection.set_progress_handler(wait, 2_000)  # Only a count of everything takes so many steps.
    count = asyncio.ensure_future(store.count(at(0)))
    await asyncio.to_thread(counting.wait, 60)
    await store.apply([schedule("another", 60)], at(0))
    go_on.set()

    assert (await count).pending == 1_001
    assert (await store.count(at(0))).pending == 1_001


async def test_a_count_that_ends_as_soon_as_its_moment_is_fixed_leaves_nothing_begun(path: Path) -> None:
    """A connection that stayed in its transaction would answer as of that moment forever."""
    hook = Hook()

    async def cancel(sql: str) -> None:
        if sql == FIX_THE_MOMENT:
            hook.after = nothing
            raise asyncio.CancelledError

    async with open_sqlite_store(path, lambda: START, driver=hook.driver) as store:
        nothing, hook.after = hook.after, cancel
        with pytest.raises(asyncio.CancelledError):
            await store.count(at(0))
        await store.apply([schedule("order-1", 60)], at(0))
        found = await store.get(ACME, call("order-1"))
        counts = await store.count(at(0))

    assert found is not None
    assert counts.pending == 1


async def test_a_count_during_which_a_commit_was_left_in_doubt_is_made_again(path: Path) -> None:
    hook = Hook()
    async with open_sqlite_store(path, lambda: START, driver=hook.driver) as store:
        await _count_beside_a_commit_in_doubt(store, hook)


async def _count_beside_a_commit_in_doubt(store: SqliteTimerStore, hook: Hook) -> None:
    await store.apply([schedule(f"order-{n}", 60, number=n) for n in range(1_000)], at(0))
    counting, go_on = threading.Event(), threading.Event()

    def wait() -> int:
        counting.set()
        go_on.wait(60)
        return 0

    async def in_doubt(sql: str) -> None:
        if sql == "COMMIT":
            hook.after = settled
            raise sqlite3.OperationalError("database is locked")

    settled = hook.after

    for connection in store._questions._connections:
        await connection.set_progress_handler(wait, 2_000)
    count = asyncio.ensure_future(store.count(at(0)))
    await asyncio.to_thread(counting.wait, 60)
    hook.after = in_doubt
    with pytest.raises(StoreFailed):
        await store.apply([schedule("another", 60)], at(0))
    go_on.set()

    assert (await count).pending == 1_000
    assert not store._pending.is_known
    assert (await store.count(at(0))).pending == 1_001


async def test_a_transaction_that_failed_before_its_commit_needs_no_new_count(
    store: SqliteTimerStore,
) -> None:
    await store.apply([schedule("order-1", 60)], at(0))
    await store.count(at(0))
    with pytest.raises(StoreFailed):
        await store.apply([schedule("order-2", number=2), schedule("x" * 256, number=3)], at(0))

    assert store._pending.is_known
    assert (await store.count(at(0))).pending == 1


# The log


async def test_the_log_stays_bounded_while_somebody_always_reads(path: Path) -> None:
    limit = 1_000_000
    limits = {
        "max_log_bytes": limit,
        "log_growth_bytes": limit // 4,
        # A question that has not begun when it is interrupted goes on: the second time must find it at work.
        "hold_timeout_s": 0.1,
        "question_timeout_s": PATIENCE_S,
    }
    async with opened(path, **limits) as store:
        await store._writer.connection.execute("PRAGMA wal_autocheckpoint = 100")
        largest, refused, over = 0, 0, False

        async def read(tenant: str) -> None:
            """Ask again as soon as the last question is interrupted: there is always somebody who reads."""
            nonlocal refused
            while not over:
                try:
                    await store._questions.ask(tenant, ENDLESS)
                except StoreBusy:
                    refused += 1

        readers = [asyncio.ensure_future(read(tenant)) for tenant in ("one", "two")]
        for batch in range(20):
            commands = [schedule(f"order-{batch}-{n}", number=n) for n in range(200)]
            await store.apply(commands, at(0))
            largest = max(largest, store._log.size_bytes)
        over = True
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        kept = await store.list_timers(TimerQuery(ACME, limit=10_000))

    assert refused > 0
    assert limit / 2 < largest < 2 * limit
    assert len(kept) == 4_000


async def test_a_reader_outside_the_service_lets_the_log_grow_and_commands_go_on(path: Path) -> None:
    batches = [[schedule(f"order-{b}-{n}", number=n) for n in range(200)] for b in range(4)]

    limits = {"max_log_bytes": 200_000, "log_growth_bytes": 1_000_000, "reset_timeout_ms": 1}
    async with opened(path, **limits) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as backup:
            backup.execute("BEGIN")
            backup.execute("SELECT count(*) FROM timer_schedules").fetchall()
            for batch in batches[:3]:
                await store.apply(batch, at(0))
            grown = store._log.size_bytes
            tried_again_beyond = store._log._next_try_bytes
            backup.execute("ROLLBACK")
        store._log._next_try_bytes = 0
        said: list[str] = []
        await store._writer.connection.set_trace_callback(said.append)
        await store.apply(batches[3], at(0))

        # Commands wait for the checkpoint, and so it waits for nobody as long as they would.
        checkpoint = said.index("PRAGMA wal_checkpoint(TRUNCATE)")
        assert said[checkpoint - 1] == "PRAGMA busy_timeout = 1"
        assert 200_000 < grown < tried_again_beyond
        assert store._log.size_bytes == 0
        [(timeout_ms,)] = await store._writer.connection.execute_fetchall("PRAGMA busy_timeout")
        assert timeout_ms == BUSY_TIMEOUT_MS
