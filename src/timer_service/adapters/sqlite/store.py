"""Timers in one SQLite file, owned by one process."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import Any, Final

import aiosqlite

from timer_service.adapters import rows
from timer_service.adapters.sqlite import statements
from timer_service.adapters.sqlite.callback_list import SqliteCallbackList
from timer_service.adapters.sqlite.deliveries import SqliteDeliveries, forget_callbacks, keep_callbacks
from timer_service.adapters.sqlite.epochs import advance_epochs, insert_epochs, read_epochs
from timer_service.adapters.sqlite.errors import translated
from timer_service.adapters.sqlite.exclusion import Exclusion
from timer_service.adapters.sqlite.insight import SqliteInsight
from timer_service.adapters.sqlite.limits import SqliteLimits
from timer_service.adapters.sqlite.looks import Looks
from timer_service.adapters.sqlite.marks import Marks
from timer_service.adapters.sqlite.ownership import Ownership
from timer_service.adapters.sqlite.pages import pages_of
from timer_service.adapters.sqlite.pending import PendingCount
from timer_service.adapters.sqlite.questions import NOBODY, Questions
from timer_service.adapters.sqlite.schema import NEW
from timer_service.adapters.sqlite.sealed_headers import SqliteSealedHeaders
from timer_service.adapters.sqlite.write_ahead_log import WriteAheadLog
from timer_service.adapters.sqlite.writer import Changes, Writer
from timer_service.domain import timer as rules
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import StoreFailed
from timer_service.domain.messages import (
    Command,
    Event,
    ServiceCallId,
    TenantId,
    TimerKey,
    epoch_ms,
)
from timer_service.domain.outcomes import accepted_callbacks, dropped_callbacks, in_groups
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)

MAX_CLAIMS: Final = 1_000
"""A claim costs no more than its timers."""
MAX_VACUUM_PAGES: Final = 256
"""How much freed space one purge gives back to the file system: 1 MiB."""


class SqliteTimerStore:
    """The timer store on SQLite: one connection writes, one finds what is due, a few answer questions.

    So a slow question holds up no timer.
    """

    max_claims = MAX_CLAIMS

    def __init__(
        self,
        ownership: Ownership,
        writer: aiosqlite.Connection,
        reader: aiosqlite.Connection,
        delivery_reader: aiosqlite.Connection,
        questions: Questions,
        limits: SqliteLimits,
        *,
        is_new: bool,
    ) -> None:
        path = self._path = ownership.path
        self._is_new = is_new
        self._reader = reader
        self._delivery_reader = delivery_reader
        self._questions = questions
        writing = asyncio.Lock()
        self._log = WriteAheadLog(path, writer, questions, limits)
        self._looks = {sink: Looks(self._read, limits, sink) for sink in Sink}
        self._pending = PendingCount(questions, writing)
        self._writer = Writer(ownership, writer, writing, self._log, self._pending, self._saved)
        # One for each sink: a look for a few timers on the bus does not wait for one for many callbacks.
        self._claiming = {sink: asyncio.Lock() for sink in Sink}
        self.marks = Marks(writer, self._writer.transaction)
        self.deliveries = SqliteDeliveries(self._writer, self._read_deliveries, questions)
        self.sealed_headers = SqliteSealedHeaders(self._writer, self._read_deliveries)
        self.insight = SqliteInsight(questions)
        self.callback_list = SqliteCallbackList(questions)
        self._exclusion = Exclusion()

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Apply the domain's rules in order."""
        async with self._writer.transaction() as changes:
            outcomes, _ = await self._change(changes, commands, now, rules.apply)
        return outcomes

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Apply the domain's rules; a timer that is being fired is not open to requests, nor the reverse."""
        by_key = {request.key: request for request in requests}
        outcomes: list[Outcome] = []
        timers: dict[TimerKey, Timer] = {}
        with self._exclusion.requesting(by_key) as keys:
            if keys:
                async with self._writer.transaction() as changes:
                    for some in in_groups([by_key[key] for key in keys]):
                        decided, found = await self._change(changes, some, now, rules.decide)
                        outcomes += decided
                        timers |= found
            by_timer = dict(zip(keys, outcomes, strict=True))
        return [
            _decided(by_timer.get(request.key, Outcome.DUE), timers.get(request.key)) for request in requests
        ]

    async def _change(
        self, changes: Changes, commands: Sequence[Command], now: datetime, rule: rules.Rule
    ) -> tuple[list[Outcome], dict[TimerKey, Timer]]:
        """Load the rows concerned, apply the rules in order, save what changed; inside a transaction."""
        outcomes: list[Outcome] = []
        changed: dict[TimerKey, Timer] = {}
        keys = [command.key for command in commands]
        timers = await self._load(dict.fromkeys(keys))
        there = frozenset(timers)
        for key, command in zip(keys, commands, strict=True):
            before = timers.get(key)
            after, outcome = rule(before, command, now)
            if after is not before:
                timers[key] = changed[key] = after
                changes.pending += _is_pending(after) - _is_pending(before)
            outcomes.append(outcome)
        if changed:
            changes.timers |= changed
            await self._writer.connection.execute(*statements.save(changed.values()))
            if rule is rules.decide:
                callbacks = accepted_callbacks(commands, outcomes)
                dropped = there.intersection(dropped_callbacks(commands, outcomes))
                await keep_callbacks(self._writer.connection, callbacks, dropped, now)
            await advance_epochs(self._writer.connection, commands)
        return outcomes, timers

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        """Read what is due: this process owns the file, so only its own other claims have to be left out."""
        looks = self._looks[sink]
        async with self._claiming[sink]:
            claimed_before = self._exclusion.begin_look(sink)
            try:
                found, more, read_ahead = await looks.find(now, limit, claimed_before, held_back)
            except BaseException:
                self._exclusion.end_look(sink)
                raise
            keys = {row[:2] for row in found}
            claimed = self._exclusion.claim(keys, sink)
            looks.given_back(keys - claimed)
        if len(claimed) < len(found):
            found = [row for row in found if row[:2] in claimed]
        timers = [rows.due_timer(row) for row in found]
        claim = _SqliteClaim(self.marks, sink, timers, more or len(claimed) < len(keys), read_ahead)
        try:
            yield claim
        finally:
            self._exclusion.give_back(claimed)
            if claim.marked < len(claimed):
                looks.given_back(claimed)

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        """Return the earliest due time later than `after`."""
        return await self._looks[sink].next_due_at(after)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        found = await self._questions.ask(tenant_id, statements.GET, (tenant_id, service_call_id))
        return rows.timer(found[0]) if found else None

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Merge index-ordered pages, so that no list ever sorts a tenant's whole history."""
        pages = [await self._questions.ask(query.tenant_id, *page) for page in pages_of(query)]
        found = merge(*pages, key=lambda row: (row[3], row[1]))
        return [rows.timer(row) for row, _ in zip(found, range(query.limit), strict=False)]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        async with self._writer.transaction():
            parameters = (rows.text(ended_before), limit)
            gone = list(await self._writer.connection.execute_fetchall(statements.PURGE, parameters))
            with_callback = [(row[0], row[1]) for row in gone if row[2] == Sink.HTTP]
            await forget_callbacks(self._writer.connection, with_callback)
            purged = len(gone)
        if purged:
            async with self._writer.lock:
                with translated(self._path):
                    vacuum = f"PRAGMA incremental_vacuum({MAX_VACUUM_PAGES})"
                    await self._writer.connection.execute_fetchall(vacuum)
        return purged

    async def count(self, now: datetime) -> StoreCounts:
        """Count what is overdue; what is pending is known from counting every change."""
        at = {"now_ms": epoch_ms(now)}
        [(overdue, oldest, nearest)] = await self._questions.ask(NOBODY, statements.COUNT_OVERDUE, at)
        return StoreCounts(
            pending=await self._pending.count(),
            overdue=overdue,
            oldest_overdue_at=rows.moment(oldest),
            next_due_at=rows.moment(nearest),
            file_bytes=_size(self._path),
            log_bytes=self._log.size_bytes,
            free_bytes=shutil.disk_usage(self._path.parent).free,
        )

    async def meet_history(self, acknowledged: int, *, allow_new: bool = False) -> None:
        """Learn how many commands were ever acknowledged; refuse to start empty if that loses timers."""
        if not self._is_new:
            return
        if acknowledged and not allow_new:
            raise StoreFailed(
                f"{self._path} is new, but {acknowledged} commands were acknowledged before: the database "
                "with their timers is missing. Put it back or restore a backup (check TIMER_DB_PATH and "
                "whether the volume is mounted); to go on without those timers set TIMER_ALLOW_NEW_STORE=true"
            )
        async with self._writer.transaction():
            await self._writer.connection.execute(f"DROP TABLE IF EXISTS {NEW}")
        self._is_new = False

    async def stream_epochs(self) -> list[StreamEpoch]:
        """Return every epoch of every command stream."""
        with translated(self._path):
            return await read_epochs(self._reader)

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        """Keep a new epoch unless its number is taken."""
        async with self._writer.transaction():
            return await insert_epochs(self._writer.connection, [epoch]) > 0

    async def _load(self, keys: Iterable[TimerKey]) -> dict[TimerKey, Timer]:
        wanted = statements.json_text(list(keys))
        found = await self._writer.connection.execute_fetchall(statements.LOAD, (wanted,))
        return {timer.key: timer for timer in map(rows.timer, found)}

    def _saved(self, timers: Collection[Timer]) -> None:
        for looks in self._looks.values():
            looks.saved(timers)

    async def _read(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        with translated(self._path):
            return list(await self._reader.execute_fetchall(sql, parameters))  # type: ignore[arg-type]

    async def _read_deliveries(self, sql: str, parameters: Any) -> list[tuple[Any, ...]]:
        # On a connection of its own: no look for due timers waits until bodies are read.
        with translated(self._path):
            return list(await self._delivery_reader.execute_fetchall(sql, parameters))  # type: ignore[arg-type]


@dataclass(slots=True)
class _SqliteClaim:
    _marks: Marks
    _sink: Sink
    timers: Sequence[DueTimer]
    more: bool
    read_ahead: bool
    marked: int = 0

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> set[TimerKey]:
        settled = await self._marks.settle(timers, verdict)
        return {timer.key for timer in self.timers} - ({timer.key for timer in timers} - settled)

    async def mark_reached(self, events: Sequence[Event]) -> int:
        marked = await self._marks.mark(events, self._sink)
        self.marked += marked
        return marked


def _decided(outcome: Outcome, timer: Timer | None) -> Decided:
    return Decided(outcome, None if outcome is Outcome.DUE else timer)


def _is_pending(timer: Timer | None) -> bool:
    return timer is not None and timer.state is TimerState.SCHEDULED


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
