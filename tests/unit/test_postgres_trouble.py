"""What the PostgreSQL store makes of a server that is old, read-only, slow or gone within a step."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest
from structlog.testing import capture_logs

from tests.support.timers import cancel, schedule
from timer_service.adapters.migrations import load_migrations
from timer_service.adapters.postgres import schema
from timer_service.adapters.postgres.connections import Connection, Connections, close, commit
from timer_service.adapters.postgres.hints import Hints
from timer_service.adapters.postgres.limits import DEFAULT_LIMITS, PostgresLimits
from timer_service.adapters.postgres.opening import wait_for
from timer_service.adapters.postgres.store import APPLY_TRIES, PostgresTimerStore
from timer_service.domain.errors import StoreBusy, StoreFailed
from timer_service.domain.timer import Outcome
from timer_service.ports.timer_store import Decided
from timer_service.testing import START


class FakeConnection:
    """Answers as a test wants it, and keeps what was asked."""

    def __init__(self, *, major: int = 16, row: tuple[Any, ...] = ("UTF8", False, True)) -> None:
        self.major = major
        self.row = row
        self.executed: list[str] = []
        self.errors: list[Exception] = []
        self.closed = False
        self.status = "COMMIT"

    def get_server_version(self) -> SimpleNamespace:
        return SimpleNamespace(major=self.major)

    async def execute(self, sql: str, *_: object, timeout: float | None = None) -> str:
        self.executed.append(sql)
        if self.errors:
            raise self.errors.pop(0)
        return self.status

    async def fetchrow(self, sql: str) -> tuple[Any, ...]:
        return self.row

    async def fetchval(self, sql: str, *_: object) -> Any:
        return load_migrations("postgres")[-1].version if "timer_migrations" in sql else False

    def is_closed(self) -> bool:
        return self.closed

    def terminate(self) -> None:
        assert not self.closed
        self.closed = True


class FakeConnections:
    """Lends one connection, or raises."""

    where = "postgresql://db/timers"

    def __init__(self, connection: FakeConnection, *errors: Exception) -> None:
        self._connection = connection
        self.errors = list(errors)
        self.asked = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[FakeConnection]:
        if self.errors:
            raise self.errors.pop(0)
        yield self._connection

    transaction = connection

    async def ask(self, sql: str, *, limit_s: float) -> list[tuple[int]]:
        self.asked += 1
        return [(7,)]


def of(fake: FakeConnection) -> Connection:
    return cast("Connection", fake)


def new_store(connections: FakeConnections, limits: PostgresLimits = DEFAULT_LIMITS) -> PostgresTimerStore:
    lent = cast("Connections", connections)
    hints = cast("Hints", SimpleNamespace(announce=lambda _: None))
    return PostgresTimerStore(lent, lent, lent, hints, lambda: START, limits)


def busy(cause: Exception) -> StoreBusy:
    error = StoreBusy("busy")
    error.__cause__ = cause
    return error


# Connections


async def test_a_commit_that_the_server_turned_into_a_rollback_is_none() -> None:
    connection = FakeConnection()
    connection.status = "ROLLBACK"

    with pytest.raises(StoreBusy, match="rolled the transaction back"):
        await commit(of(connection))


@pytest.mark.parametrize("closed", [False, True])
def test_a_connection_is_closed_once(closed: bool) -> None:
    connection = FakeConnection()
    connection.closed = closed

    close(of(connection))

    assert connection.closed


@pytest.mark.parametrize(
    ("cause", "closed", "expired"),
    [
        (TimeoutError(), True, 0),
        (asyncpg.ReadOnlySQLTransactionError("read-only"), False, 1),
        (asyncpg.DeadlockDetectedError("deadlock"), False, 0),
    ],
)
async def test_after_a_time_out_the_connection_and_after_a_failover_all_connections_are_dropped(
    cause: Exception, closed: bool, expired: int
) -> None:
    calls: list[None] = []

    async def expire_connections() -> None:
        calls.append(None)

    pool: Any = SimpleNamespace(expire_connections=expire_connections)
    connection = FakeConnection()

    await Connections(pool, "here", asked=False).drop_unusable(of(connection), busy(cause))

    assert (connection.closed, len(calls)) == (closed, expired)


async def test_whoever_is_cancelled_within_a_question_stays_so_and_gives_back_a_closed_connection() -> None:
    connection = FakeConnection()
    given_back: list[bool] = []

    async def acquire(*, timeout: float) -> FakeConnection:
        return connection

    async def release(lent: FakeConnection, *, timeout: float) -> None:
        given_back.append(lent.closed)

    async def ask() -> None:
        async with Connections(pool, "here", asked=True).connection():
            await asyncio.Event().wait()

    pool: Any = SimpleNamespace(acquire=acquire, release=release)
    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})

    assert (asking.cancelled(), given_back) == (True, [True])


# The start


async def test_a_database_that_is_away_is_waited_for_and_told_of_once() -> None:
    connections = FakeConnections(FakeConnection(), StoreBusy("away"), StoreBusy("away"), StoreBusy("away"))

    with capture_logs() as log:
        await wait_for(cast("Connections", connections), PostgresLimits(start_pause_s=0.0))

    assert [line["event"] for line in log] == ["store.unavailable"]


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (FakeConnection(major=13), "PostgreSQL 13 is too old: 14 or newer is needed"),
        (FakeConnection(row=("LATIN1", False, True)), "encoding is LATIN1"),
        (FakeConnection(row=("UTF8", True, True)), "this server is a read-only replica"),
        (FakeConnection(row=("UTF8", False, False)), "this user may not write"),
    ],
)
async def test_a_server_that_cannot_be_worked_on_is_named(connection: FakeConnection, words: str) -> None:
    with pytest.raises(StoreFailed, match=words):
        await wait_for(cast("Connections", FakeConnections(connection)), PostgresLimits(start_timeout_s=0.0))


@pytest.mark.parametrize("closed", [False, True])
async def test_a_migration_that_fails_is_undone_where_there_is_still_a_connection(
    closed: bool,
) -> None:
    class Outdated(FakeConnection):
        async def fetchval(self, sql: str, *_: object) -> Any:
            if self.executed:  # The second look, with the lock.
                self.closed = closed
                self.errors.append(ConnectionError("gone"))
            return 0

    connection = Outdated()

    with pytest.raises(ConnectionError):
        await schema.migrate(of(connection), "here")

    assert ("ROLLBACK" in connection.executed) is not closed


# Steps of the store


async def test_a_timer_that_somebody_else_holds_for_long_is_answered_as_being_fired() -> None:
    store = new_store(FakeConnections(FakeConnection(), busy(asyncpg.LockNotAvailableError("locked"))))

    answers = await store.decide([cancel("order-1")], START)

    assert answers == [Decided(Outcome.DUE, None)]


async def test_a_request_that_fails_for_any_other_reason_is_not_answered() -> None:
    store = new_store(FakeConnections(FakeConnection(), busy(asyncpg.DeadlockDetectedError("deadlock"))))

    with pytest.raises(StoreBusy):
        await store.decide([cancel("order-1")], START)


async def test_timers_that_come_and_go_all_the_time_are_given_up_for_now() -> None:
    tries: list[None] = []

    class Empty(FakeConnection):
        async def fetch(self, sql: str, *_: object) -> list[Any]:
            """Insert nothing and find nothing."""
            tries.append(None)
            return []

    with pytest.raises(StoreBusy, match="created and deleted too often"):
        await new_store(FakeConnections(Empty())).apply([schedule("order-1", 60)], START)

    assert len(tries) == 2 * APPLY_TRIES


async def test_a_count_that_is_dear_serves_for_a_while() -> None:
    connections = FakeConnections(FakeConnection())
    store = new_store(connections, PostgresLimits(cheap_count_s=-1.0))

    counts = [await store._pending.count() for _ in range(3)]

    assert (counts, connections.asked) == ([7, 7, 7], 1)


async def test_a_count_that_is_cheap_is_made_each_time() -> None:
    connections = FakeConnections(FakeConnection())
    store = new_store(connections, PostgresLimits(cheap_count_s=3_600.0))

    async with asyncio.timeout(60):
        await store._pending.count()
        await store._pending.count()

    assert connections.asked == 2
