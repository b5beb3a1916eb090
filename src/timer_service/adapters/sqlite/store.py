"""Timers in one SQLite file, owned by one process."""

import asyncio
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import Any, Final

import aiosqlite
import structlog

from timer_service.adapters import rows
from timer_service.adapters.migrations import Migration
from timer_service.adapters.sqlite.connections import (
    NEW,
    connect,
    exists,
    prepare_in_time,
    refuse_a_copy,
    require_sqlite,
    translated,
    uri,
)
from timer_service.adapters.sqlite.epochs import advance_epochs, insert_epochs, read_epochs
from timer_service.adapters.sqlite.looks import Looks
from timer_service.adapters.sqlite.marks import Marks
from timer_service.adapters.sqlite.ownership import Ownership, sole_owner
from timer_service.adapters.sqlite.pages import pages_of
from timer_service.adapters.sqlite.questions import ANSWERERS, Questions
from timer_service.adapters.sqlite.write_ahead_log import WriteAheadLog
from timer_service.domain import timer as rules
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import StoreFailed, TransientError
from timer_service.domain.messages import (
    Command,
    DueTimeReached,
    ServiceCallId,
    TenantId,
    TimerKey,
)
from timer_service.domain.timer import DueTimer, Outcome, Timer, TimerState
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)

VACUUM_PAGES: Final = 256
"""How much freed space one purge gives back to the file system at the most: 1 MiB."""

MAX_CLAIMS: Final = 1_000
"""A claim costs no more than its timers."""

log = structlog.get_logger(__name__)

_NOBODY: Final = ""
"""Who asks for counts: no tenant."""

# A batch goes into a statement as one JSON text. SQLite then works it off in one step, beside the
# interpreter; with a step for each row the two would wait for each other at every row.

# The rows that a batch of commands is about, found by primary key.
_LOAD: Final = f"""
SELECT {rows.of_table("t", rows.TIMER_COLUMNS)}
FROM json_each(?) AS wanted
CROSS JOIN timer_schedules AS t ON t.tenant_id = wanted.value ->> 0 AND t.service_call_id = wanted.value ->> 1
"""  # noqa: S608 - the column list is a constant

# Rows as the domain's rules left them.
_SAVE: Final = f"""
INSERT INTO timer_schedules ({rows.TIMER_COLUMNS})
SELECT {", ".join(f"value ->> {index}" for index, _ in enumerate(rows.COLUMNS))}
FROM json_each(?) WHERE true
ON CONFLICT (tenant_id, service_call_id) DO UPDATE SET {rows.changes_from("excluded")}
"""  # noqa: S608 - the column list is a constant

NEXT_DUE: Final = "SELECT min(due_at) FROM timer_schedules WHERE state = 'Scheduled' AND due_at > ?"

_GET: Final = f"SELECT {rows.TIMER_COLUMNS} FROM timer_schedules WHERE tenant_id = ? AND service_call_id = ?"  # noqa: S608

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

# A read that fixes the moment which the rest of its transaction sees.
FIX_THE_MOMENT: Final = "SELECT 1 FROM timer_migrations LIMIT 1"

# Once; from then on the changes are counted.
COUNT_PENDING: Final = "SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled'"


@asynccontextmanager
async def open_sqlite_store(
    path: Path, now: Callable[[], datetime], *, migrations: Sequence[Migration] | None = None
) -> AsyncIterator["SqliteTimerStore"]:
    """Own the file, bring its schema up to date and open it; give it back at the end."""
    require_sqlite()
    path = path.resolve()
    with sole_owner(path) as ownership:
        async with AsyncExitStack() as stack:
            try:
                with translated(path):
                    # Here and not on aiosqlite's thread, which a failing connect would leave behind.
                    sqlite3.connect(uri(path), uri=True).close()
                    writer = await stack.enter_async_context(connect(path))
                    await prepare_in_time(writer, path, rows.text(now()), migrations)
                    await refuse_a_copy(writer, path)
                    is_new = await exists(writer, NEW)
                reader = await stack.enter_async_context(connect(path, read_only=True))
                answerers = [
                    await stack.enter_async_context(connect(path, read_only=True)) for _ in range(ANSWERERS)
                ]
            except TransientError as error:
                raise StoreFailed(f"cannot write at start: {error}") from error
            if ownership.created:
                log.info("store.created", path=str(path))
            yield SqliteTimerStore(ownership, writer, reader, Questions(path, answerers), is_new=is_new)


