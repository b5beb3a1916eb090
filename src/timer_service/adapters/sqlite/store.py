"""Timers in one SQLite file, owned by one process."""

import asyncio
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import Any, Final

import aiosqlite

from timer_service.adapters.sqlite.ownership import sole_owner
from timer_service.adapters.sqlite.rows import COLUMNS as _COLUMNS
from timer_service.adapters.sqlite.rows import due_timer as _due_timer
from timer_service.adapters.sqlite.rows import moment as _moment
from timer_service.adapters.sqlite.rows import row as _row
from timer_service.adapters.sqlite.rows import text as _text
from timer_service.adapters.sqlite.rows import timer as _timer
from timer_service.adapters.sqlite.schema import migrate
from timer_service.domain import timer as rules
from timer_service.domain.errors import (
    StoreBusy,
    StoreFailed,
    StoreFull,
    TimerServiceError,
    TransientError,
)
from timer_service.domain.messages import (
    Command,
    DueTimeReached,
    ServiceCallId,
    TenantId,
)
from timer_service.domain.timer import DueTimer, Outcome, Timer, TimerState
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    HeldBack,
    StoreCounts,
    TimerKey,
    TimerQuery,
)

BUSY_TIMEOUT_MS: Final = 5_000
OPENING_TURN_MS: Final = 100
CACHE_KIB: Final = 16_384
WAL_LIMIT_BYTES: Final = 64 * 1024 * 1024
CHECKPOINT_PAGES: Final = 8_000
"""32 MiB of log before it is moved into the file: a page that many transactions change is then moved once."""
VACUUM_PAGES: Final = 256
"""How much freed space one purge gives back to the file system at the most: 1 MiB."""
OLDEST_SQLITE: Final = (3, 38, 0)
"""STRICT tables came with 3.37, JSON functions in every build with 3.38."""

# A batch goes into a statement as one JSON text. SQLite then works it off in one step, beside the
# interpreter; with a step for each row the two would wait for each other at every row.

# The rows that a batch of commands is about, found by primary key.
_LOAD: Final = f"""
SELECT {", ".join("t." + column for column in _COLUMNS.split(", "))}
FROM json_each(?) AS wanted
CROSS JOIN timer_schedules AS t ON t.tenant_id = wanted.value ->> 0 AND t.service_call_id = wanted.value ->> 1
"""  # noqa: S608 - the column list is a constant

# Rows as the domain's rules left them.
_SAVE: Final = f"""
INSERT INTO timer_schedules ({_COLUMNS})
SELECT {", ".join(f"value ->> {index}" for index, _ in enumerate(_COLUMNS.split(", ")))}
FROM json_each(?) WHERE true
ON CONFLICT (tenant_id, service_call_id) DO UPDATE SET
  state = excluded.state, due_at = excluded.due_at, generation = excluded.generation,
  correlation_id = excluded.correlation_id, reached_at = excluded.reached_at,
  cancelled_at = excluded.cancelled_at, stream_created_us = excluded.stream_created_us,
  stream_sequence = excluded.stream_sequence, traceparent = excluded.traceparent,
  tracestate = excluded.tracestate
"""  # noqa: S608 - the column list is a constant

# The poll: what is due, oldest first, without what is held back or claimed. A timer's key is one value here,
# because SQLite looks a single value up in an index, but a row value by going through the whole list.
FIND_DUE: Final = """
SELECT tenant_id, service_call_id, due_at, generation, correlation_id, traceparent, tracestate
FROM timer_schedules
WHERE state = 'Scheduled' AND due_at <= :now
  AND tenant_id NOT IN (SELECT value FROM json_each(:held_tenants))
  AND tenant_id || char(10) || service_call_id NOT IN (SELECT value FROM json_each(:held_timers))
ORDER BY due_at
LIMIT :limit
"""

# Under backlog: every tenant that has something due, one index search each.
FIND_DUE_TENANTS: Final = """
WITH RECURSIVE tenant(id) AS (
  SELECT min(tenant_id) FROM timer_schedules
  UNION ALL
  SELECT (SELECT min(tenant_id) FROM timer_schedules WHERE tenant_id > tenant.id)
  FROM tenant WHERE tenant.id IS NOT NULL
)
SELECT id FROM tenant
WHERE id NOT IN (SELECT value FROM json_each(:held_tenants))
  AND EXISTS (
    SELECT 1 FROM timer_schedules
    WHERE tenant_id = tenant.id AND state = 'Scheduled' AND due_at <= :now)
"""

