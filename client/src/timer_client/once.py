"""Remember handled firings in the handler's own transaction, so that each has its effect exactly once.

The connections are the caller's, of sqlite3, aiosqlite or asyncpg: told apart by what they can do, so that
the client depends on none of them.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from timer_client.cancelling import to_the_end
from timer_client.errors import AlreadyHandled, TimerError

SQLITE_FIRINGS_TABLE: Final = """\
CREATE TABLE IF NOT EXISTS timer_firings (
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    service_call_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    handled_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID"""
POSTGRES_FIRINGS_TABLE: Final = """\
CREATE TABLE IF NOT EXISTS timer_firings (
    consumer text NOT NULL,
    id text NOT NULL,
    tenant_id text NOT NULL,
    service_call_id text NOT NULL,
    generation integer NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, id)
)"""

_COLUMNS: Final = "timer_firings (consumer, id, tenant_id, service_call_id, generation)"
_REMEMBER_SQLITE: Final = f"INSERT OR IGNORE INTO {_COLUMNS} VALUES (?, ?, ?, ?, ?)"  # noqa: S608 - no input
_REMEMBER_POSTGRES: Final = f"INSERT INTO {_COLUMNS} VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"  # noqa: S608
# One timer's firings run one after another, also when two workers have them.
_ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_NOT_SERIALIZABLE: Final = "40001"
MAX_BEGINNINGS: Final = 5
"""Of a transaction that others overtake: the second one sees what they did."""

_users: dict[int, tuple[asyncio.Lock, int]] = {}


async def create_firings_table(connection: Any) -> None:
    """Create the table that `firing.once` needs, if it is missing; your migrations may do it instead."""
    if _is_pool(connection):
        async with connection.acquire() as one:
            await create_firings_table(one)
    elif _is_postgres(connection):
        async with connection.transaction():
            await connection.execute(_ONE_AT_A_TIME, "timer_firings")
            await connection.execute(POSTGRES_FIRINGS_TABLE)
    else:
        _check_sqlite(connection)
        await _sqlite(connection, SQLITE_FIRINGS_TABLE)


def handled_once(connection: Any, *row: str | int) -> AbstractAsyncContextManager[Any]:
    """Return the transaction in which a firing is handled and remembered."""
    if _is_pool(connection):
        return _once_of_pool(connection, row)
    if _is_postgres(connection):
        return _once_in_postgres(connection, row)
    _check_sqlite(connection)
    return _once_in_sqlite(connection, row)


@asynccontextmanager
async def _once_of_pool(pool: Any, row: tuple[str | int, ...]) -> AsyncIterator[Any]:
    async with pool.acquire() as connection, _once_in_postgres(connection, row):
        yield connection


@asynccontextmanager
async def _once_in_postgres(connection: Any, row: tuple[str | int, ...]) -> AsyncIterator[Any]:
    async with _alone(connection):
        transaction = await _begun_in_postgres(connection, row)
        try:
            yield connection
        except BaseException:
            await transaction.rollback()
            raise
        await transaction.commit()


async def _begun_in_postgres(connection: Any, row: tuple[str | int, ...]) -> Any:
    """Begin a transaction and remember the firing in it.

    Where the database isolates transactions more strictly than usual, one that has waited for another sees
    only when it begins again that the other has handled the firing. Nothing of the caller's is lost by that.
    """
    tries = 1 if connection.is_in_transaction() else MAX_BEGINNINGS
    while True:
        tries -= 1
        transaction = connection.transaction()
        await transaction.start()
        try:
            await _remember_in_postgres(connection, row)
        except BaseException as error:
            await transaction.rollback()
            if tries and getattr(error, "sqlstate", "") == _NOT_SERIALIZABLE:
                continue
            raise
        return transaction


async def _remember_in_postgres(connection: Any, row: tuple[str | int, ...]) -> None:
    consumer, _, tenant_id, service_call_id, _ = row
    await connection.execute(_ONE_AT_A_TIME, f"{consumer}\n{tenant_id}\n{service_call_id}")
    try:
        status = await connection.execute(_REMEMBER_POSTGRES, *row)
    except Exception as error:
        raise _explained(error, POSTGRES_FIRINGS_TABLE) from error
    if status.endswith(" 0"):
        raise _already(row)


@asynccontextmanager
async def _once_in_sqlite(connection: Any, row: tuple[str | int, ...]) -> AsyncIterator[Any]:
    """Begin a transaction and commit it, or join the one that the caller has begun and will commit."""
    async with _alone(connection):
        is_ours = not connection.in_transaction
        try:
            if is_ours:
                await _sqlite(connection, "BEGIN IMMEDIATE")
            try:
                cursor = await _sqlite(connection, _REMEMBER_SQLITE, row)
            except Exception as error:
                raise _explained(error, SQLITE_FIRINGS_TABLE) from error
            if cursor.rowcount == 0:
                raise _already(row)
            yield connection
            if is_ours and connection.in_transaction:
                await _sqlite(connection, "COMMIT")
        except BaseException:
            if is_ours and connection.in_transaction:
                await _sqlite(connection, "ROLLBACK")
            raise


@asynccontextmanager
async def _alone(connection: Any) -> AsyncIterator[None]:
    """Let one handler at a time have a connection, which has only one transaction."""
    lock, users = _users.get(id(connection), (asyncio.Lock(), 0))
    _users[id(connection)] = lock, users + 1
    try:
        async with lock:
            yield
    finally:
        _, users = _users.pop(id(connection))
        if users > 1:
            _users[id(connection)] = lock, users - 1


async def _sqlite(connection: Any, statement: str, parameters: tuple[str | int, ...] = ()) -> Any:
    result = connection.execute(statement, parameters)
    # aiosqlite carries out what it was given, also if nobody waits any more: the next one would join it.
    return await to_the_end(result) if inspect.isawaitable(result) else result


def _is_pool(connection: Any) -> bool:
    return hasattr(connection, "acquire") and hasattr(connection, "fetchrow")


def _is_postgres(connection: Any) -> bool:
    return hasattr(connection, "transaction") and hasattr(connection, "fetchrow")


def _check_sqlite(connection: Any) -> None:
    if not (hasattr(connection, "in_transaction") and hasattr(connection, "execute")):
        raise TypeError(
            "connection must be from sqlite3, aiosqlite or asyncpg, or an asyncpg pool"
            f" (got {type(connection).__module__}.{type(connection).__qualname__})"
        )


def _already(row: tuple[str | int, ...]) -> AlreadyHandled:
    consumer, firing_id, *_ = row
    return AlreadyHandled(f"{firing_id} was handled before by {consumer}")


def _explained(error: Exception, table: str) -> Exception:
    """Return an error that says what to do if the table is missing, and any other as it is."""
    if getattr(error, "sqlstate", "") == "42P01" or "no such table" in str(error):
        return TimerError(
            "the table timer_firings is missing: await create_firings_table(connection) at start,"
            f" or have your migrations do it:\n{table}"
        )
    return error
