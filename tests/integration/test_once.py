"""Handled exactly once: `firing.once` on every connection that it takes."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import pytest

from tests.support.postgres import fresh_schema
from timer_client import AlreadyHandled, Firing, TimerError, create_firings_table

DUE = datetime(2026, 12, 1, 9, tzinfo=UTC)
FIRING = Firing("id-1", "acme", "order-1", DUE, DUE, 1, None, "billing")
COUNT = "SELECT count(*) FROM effects"


@asynccontextmanager
async def _sqlite3(folder: Path) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(folder / "own.db")) as connection:
        yield connection


@asynccontextmanager
async def _aiosqlite(folder: Path) -> AsyncIterator[Any]:
    async with aiosqlite.connect(folder / "own.db") as connection:
        yield connection


@asynccontextmanager
async def _asyncpg(_: Path) -> AsyncIterator[Any]:
    async with fresh_schema() as url:
        connection = await asyncpg.connect(url)
        yield connection
        await connection.close()


@asynccontextmanager
async def _pool(_: Path) -> AsyncIterator[Any]:
    async with fresh_schema() as url, asyncpg.create_pool(url, min_size=2, max_size=4) as pool:
        yield pool


Open = Callable[[Path], AbstractAsyncContextManager[Any]]
KINDS: dict[str, Open] = {"sqlite3": _sqlite3, "aiosqlite": _aiosqlite, "asyncpg": _asyncpg, "pool": _pool}


@pytest.fixture(params=list(KINDS))
async def bare(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A connection of each kind, to a database of the user's."""
    async with KINDS[request.param](tmp_path) as connection:
        await _run(connection, "CREATE TABLE effects (name TEXT)")
        yield connection


@pytest.fixture
async def connection(bare: Any) -> Any:
    """The same, with the table that is needed."""
    await create_firings_table(bare)
    await create_firings_table(bare)
    return bare


async def test_a_firing_has_its_effect_once(connection: Any) -> None:
    async with FIRING.once(connection) as transaction:
        await _effect(transaction)

    for _ in range(2):
        with pytest.raises(AlreadyHandled, match="id-1 was handled before by billing"):
            async with FIRING.once(connection) as transaction:
                await _effect(transaction)

    assert await _count(connection) == 1


async def test_what_fails_leaves_nothing_and_can_be_tried_again(connection: Any) -> None:
    async def fail() -> None:
        async with FIRING.once(connection) as transaction:
            await _effect(transaction)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    left = await _count(connection)
    async with FIRING.once(connection) as transaction:
        await _effect(transaction)

    assert (left, await _count(connection)) == (0, 1)


async def test_each_firing_and_each_consumer_counts_for_itself(connection: Any) -> None:
    for firing in (FIRING, replace(FIRING, id="id-2", generation=2), replace(FIRING, consumer="shipping")):
        async with firing.once(connection) as transaction:
            await _effect(transaction)

    assert await _count(connection) == 3


@pytest.mark.parametrize("bare", ["sqlite3", "aiosqlite", "asyncpg", "pool"], indirect=True)
async def test_handlers_that_share_a_connection_take_turns(connection: Any) -> None:
    async def handle(number: int) -> None:
        async with replace(FIRING, id=f"id-{number}", service_call_id=f"order-{number}").once(
            connection
        ) as one:
            await _effect(one)
            await asyncio.sleep(0)
            if number % 2:
                raise ZeroDivisionError

    await asyncio.gather(*map(handle, range(10)), return_exceptions=True)

    assert await _count(connection) == 5


@pytest.mark.parametrize("bare", ["aiosqlite"], indirect=True)
async def test_a_handler_that_is_cancelled_as_it_begins_leaves_no_transaction_to_join(
    connection: Any, tmp_path: Path
) -> None:
    async def handle(firing: Firing) -> None:
        async with firing.once(connection) as transaction:
            await _effect(transaction)

    with closing(sqlite3.connect(tmp_path / "own.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        handling = asyncio.ensure_future(handle(FIRING))
        for _ in range(10):
            await asyncio.sleep(0)  # It waits for the other one in the driver's thread now.
        handling.cancel()
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        await asyncio.wait({handling})
        await handle(replace(FIRING, id="id-2"))

        assert handling.cancelled()
        assert other.execute(COUNT).fetchall() == [(1,)]


@pytest.mark.parametrize("bare", ["aiosqlite", "pool"], indirect=True)
async def test_two_who_handle_one_firing_at_the_same_time_have_one_effect(
    connection: Any, tmp_path: Path
) -> None:
    effects = 0

    async def handle(own: Any) -> None:
        nonlocal effects
        async with FIRING.once(own) as transaction:
            await _effect(transaction)
            await asyncio.sleep(0.01)
            effects += 1

    async with _another(connection, tmp_path) as other:
        results = await asyncio.gather(handle(connection), handle(other), return_exceptions=True)

    assert {type(result) for result in results} == {type(None), AlreadyHandled}
    assert (effects, await _count(connection)) == (1, 1)


@pytest.mark.parametrize("bare", ["aiosqlite", "pool"], indirect=True)
async def test_two_workers_never_handle_two_firings_of_one_timer_side_by_side(
    connection: Any, tmp_path: Path
) -> None:
    running, most = 0, 0

    async def handle(own: Any, generation: int) -> None:
        nonlocal running, most
        async with replace(FIRING, id=f"id-{generation}", generation=generation).once(own) as transaction:
            running += 1
            most = max(most, running)
            await _effect(transaction)
            await asyncio.sleep(0.01)
            running -= 1

    async with _another(connection, tmp_path) as other:
        await asyncio.gather(handle(connection, 1), handle(other, 2))

    assert (most, await _count(connection)) == (1, 2)


async def test_a_transaction_of_the_callers_own_is_joined_and_left_to_the_caller(tmp_path: Path) -> None:
    async with _aiosqlite(tmp_path) as connection:
        await _run(connection, "CREATE TABLE effects (name TEXT)")
        await create_firings_table(connection)
        await connection.execute("BEGIN")
        async with FIRING.once(connection):
            await _effect(connection)
        await connection.rollback()

        async with FIRING.once(connection):
            await _effect(connection)

        assert await _count(connection) == 1


async def test_a_missing_table_is_named_with_what_to_do(bare: Any) -> None:
    with pytest.raises(TimerError, match=r"await create_firings_table\(connection\).*\nCREATE TABLE"):
        async with FIRING.once(bare):
            pass


async def test_any_other_connection_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be from sqlite3, aiosqlite or asyncpg.*builtins.object"):
        async with FIRING.once(object()):
            pass


@asynccontextmanager
async def _another(connection: Any, folder: Path) -> AsyncIterator[Any]:
    """What another worker has: a second connection to the file, or another one of the pool."""
    async with aiosqlite.connect(folder / "own.db") as second:
        yield second if isinstance(connection, aiosqlite.Connection) else connection


async def _run(connection: Any, statement: str) -> Any:
    result = connection.execute(statement)
    return result if isinstance(result, sqlite3.Cursor) else await result


async def _effect(transaction: Any) -> None:
    await _run(transaction, "INSERT INTO effects VALUES ('x')")


async def _count(connection: Any) -> int:
    if isinstance(connection, sqlite3.Connection):
        return int(connection.execute(COUNT).fetchone()[0])
    if isinstance(connection, aiosqlite.Connection):
        return int(next(iter(await connection.execute_fetchall(COUNT)))[0])
    return int(await connection.fetchval(COUNT))