# Under backlog: the oldest few of each of these tenants.
FIND_DUE_IN_TURNS: Final = """
SELECT t.tenant_id, t.service_call_id, t.due_at, t.generation, t.correlation_id, t.traceparent, t.tracestate
FROM json_each(:tenants) AS tenant
CROSS JOIN timer_schedules AS t
  ON t.tenant_id = tenant.value
 AND t.service_call_id IN (
    SELECT service_call_id FROM timer_schedules
    WHERE tenant_id = tenant.value AND state = 'Scheduled' AND due_at <= :now
      AND tenant_id || char(10) || service_call_id NOT IN (SELECT value FROM json_each(:held_timers))
    ORDER BY due_at LIMIT :turn)
ORDER BY t.due_at
LIMIT :limit
"""

# Publishing is done; the generation guard leaves alone what was rescheduled meanwhile.
_MARK_REACHED: Final = """
UPDATE timer_schedules SET state = 'Reached', reached_at = fired.reached_at
FROM (
  SELECT value ->> 0 AS tenant_id, value ->> 1 AS service_call_id, value ->> 2 AS generation,
    value ->> 3 AS reached_at
  FROM json_each(?)
) AS fired
WHERE timer_schedules.tenant_id = fired.tenant_id
  AND timer_schedules.service_call_id = fired.service_call_id
  AND timer_schedules.generation = fired.generation
  AND timer_schedules.state = 'Scheduled'
"""

NEXT_DUE: Final = "SELECT min(due_at) FROM timer_schedules WHERE state = 'Scheduled' AND due_at > ?"

_GET: Final = f"SELECT {_COLUMNS} FROM timer_schedules WHERE tenant_id = ? AND service_call_id = ?"  # noqa: S608

# A page of one tenant's timers in one state, in index order.
LIST_BY_STATE: Final = f"""
SELECT {_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_by_tenant
WHERE tenant_id = :tenant AND state = :state AND due_at >= :due_from AND due_at < :due_before
  AND (due_at, service_call_id) > (:after_due, :after_id)
ORDER BY due_at, service_call_id
LIMIT :limit
"""  # noqa: S608

# The few timers of one request.
LIST_BY_CORRELATION: Final = f"""
SELECT {_COLUMNS} FROM timer_schedules INDEXED BY timer_schedules_by_correlation
WHERE correlation_id = :correlation AND tenant_id = :tenant AND state = :state
  AND due_at >= :due_from AND due_at < :due_before
  AND (due_at, service_call_id) > (:after_due, :after_id)
ORDER BY due_at, service_call_id
LIMIT :limit
"""  # noqa: S608

# Retention, oldest first and bounded, so that it never holds up firing.
PURGE: Final = """
DELETE FROM timer_schedules WHERE (tenant_id, service_call_id) IN (
  SELECT tenant_id, service_call_id FROM timer_schedules
  WHERE state <> 'Scheduled' AND coalesce(reached_at, cancelled_at) < ?
  ORDER BY coalesce(reached_at, cancelled_at)
  LIMIT ?)
"""

# For health and metrics: what is overdue, and what comes next.
COUNT_OVERDUE: Final = """
SELECT count(*), min(due_at),
  (SELECT min(due_at) FROM timer_schedules WHERE state = 'Scheduled' AND due_at > :now)
FROM timer_schedules WHERE state = 'Scheduled' AND due_at <= :now
"""

# Once; from then on the changes are counted.
COUNT_PENDING: Final = "SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled'"

# Whether the file is being filled by `timer-service copy`.
IS_COPY: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'timer_copy'"

# Whether `timer-service copy` has moved its timers to another store.
IS_MOVED: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'timer_moved'"

_BEFORE_ALL: Final = ""
_AFTER_ALL: Final = "~"