class SqliteTimerStore:
    """The timer store on SQLite: one connection writes, one finds what is due, a few answer questions.

    So a slow question holds up no timer. Only one writes, because SQLite before 3.51.3 can corrupt a WAL
    that two connections write or checkpoint at once, and because a second writer would only wait.
    """

    max_claims = MAX_CLAIMS

    def __init__(
        self,
        ownership: Ownership,
        writer: aiosqlite.Connection,
        reader: aiosqlite.Connection,
        questions: Questions,
        *,
        is_new: bool,
    ) -> None:
        path = self._path = ownership.path
        self._ownership = ownership
        self._is_new = is_new
        self._writer = writer
        self._reader = reader
        self._questions = questions
        self._log = WriteAheadLog(path, writer, questions)
        self._looks = Looks(self._read)
        self._writing = asyncio.Lock()
        self._claiming = asyncio.Lock()
        self.marks = Marks(writer, self._transaction)
        self._pending: int | None = None
        self._pending_since: int | None = None
        """How the count under way has changed since it began; None where that is not known."""
        self._claimed: set[TimerKey] = set()
        self._calling: Counter[TimerKey] = Counter()
        self._called_lately: set[TimerKey] = set()
        self._wanted: set[TimerKey] = set()
        """Due, but left out of a claim because of a call: no other call may hold them up again."""

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Apply the domain's rules in order."""
        outcomes, _ = await self._change(commands, now, rules.apply)
        return outcomes

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Apply the domain's rules; a timer that is being fired is not open to requests, nor the reverse."""
        closed = self._claimed | self._wanted
        requested = {request.key: request for request in requests}
        requested = {key: request for key, request in requested.items() if key not in closed}
        self._called_lately |= requested.keys()
        self._calling.update(requested.keys())
        try:
            outcomes, timers = (
                await self._change(list(requested.values()), now, rules.decide) if requested else ([], {})
            )
        finally:
            self._calling.subtract(requested.keys())
            self._calling = +self._calling  # Entries of zero would stay for ever.
        decided = dict(zip(requested, outcomes, strict=True))
        return [_decided(decided, timers, request.key) for request in requests]

    async def _change(
        self, commands: Sequence[Command], now: datetime, rule: rules.Rule
    ) -> tuple[list[Outcome], dict[TimerKey, Timer]]:
        """Load the rows concerned, apply the rules in order, save what changed."""
        outcomes: list[Outcome] = []
        async with self._transaction() as changes:
            timers = await self._load({command.key for command in commands})
            changed = changes.timers
            for command in commands:
                key = command.key
                before = timers.get(key)
                timers[key], outcome = rule(before, command, now)
                if timers[key] is not before:
                    changed[key] = timers[key]
                    changes.pending += _is_pending(timers[key]) - _is_pending(before)
                outcomes.append(outcome)
            if changed:
                await self._writer.execute(
                    _SAVE, (json.dumps([rows.row(timer) for timer in changed.values()]),)
                )
                await advance_epochs(self._writer, commands)
        return outcomes, timers

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AsyncIterator[Claim]:
        """Read what is due: this process owns the file, so only its own other claims have to be left out."""
        async with self._claiming:
            # With those under way: one may end before the reading does, and the reading not see it.
            self._called_lately = set(self._calling)
            found, more = await self._looks.find(now, limit, self._claimed, held_back)
            # A call that ran beside the reading may have changed what was read: that timer has to wait.
            open_to_calls = self._called_lately | set(self._calling)
            ours = [row for row in found if row[:2] not in open_to_calls]
            self._wanted = {row[:2] for row in found} & open_to_calls
            keys = {row[:2] for row in ours}
            self._claimed |= keys
            self._looks.given_back(self._wanted)
        claim = _SqliteClaim(
            self.marks, [rows.due_timer(row) for row in ours], more or len(ours) < len(found)
        )
        try:
            yield claim
        finally:
            self._claimed -= keys
            if claim.marked < len(keys):
                self._looks.given_back(keys)

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Return the earliest due time later than `after`."""
        [(due_at,)] = await self._read(NEXT_DUE, (rows.text(after),))
        return rows.moment(due_at)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        found = await self._questions.ask(tenant_id, _GET, (tenant_id, service_call_id))
        return rows.timer(found[0]) if found else None

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Merge index-ordered pages, so that no list ever sorts a tenant's whole history."""
        pages = [await self._questions.ask(query.tenant_id, *page) for page in pages_of(query)]
        found = merge(*pages, key=lambda row: (row[3], row[1]))
        return [rows.timer(row) for row, _ in zip(found, range(query.limit), strict=False)]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        async with self._transaction():
            cursor = await self._writer.execute(PURGE, (rows.text(ended_before), limit))
            purged = cursor.rowcount
        if purged:
            async with self._writing:
                with translated(self._path):
                    await self._writer.execute_fetchall(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        return purged

    async def count(self, now: datetime) -> StoreCounts:
        """Count what is overdue; what is pending is known from counting every change."""
        [(overdue, oldest, nearest)] = await self._questions.ask(
            _NOBODY, COUNT_OVERDUE, {"now": rows.text(now)}
        )
        return StoreCounts(
            pending=await self._count_pending(),
            overdue=overdue,
            oldest_overdue_at=rows.moment(oldest),
            next_due_at=rows.moment(nearest),
            file_bytes=_size(self._path),
            log_bytes=self._log.size_bytes,
            free_bytes=shutil.disk_usage(self._path.parent).free,
        )

    async def meet_history(self, acknowledged: int, *, allow_new: bool = False) -> None:
        """Learn how many commands were ever acknowledged; refuse to begin anew where that loses timers."""
        if not self._is_new:
            return
        if acknowledged and not allow_new:
            raise StoreFailed(
                f"{self._path} is new, but {acknowledged} commands were acknowledged before: the database "
                "with their timers is missing. Put it back or restore a backup (check TIMER_DB_PATH and "
                "whether the volume is mounted); to go on without those timers set TIMER_ALLOW_NEW_STORE=true"
            )
        async with self._transaction():
            await self._writer.execute(f"DROP TABLE IF EXISTS {NEW}")
        self._is_new = False

    async def stream_epochs(self) -> list[StreamEpoch]:
        """Return every epoch of every command stream."""
        with translated(self._path):
            return await read_epochs(self._reader)

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        """Keep a new epoch unless its number is taken."""
        async with self._transaction():
            return await insert_epochs(self._writer, [epoch]) > 0

    async def _count_pending(self) -> int:
        """Count once, beside the writer: it waits only until the moment that is counted is fixed."""
        if self._pending is not None:
            return self._pending
        async with self._questions.asking(_NOBODY) as connection:
            async with self._writing:
                await connection.execute("BEGIN")
                await connection.execute_fetchall(FIX_THE_MOMENT)
                self._pending_since = 0
            try:
                [(counted,)] = await connection.execute_fetchall(COUNT_PENDING)
            finally:
                with suppress(sqlite3.Error):
                    await connection.execute("ROLLBACK")
        if self._pending_since is not None:
            self._pending = counted + self._pending_since
            self._pending_since = None
        return int(counted if self._pending is None else self._pending)

    async def _load(self, keys: Iterable[TimerKey]) -> dict[TimerKey, Timer]:
        found = await self._writer.execute_fetchall(_LOAD, (json.dumps(list(keys)),))
        return {timer.key: timer for timer in map(rows.timer, found)}

    async def _read(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        with translated(self._path):
            return list(await self._reader.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator["_Changes"]:
        """Run the block in one write transaction, durable when it ends, undone where it raises."""
        changes = _Changes()
        async with self._writing:
            with translated(self._path):
                try:
                    await self._writer.execute("BEGIN IMMEDIATE")
                    yield changes
                    await self._commit(changes)
                except BaseException:
                    # Also after a failed COMMIT, and where SQLite has rolled back by itself.
                    with suppress(sqlite3.Error):
                        await self._writer.execute("ROLLBACK")
                    raise
                finally:
                    # Also where it failed: whether the change is in is not always known.
                    self._looks.saved(changes.timers.values())
        # A commit to a file that nobody finds again is none.
        self._ownership.check()
        await self._log.keep_bounded(self._writing)

    async def _commit(self, changes: "_Changes") -> None:
        pending, since = self._pending, self._pending_since
        # Whether the change is in is not known before the answer: without one, count again.
        self._pending = self._pending_since = None
        await self._writer.execute("COMMIT")
        self._pending = None if pending is None else pending + changes.pending
        self._pending_since = None if since is None else since + changes.pending


@dataclass(slots=True)
class _Changes:
    """What a transaction changes about the store as a whole."""

    pending: int = 0
    timers: dict[TimerKey, Timer] = field(default_factory=dict)
    """As they are to be saved."""


@dataclass(slots=True)
class _SqliteClaim:
    _marks: Marks
    timers: Sequence[DueTimer]
    more: bool
    marked: int = 0

    async def mark_reached(self, events: Sequence[DueTimeReached]) -> int:
        marked = await self._marks.mark(events)
        self.marked += marked
        return marked


def _decided(outcomes: dict[TimerKey, Outcome], timers: dict[TimerKey, Timer], key: TimerKey) -> Decided:
    outcome = outcomes.get(key, Outcome.DUE)
    return Decided(outcome, None if outcome is Outcome.DUE else timers[key])


def _is_pending(timer: Timer | None) -> bool:
    return timer is not None and timer.state is TimerState.SCHEDULED


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
