"""Timers in a PostgreSQL database that several instances share.

There is no leader, no lease and no clean-up of what a dead instance left: a claim is a transaction that holds
the rows' locks while their events are published, and the server ends it with its connection.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from timer_service.adapters import rows
from timer_service.adapters.postgres import arrays, epochs, statements
from timer_service.adapters.postgres.api_keys import PostgresApiKeys
from timer_service.adapters.postgres.audit import PostgresAudit
from timer_service.adapters.postgres.batch import Batch, decide, insert, save
from timer_service.adapters.postgres.callback_list import PostgresCallbackList
from timer_service.adapters.postgres.claim import PostgresClaim
from timer_service.adapters.postgres.connections import (
    Connection,
    Connections,
    Row,
)
from timer_service.adapters.postgres.deliveries import PostgresDeliveries, keep_callbacks
from timer_service.adapters.postgres.hints import Hints
from timer_service.adapters.postgres.insight import PostgresInsight
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.looks import FIND_DUE, PEEK, Turns, most_to_read
from timer_service.adapters.postgres.means import REAL_MEANS
from timer_service.adapters.postgres.pages import page_of
from timer_service.adapters.postgres.pending import PendingCount
from timer_service.adapters.postgres.sealed_headers import PostgresSealedHeaders
from timer_service.adapters.postgres.secrets import PostgresSecretStore
from timer_service.adapters.postgres.statistics import Statistics
from timer_service.domain import timer as rules
from timer_service.domain.callback import Sink
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import StoreBusy
from timer_service.domain.messages import (
    Command,
    ServiceCallId,
    TenantId,
    TimerKey,
)
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)

MAX_CLAIMS: Final = 2
"""Each holds a connection: one is marked while another is published, and one is left for commands."""
LOOK_AGAIN_S: Final = 0.5
"""How soon to look again for due timers that another instance holds: it may be dying."""
APPLY_TRIES: Final = 5

_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


class PostgresTimerStore:
    """The timer store on PostgreSQL: some connections work, others answer questions."""

    max_claims = MAX_CLAIMS

    def __init__(
        self,
        work: Connections,
        answers: Connections,
        for_callbacks: Connections,
        hints: Hints,
        now: Callable[[], datetime],
        limits: PostgresLimits,
        elapsed_s: Callable[[], float] = REAL_MEANS.elapsed_s,
    ) -> None:
        self._work = work
        self._answers = answers
        self.secrets = PostgresSecretStore(answers)
        self.sealed_headers = PostgresSealedHeaders(answers)
        self.api_keys, self.audit = PostgresApiKeys(answers), PostgresAudit(answers)
        self.insight, self.callback_list = PostgresInsight(answers), PostgresCallbackList(answers)
        self._hints = hints
        self._now = now
        self._limits = limits
        self._claims: set[PostgresClaim] = set()
        self._turns = {sink: Turns(limits, sink, elapsed_s) for sink in Sink}
        self._others_hold_due: dict[Sink, bool] = {}
        self._looked: dict[Sink, tuple[datetime, datetime]] = {}
        """When the last look was by our clock, and at which moment it looked."""
        self._firing = {Sink.BUS: work, Sink.HTTP: for_callbacks}
        """Apart: while one sink is slow, the other has its connections."""
        self.deliveries = PostgresDeliveries(for_callbacks, answers, elapsed_s)
        self._pending = PendingCount(answers, limits, elapsed_s)
        self.statistics = Statistics(answers, limits.learn_every)
        self.skew_s = 0.0
        """How far our clock is ahead of the database's; negative if it is behind."""

    def listen(self, callback: Callable[[datetime], None]) -> AbstractAsyncContextManager[None]:
        """Call back with each nearer due time that an instance commits; some may be missed."""
        return self._hints.listen(callback)

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Insert what is new; lock the rest, apply the domain's rules and save what changed."""
        if not commands:
            return []
        batch = Batch(commands, now, rules.apply)
        await self._apply_batch(batch, commands)
        await self.statistics.applied(len(commands))
        if batch.nearest is not None:
            self._hints.announce(batch.nearest)
        return batch.outcomes

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Insert what is new; of the rest, change what nobody holds."""
        if not requests:
            return []
        batch = Batch(requests, now, rules.decide)
        timers: dict[TimerKey, Timer] = {}
        try:
            async with self._answers.transaction() as connection:
                timers = await decide(connection, batch)
                await keep_callbacks(connection, requests, batch.outcomes, timers, now)
                await epochs.advance_epochs(connection, requests)
        except StoreBusy as error:
            if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise
        batch.refuse(batch.commands.keys() - timers.keys())
        if batch.nearest is not None:
            self._hints.announce(batch.nearest)
        return [
            Decided(outcome, None if outcome is Outcome.DUE else timers[request.key])
            for request, outcome in zip(requests, batch.outcomes, strict=True)
        ]

    async def _apply_batch(self, batch: Batch, commands: Sequence[Command]) -> None:
        async with self._work.transaction() as connection:
            unsettled = set(batch.commands)
            for _ in range(APPLY_TRIES):
                unsettled -= await insert(connection, batch, unsettled)
                if unsettled:
                    unsettled -= await self._change(connection, batch, unsettled)
                if not unsettled:
                    await epochs.advance_epochs(connection, commands)
                    return
            raise StoreBusy("timers were created and deleted too often meanwhile")

    async def _change(self, connection: Connection, batch: Batch, keys: set[TimerKey]) -> set[TimerKey]:
        """Change timers that exist; return which of them do."""
        loaded = await connection.fetch(statements.LOAD, *arrays.transposed(keys, 2))
        found = list(map(rows.timer, loaded))
        # Most of what is delivered again changes nothing: that need not wait for anybody's lock.
        touched = {timer.key for timer in found if batch.apply(timer) is not timer}
        settled = {timer.key for timer in found} - touched
        if touched:
            for claim in list(self._claims):
                await claim.give_up(touched)
            locked = await connection.fetch(statements.LOCK, *arrays.transposed(touched, 2))
            settled |= await save(connection, batch, [rows.timer(row) for row in locked])
        return settled

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        """Lock what is due until the claim is left; other instances pass over it."""
        claim = PostgresClaim(self._firing[sink], self._limits.claim_timeout_s, sink)
        try:
            await self._fill(claim, now, limit, held_back, sink)
            self._claims.add(claim)
            yield claim
        finally:
            self._claims.discard(claim)
            await claim.end()

    async def _fill(
        self, claim: PostgresClaim, now: datetime, limit: int, held_back: HeldBack, sink: Sink
    ) -> None:
        held = arrays.transposed(held_back.timers, 2)
        tenants = list(held_back.tenants)
        most = most_to_read(limit, held_back, self._limits.max_passed_over)
        # Without a lock first: nothing is due most of the time.
        peek, find_due = rows.for_sink(PEEK, sink), rows.for_sink(FIND_DUE, sink)
        [(at, due, free)] = await self._firing[sink].fetch(peek, rows.text(now), *held, tenants, most)
        self._looked[sink] = (now, at)
        turns = self._turns[sink]
        found: list[Row] = []
        in_turns = free > limit or due == most
        if in_turns:
            async with claim.begun() as connection:
                found = await turns.take(connection, at, limit, held_back)
        elif free:
            async with claim.begun() as connection:
                found = await connection.fetch(find_due, rows.text(at), *held, tenants, limit)
        if not in_turns:
            turns.forget()
        self._others_hold_due[sink] = len(found) < min(free, limit) or (in_turns and turns.met_locks)
        more = in_turns and (len(found) == limit or turns.has_more)
        await claim.hold([rows.due_timer(row) for row in found], more=more)

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        """Return the earliest due time later than `after`, in terms of our clock.

        Sooner where another instance holds what is due already, to take it over should that one die.
        """
        now, at = self._looked.get(sink, (None, None))
        looked_at = rows.text(at) if at is not None and now == after else None
        sql = rows.for_sink(statements.NEXT_DUE, sink)
        [(clock, due_at)] = await self._firing[sink].fetch(sql, rows.text(after), looked_at)
        # Where our clock is ahead, the timer is due only when the database's clock says so too.
        ahead = max(after - clock, timedelta())
        moments = [_later(due_at, ahead)] if due_at is not None else []
        if self._others_hold_due.get(sink):
            moments.append(after + timedelta(seconds=LOOK_AGAIN_S))
        return min(moments, default=None)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        found = await self._answers.ask(statements.GET, tenant_id, service_call_id)
        return rows.timer(found[0]) if found else None

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page in the order of an index."""
        sql, parameters = page_of(query)
        return [rows.timer(row) for row in await self._answers.ask(sql, *parameters)]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        async with self._work.transaction() as connection:
            return int(await connection.fetchval(statements.PURGE, rows.text(ended_before), limit))

    async def count(self, now: datetime) -> StoreCounts:
        """Count what is overdue, and measure our clock against the database's."""
        await self.measure_skew()
        [(overdue, oldest, nearest, size)] = await self._answers.ask(
            statements.COUNT_OVERDUE, rows.text(now), limit_s=self._limits.statement_timeout_s
        )
        return StoreCounts(
            pending=await self._pending.count(),
            overdue=overdue,
            oldest_overdue_at=oldest,
            next_due_at=nearest,
            file_bytes=size,
            log_bytes=0,
            free_bytes=sys.maxsize,  # The server's disk is watched where the server is.
        )

    async def measure_skew(self) -> None:
        """Compare our clock with the database's."""
        before = self._now()
        [(clock,)] = await self._answers.ask(f"SELECT {statements.CLOCK}")
        after = self._now()
        self.skew_s = (before + (after - before) / 2 - clock).total_seconds()

    async def stream_epochs(self) -> list[StreamEpoch]:
        """Return every epoch of every command stream."""
        return epochs.stream_epochs(await self._answers.fetch(epochs.READ))

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        """Keep a new epoch unless another instance was first."""
        async with self._answers.transaction() as connection:
            return await epochs.insert_epochs(connection, [epoch]) > 0


def _later(moment: datetime, span: timedelta) -> datetime:
    return moment + span if moment <= _LATEST - span else moment