@asynccontextmanager
async def open_sqlite_store(path: Path, now: Callable[[], datetime]) -> AsyncIterator["SqliteTimerStore"]:
    """Own the file, bring its schema up to date and open it; give it back at the end."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreFailed(f"SQLite {sqlite3.sqlite_version} is too old: {oldest} or newer is needed")
    path = path.resolve()
    with sole_owner(path):
        async with AsyncExitStack() as stack:
            try:
                with _translated(path):
                    # Here and not on aiosqlite's thread, which a failing connect would leave behind.
                    sqlite3.connect(_uri(path), uri=True).close()
                    writer = await stack.enter_async_context(_connect(path))
                    await _prepare_in_time(writer, path, _text(now()))
                    await _refuse_a_copy(writer, path)
                reader = await stack.enter_async_context(_connect(path, read_only=True))
                answerer = await stack.enter_async_context(_connect(path, read_only=True))
            except TransientError as error:
                raise StoreFailed(f"cannot write at start: {error}") from error
            yield SqliteTimerStore(path, writer, reader, answerer)


class SqliteTimerStore:
    """The timer store on SQLite: one connection writes, one finds what is due, one answers questions.

    So a slow question holds up no timer. Only one writes, because SQLite before 3.51.3 can corrupt a WAL
    that two connections write or checkpoint at once, and because a second writer would only wait.
    """

    def __init__(
        self,
        path: Path,
        writer: aiosqlite.Connection,
        reader: aiosqlite.Connection,
        answerer: aiosqlite.Connection,
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._answerer = answerer
        self._writing = asyncio.Lock()
        self._claiming = asyncio.Lock()
        self._pending: int | None = None
        self._claimed: set[TimerKey] = set()
        self._calling: Counter[TimerKey] = Counter()
        self._called_lately: set[TimerKey] = set()
        self._wanted: set[TimerKey] = set()
        """Due, but left out of a claim because of a call: no other call may hold them up again."""

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Apply the domain's rules; a timer that is being fired is not open to calls, nor the reverse."""
        called = {(c.tenant_id, c.service_call_id) for c in commands if c.is_call}
        if called & (self._claimed | self._wanted):
            return [Outcome.DUE for _ in commands]
        self._called_lately |= called
        self._calling.update(called)
        try:
            return await self._apply(commands, now)
        finally:
            self._calling.subtract(called)
            self._calling = +self._calling  # Entries of zero would stay for ever.

    async def _apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Load the rows concerned, apply the rules in order, save what changed."""
        outcomes: list[Outcome] = []
        async with self._transaction() as changes:
            timers = await self._load({(c.tenant_id, c.service_call_id) for c in commands})
            changed: dict[TimerKey, Timer] = {}
            for command in commands:
                key = (command.tenant_id, command.service_call_id)
                before = timers.get(key)
                timers[key], outcome = rules.apply(before, command, now)
                if timers[key] is not before:
                    changed[key] = timers[key]
                    changes.pending += _is_pending(timers[key]) - _is_pending(before)
                outcomes.append(outcome)
            if changed:
                await self._writer.execute(_SAVE, (json.dumps([_row(timer) for timer in changed.values()]),))
        return outcomes

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AsyncIterator[Claim]:
        """Read what is due: this process owns the file, so only its own other claims have to be left out."""
        async with self._claiming:
            parameters = {
                "now": _text(now),
                "limit": limit + 1,
                "held_tenants": json.dumps(sorted(held_back.tenants)),
                "held_timers": json.dumps(["\n".join(key) for key in (*self._claimed, *held_back.timers)]),
            }
            # With those under way: one may end before the reading does, and the reading not see it.
            self._called_lately = set(self._calling)
            found = await self._read(FIND_DUE, parameters)
            more = len(found) > limit
            if more:
                found = _fill_up(await self._take_turns(parameters, limit), found, limit)
            # A call that ran beside the reading may have changed what was read: that timer has to wait.
            open_to_calls = self._called_lately | set(self._calling)
            rows = [row for row in found if row[:2] not in open_to_calls]
            self._wanted = {row[:2] for row in found} & open_to_calls
            keys = {row[:2] for row in rows}
            self._claimed |= keys
        try:
            yield _SqliteClaim(self, [_due_timer(row) for row in rows], more or len(rows) < len(found))
        finally:
            self._claimed -= keys

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Return the earliest due time later than `after`."""
        rows = await self._read(NEXT_DUE, (_text(after),))
        return _moment(rows[0][0])

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        rows = await self._ask(_GET, (tenant_id, service_call_id))
        return _timer(rows[0]) if rows else None

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Merge one index-ordered page per state, so that no list ever sorts a tenant's whole history."""
        sql = LIST_BY_STATE if query.correlation_id is None else LIST_BY_CORRELATION
        after_due, after_id = query.after or (None, "")
        parameters = {
            "tenant": query.tenant_id,
            "correlation": query.correlation_id,
            "due_from": _text(query.due_from) if query.due_from else _BEFORE_ALL,
            "due_before": _text(query.due_before) if query.due_before else _AFTER_ALL,
            "after_due": _text(after_due) if after_due else _BEFORE_ALL,
            "after_id": after_id,
            "limit": query.limit,
        }
        states = [query.state] if query.state else list(TimerState)
        pages = [await self._ask(sql, {**parameters, "state": state.value}) for state in states]
        rows = merge(*pages, key=lambda row: (row[3], row[1]))
        return [_timer(row) for row, _ in zip(rows, range(query.limit), strict=False)]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        async with self._transaction():
            cursor = await self._writer.execute(PURGE, (_text(ended_before), limit))
            purged = cursor.rowcount
        if purged:
            async with self._writing:
                with _translated(self._path):
                    await self._writer.execute_fetchall(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        return purged

    async def count(self, now: datetime) -> StoreCounts:
        """Count what is overdue; what is pending is known from counting every change."""
        [(overdue, oldest, nearest)] = await self._ask(COUNT_OVERDUE, {"now": _text(now)})
        return StoreCounts(
            pending=await self._count_pending(),
            overdue=overdue,
            oldest_overdue_at=_moment(oldest),
            next_due_at=_moment(nearest),
            file_bytes=_size(self._path),
            log_bytes=_size(self._path.with_name(self._path.name + "-wal")),
            free_bytes=shutil.disk_usage(self._path.parent).free,
        )

    async def mark_reached(self, events: Sequence[DueTimeReached]) -> int:
        """Mark each timer whose published generation still stands."""
        async with self._transaction() as changes:
            fired = [(e.tenant_id, e.service_call_id, e.generation, _text(e.reached_at)) for e in events]
            cursor = await self._writer.execute(_MARK_REACHED, (json.dumps(fired),))
            changes.pending = -cursor.rowcount
            return cursor.rowcount

    async def _count_pending(self) -> int:
        if self._pending is None:
            # Nothing may change between the count and the first change that is counted.
            async with self._writing:
                [(self._pending,)] = await self._ask(COUNT_PENDING, ())
        return self._pending

    async def _load(self, keys: Iterable[TimerKey]) -> dict[TimerKey, Timer]:
        rows = await self._writer.execute_fetchall(_LOAD, (json.dumps(list(keys)),))
        timers = map(_timer, rows)
        return {(timer.tenant_id, timer.service_call_id): timer for timer in timers}

    async def _take_turns(self, parameters: dict[str, Any], limit: int) -> list[tuple[Any, ...]]:
        tenants = [row[0] for row in await self._read(FIND_DUE_TENANTS, parameters)]
        turn = max(1, limit // max(len(tenants), 1))
        return await self._read(
            FIND_DUE_IN_TURNS,
            {**parameters, "limit": limit, "tenants": json.dumps(tenants), "turn": turn},
        )

    async def _read(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        return await self._fetch(self._reader, sql, parameters)

    async def _ask(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        return await self._fetch(self._answerer, sql, parameters)

    async def _fetch(
        self, connection: aiosqlite.Connection, sql: str, parameters: Any
    ) -> list[tuple[Any, ...]]:
        with _translated(self._path):
            return list(await connection.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator["_Changes"]:
        """Run the block in one write transaction, durable when it ends, undone where it raises."""
        changes = _Changes()
        async with self._writing:
            with _translated(self._path):
                try:
                    await self._writer.execute("BEGIN IMMEDIATE")
                    yield changes
                    await self._writer.execute("COMMIT")
                    if self._pending is not None:
                        self._pending += changes.pending
                except BaseException:
                    self._pending = None  # Whether the change is in is not known: count again.
                    # Also after a failed COMMIT, and where SQLite has rolled back by itself.
                    with suppress(sqlite3.Error):
                        await self._writer.execute("ROLLBACK")
                    raise


@dataclass(slots=True)
class _Changes:
    """What a transaction changes about the store as a whole."""

    pending: int = 0


@dataclass(frozen=True, slots=True)
class _SqliteClaim:
    _store: SqliteTimerStore
    timers: Sequence[DueTimer]
    more: bool

    async def mark_reached(self, events: Sequence[DueTimeReached]) -> int:
        return await self._store.mark_reached(events)


@asynccontextmanager
async def _connect(path: Path, *, read_only: bool = False) -> AsyncIterator[aiosqlite.Connection]:
    """Open a connection in autocommit mode: every transaction is written out in this file."""
    uri = _uri(path, read_only=read_only)
    with _translated(path):
        connection = await aiosqlite.connect(uri, uri=True, isolation_level=None, cached_statements=64)
    try:
        with _translated(path):
            await connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            if read_only:
                await _tune(connection)
        yield connection
    finally:
        with suppress(sqlite3.Error):
            await connection.close()


def _uri(path: Path, *, read_only: bool = False) -> str:
    return f"{path.as_uri()}?mode={'ro' if read_only else 'rwc'}"


async def _tune(connection: aiosqlite.Connection) -> None:
    """Set what only makes it faster; this reads the file, and so may have to wait for it."""
    await connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    await connection.execute("PRAGMA temp_store = MEMORY")


async def _prepare_in_time(writer: aiosqlite.Connection, path: Path, now: str) -> None:
    """Wait for another connection as long as ever, but in short turns: a stop must not wait with us."""
    await writer.execute(f"PRAGMA busy_timeout = {OPENING_TURN_MS}")
    deadline = asyncio.get_running_loop().time() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            await _prepare(writer, path, now)
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or asyncio.get_running_loop().time() >= deadline:
                raise
        else:
            break
    await writer.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")


async def _prepare(writer: aiosqlite.Connection, path: Path, now: str) -> None:
    await _tune(writer)
    # Before the first table: space freed by retention can then be given back step by step.
    await writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
    await writer.execute("PRAGMA journal_mode = WAL")
    # FULL: an acknowledged timer survives a power cut. NORMAL would lose the last commits.
    await writer.execute("PRAGMA synchronous = FULL")
    await writer.execute("PRAGMA foreign_keys = ON")
    await writer.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    await writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    await migrate(writer, path, now)
    await _write_once(writer)


async def _refuse_a_copy(writer: aiosqlite.Connection, path: Path) -> None:
    [(unfinished,)] = await writer.execute_fetchall(IS_COPY)
    if unfinished:
        raise StoreFailed(f"{path} holds an unfinished copy: run the same `timer-service copy` again")
    target = await moved_to(writer)
    if target is not None:
        raise StoreFailed(
            f"the timers of {path} were moved to {target}: start the service there. To use this file again, "
            f"make sure that nothing runs there and run `timer-service reopen sqlite:///{path}`"
        )


async def moved_to(connection: aiosqlite.Connection) -> str | None:
    """Return the store that this one's timers were copied to, where that is so."""
    [(is_moved,)] = await connection.execute_fetchall(IS_MOVED)
    if not is_moved:
        return None
    [(target,)] = await connection.execute_fetchall("SELECT max(target) FROM timer_moved")
    return str(target)


async def _write_once(writer: aiosqlite.Connection) -> None:
    """Fail at start, not at the first command, where the disk is full or read-only."""
    await writer.execute("BEGIN IMMEDIATE")
    await writer.execute("UPDATE timer_migrations SET name = name")
    await writer.execute("COMMIT")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except TimerServiceError:
        raise
    except sqlite3.Error as error:
        raise _translate(error, path) from error


def _translate(error: sqlite3.Error, path: Path) -> TimerServiceError:
    code = getattr(error, "sqlite_errorcode", None) or 0
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    what = f"{path}: {error} ({name})"
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(what)  # The WAL's index could not grow.
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(what)
        case sqlite3.SQLITE_FULL:
            return StoreFull(what)
        case sqlite3.SQLITE_CORRUPT:
            return StoreFailed(f"{what}: the database is corrupt; restore it from a backup")
        case sqlite3.SQLITE_NOTADB:
            return StoreFailed(f"{what}: TIMER_DB_PATH must name a SQLite database or a new file")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreFailed(f"{what}: TIMER_DB_PATH must be a file this user may create and write")
    # After a failed fsync nobody knows what is on disk: never try the COMMIT again, start over from it.
    return StoreFailed(f"{what}: the store failed; restart once the disk is well")


def _fill_up(
    turns: list[tuple[Any, ...]], oldest: list[tuple[Any, ...]], limit: int
) -> list[tuple[Any, ...]]:
    """Give the turns that small tenants did not need to the oldest of the rest."""
    taken = {row[:2] for row in turns}
    spare = [row for row in oldest if row[:2] not in taken][: limit - len(turns)]
    return list(merge(turns, spare, key=lambda row: str(row[2])))


def _is_pending(timer: Timer | None) -> bool:
    return timer is not None and timer.state is TimerState.SCHEDULED


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
