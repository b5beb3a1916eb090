"""Timers in a PostgreSQL database that several instances share.

There is no leader, no lease and no clean-up of what a dead instance left: a claim is a transaction that holds
the rows' locks while their events are published, and the server ends it with its connection.
"""

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from timer_service.adapters import rows
from timer_service.adapters.migrations import Migration
from timer_service.adapters.postgres import arrays, epochs
from timer_service.adapters.postgres.claims import FIRING, PostgresClaim
from timer_service.adapters.postgres.connections import (
    STATEMENT_LIMIT_S,
    Address,
    Connection,
    Connections,
    Row,
    affected,
    open_connections,
)
from timer_service.adapters.postgres.hints import Hints
from timer_service.adapters.postgres.looks import FIND_DUE, PEEK, Turns, most_to_read
from timer_service.adapters.postgres.opening import not_moved, wait_for
from timer_service.adapters.postgres.questions import COUNT_OVERDUE, COUNT_PENDING, GET, page_of
from timer_service.domain import timer as rules
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import StoreBusy, TransientError
from timer_service.domain.messages import (
    Command,
    ServiceCallId,
    TenantId,
    TimerKey,
)
from timer_service.domain.timer import Outcome, Timer, nearest_due_at
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)

WORK_CONNECTIONS: Final = 3
"""Applying commands, holding a claim, and deleting or marking besides."""
MAX_CLAIMS: Final = 2
"""Each holds a connection: one is marked while another is published, and one is left for commands."""
ANSWER_CONNECTIONS: Final = 3
"""So that questions and calls never keep the work waiting."""
STATEMENT_CACHE_SIZE: Final = 100
CLAIM_LIMIT_S: Final = 10.0
"""A claim that is silent for so long is ended by the server; publishing gives up well before that."""
START_PATIENCE_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.5
"""How soon to look again for due timers that another instance holds: it may be dying."""
APPLY_TRIES: Final = 5
CHEAP_COUNT_S: Final = 0.02
PENDING_FRESH_S: Final = 60.0
"""For so long a count of all pending timers serves, unless it is cheap."""

_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

# The database's own clock, cut down to the millisecond as ours is.
_CLOCK: Final = "date_trunc('milliseconds', clock_timestamp())"

# New timers; what another instance has inserted meanwhile is not touched and not returned.
_INSERT: Final = f"""
INSERT INTO timer_schedules ({rows.TIMER_COLUMNS})
SELECT * FROM {arrays.GIVEN}
ON CONFLICT DO NOTHING
RETURNING tenant_id, service_call_id
"""  # noqa: S608 - constants

# The rows that a batch of commands is about, found by primary key.
_LOAD: Final = f"""
SELECT {rows.TIMER_COLUMNS} FROM timer_schedules
JOIN unnest($1::text[], $2::text[]) AS wanted(tenant_id, service_call_id)
  USING (tenant_id, service_call_id)
"""  # noqa: S608

# The same, ours until the commit. In the order of the key: two batches never wait for each other in a ring.
_LOCK: Final = f"{_LOAD} ORDER BY tenant_id, service_call_id FOR UPDATE OF timer_schedules"

# For requests, which pass over a timer that is being fired instead of waiting. The clock is read once the
# lock is held.
_LOCK_FOR_REQUESTS: Final = f"""
WITH locked AS MATERIALIZED ({_LOAD} FOR UPDATE OF timer_schedules SKIP LOCKED)
SELECT {rows.TIMER_COLUMNS}, pg_try_advisory_xact_lock({FIRING}), {_CLOCK} FROM locked
"""  # noqa: S608

# Rows as the domain's rules left them; their locks are held.
_UPDATE: Final = f"""
UPDATE timer_schedules AS t SET {rows.changes_from("new")}
FROM {arrays.GIVEN} AS new({rows.TIMER_COLUMNS})
WHERE t.tenant_id = new.tenant_id AND t.service_call_id = new.service_call_id
"""  # noqa: S608

# A timer that was due by our clock but not by the database's has still to come, or has come since the look.
NEXT_DUE: Final = """
WITH moment AS MATERIALIZED (SELECT date_trunc('milliseconds', clock_timestamp()) AS clock)
SELECT (SELECT clock FROM moment), (
  SELECT min(due_at) FROM timer_schedules
  WHERE state = 'Scheduled'
    AND due_at > least($1::text::timestamptz, coalesce($2::text::timestamptz, (SELECT clock FROM moment))))
"""

# Retention, oldest first and bounded, so that it never holds up firing; several instances share the work.
PURGE: Final = """
DELETE FROM timer_schedules AS t USING (
  SELECT tenant_id, service_call_id FROM timer_schedules
  WHERE state <> 'Scheduled' AND coalesce(reached_at, cancelled_at) < $1::text::timestamptz
  ORDER BY coalesce(reached_at, cancelled_at)
  LIMIT $2
  FOR UPDATE SKIP LOCKED) AS old
WHERE t.tenant_id = old.tenant_id AND t.service_call_id = old.service_call_id
"""


@asynccontextmanager
async def open_postgres_store(
    url: str,
    now: Callable[[], datetime],
    *,
    statement_cache_size: int = STATEMENT_CACHE_SIZE,
    claim_limit_s: float = CLAIM_LIMIT_S,
    start_patience_s: float = START_PATIENCE_S,
    migrations: Sequence[Migration] | None = None,
) -> AsyncIterator["PostgresTimerStore"]:
    """Connect, bring the schema up to date and open the store.

    A database that is away is waited for, within bounds. Behind a pooler in transaction mode that knows no
    prepared statements, `statement_cache_size` has to be 0.
    """
    address = Address(url, statement_cache_size)
    check = not_moved(address)
    async with (
        open_connections(address, WORK_CONNECTIONS, check=check) as work,
        open_connections(address, ANSWER_CONNECTIONS, asked=True, check=check) as answers,
    ):
        await wait_for(work, start_patience_s, migrations)
        if not await work.waits_for_disk():
            work.be_durable()
            answers.be_durable()
        hints = Hints(address, answers, now)
        store = PostgresTimerStore(work, answers, hints, now, claim_limit_s)
        with suppress(TransientError):  # A busy server is no reason not to start; it is measured again.
            await store.measure_skew()
        async with hints.telling():
            yield store


class PostgresTimerStore:
    """The timer store on PostgreSQL: some connections work, others answer questions."""

    max_claims = MAX_CLAIMS

    def __init__(
        self,
        work: Connections,
        answers: Connections,
        hints: Hints,
        now: Callable[[], datetime],
        claim_limit_s: float,
    ) -> None:
        self._work = work
        self._answers = answers
        self._hints = hints
        self._now = now
        self._claim_limit_s = claim_limit_s
        self._claims: set[PostgresClaim] = set()
        self._turns = Turns()
        self._others_hold_due = False
        self._looked: tuple[datetime, datetime] | None = None
        """When the last look was by our clock, and at which moment it looked."""
        self._pending: tuple[float, int] | None = None
        self.skew_s = 0.0
        """How far our clock is ahead of the database's; negative where it is behind."""

    def listen(self, callback: Callable[[datetime], None]) -> AbstractAsyncContextManager[None]:
        """Call back with each nearer due time that an instance commits; some may be missed."""
        return self._hints.listen(callback)

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Insert what is new; lock the rest, apply the domain's rules and save what changed."""
        if not commands:
            return []
        batch = _Batch(commands, now, rules.apply)
        await self._apply_batch(batch, commands)
        if batch.nearest is not None:
            self._hints.announce(batch.nearest)
        return batch.outcomes

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Insert what is new; of the rest, change what nobody holds."""
        if not requests:
            return []
        batch = _Batch(requests, now, rules.decide)
        timers: dict[TimerKey, Timer] = {}
        try:
            async with self._answers.transaction() as connection:
                timers = await _decide(connection, batch)
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

    async def _apply_batch(self, batch: "_Batch", commands: Sequence[Command]) -> None:
        async with self._work.transaction() as connection:
            unsettled = set(batch.commands)
            for _ in range(APPLY_TRIES):
                unsettled -= await _insert(connection, batch, unsettled)
                if unsettled:
                    unsettled -= await self._change(connection, batch, unsettled)
                if not unsettled:
                    await epochs.advance_epochs(connection, commands)
                    return
            raise StoreBusy("timers came and went too often")

    async def _change(self, connection: Connection, batch: "_Batch", keys: set[TimerKey]) -> set[TimerKey]:
        """Change timers that exist; return which of them do."""
        found = [rows.timer(row) for row in await connection.fetch(_LOAD, *arrays.transposed(keys, 2))]
        # Most of what is delivered again changes nothing: that need not wait for anybody's lock.
        touched = {timer.key for timer in found if batch.apply(timer) is not timer}
        settled = {timer.key for timer in found} - touched
        if touched:
            for claim in list(self._claims):
                await claim.give_up(touched)
            locked = await connection.fetch(_LOCK, *arrays.transposed(touched, 2))
            settled |= await _save(connection, batch, [rows.timer(row) for row in locked])
        return settled

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AsyncIterator[Claim]:
        """Lock what is due until the claim is left; other instances pass over it."""
        claim = PostgresClaim(self._work, self._claim_limit_s)
        try:
            await self._fill(claim, now, limit, held_back)
            self._claims.add(claim)
            yield claim
        finally:
            self._claims.discard(claim)
            await claim.end()

    async def _fill(self, claim: PostgresClaim, now: datetime, limit: int, held_back: HeldBack) -> None:
        held = arrays.transposed(held_back.timers, 2)
        tenants = list(held_back.tenants)
        most = most_to_read(limit, held_back)
        # Without a lock first: nothing is due most of the time.
        [(at, due, free)] = await self._work.fetch(PEEK, rows.text(now), *held, tenants, most)
        self._looked = (now, at)
        found: list[Row] = []
        in_turns = free > limit or due == most
        if in_turns:
            async with claim.begun() as connection:
                found = await self._turns.take(connection, at, limit, held_back)
        elif free:
            async with claim.begun() as connection:
                found = await connection.fetch(FIND_DUE, rows.text(at), *held, tenants, limit)
        if not in_turns:
            self._turns.forget()
        self._others_hold_due = len(found) < min(free, limit) or (in_turns and self._turns.met_locks)
        more = in_turns and (len(found) == limit or self._turns.has_more)
        await claim.hold([rows.due_timer(row) for row in found], more=more)

    async def next_due_at(self, after: datetime) -> datetime | None:
        """Return the earliest due time later than `after`, in terms of our clock.

        Sooner where another instance holds what is due already, to take it over should that one die.
        """
        now, at = self._looked or (None, None)
        looked_at = rows.text(at) if at is not None and now == after else None
        [(clock, due_at)] = await self._work.fetch(NEXT_DUE, rows.text(after), looked_at)
        # Where our clock is ahead, the timer is due only when the database's clock says so too.
        ahead = max(after - clock, timedelta())
        moments = [_later(due_at, ahead)] if due_at is not None else []
        if self._others_hold_due:
            moments.append(after + timedelta(seconds=LOOK_AGAIN_S))
        return min(moments, default=None)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        found = await self._answers.ask(GET, tenant_id, service_call_id)
        return rows.timer(found[0]) if found else None

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page in the order of an index."""
        sql, parameters = page_of(query)
        return [rows.timer(row) for row in await self._answers.ask(sql, *parameters)]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        async with self._work.transaction() as connection:
            return affected(await connection.execute(PURGE, rows.text(ended_before), limit))

    async def count(self, now: datetime) -> StoreCounts:
        """Count what is overdue, and measure our clock against the database's."""
        await self.measure_skew()
        [(overdue, oldest, nearest, size)] = await self._answers.ask(
            COUNT_OVERDUE, rows.text(now), limit_s=STATEMENT_LIMIT_S
        )
        return StoreCounts(
            pending=await self._count_pending(),
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
        [(clock,)] = await self._answers.ask(f"SELECT {_CLOCK}")
        after = self._now()
        self.skew_s = (before + (after - before) / 2 - clock).total_seconds()

    async def stream_epochs(self) -> list[StreamEpoch]:
        """Return every epoch of every command stream."""
        return epochs.stream_epochs(await self._answers.fetch(epochs.READ))

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        """Keep a new epoch unless another instance was first."""
        async with self._answers.transaction() as connection:
            return await epochs.insert_epochs(connection, [epoch]) > 0

    async def _count_pending(self) -> int:
        if self._pending is None or time.monotonic() >= self._pending[0]:
            started = time.monotonic()
            [(pending,)] = await self._answers.ask(COUNT_PENDING, limit_s=STATEMENT_LIMIT_S)
            ended = time.monotonic()
            fresh_until = ended + PENDING_FRESH_S if ended - started > CHEAP_COUNT_S else ended
            self._pending = (fresh_until, pending)
        return self._pending[1]


class _Batch:
    """Commands by timer, in their order, and what each of them did."""

    def __init__(self, commands: Sequence[Command], now: datetime, rule: rules.Rule) -> None:
        self.now = now
        self._rule = rule
        self._in_order = commands
        self.outcomes: list[Outcome] = [Outcome.SUPERSEDED] * len(commands)
        self.commands: dict[TimerKey, list[tuple[int, Command]]] = {}
        for index, command in enumerate(commands):
            self.commands.setdefault(command.key, []).append((index, command))

    def first(self, key: TimerKey) -> Timer:
        """Return the timer that these commands make where there is none."""
        timer = self._apply(None, key)
        assert timer is not None
        return timer

    def apply(self, timer: Timer) -> Timer:
        """Return the timer as it is after its commands: the same object where nothing changes."""
        after = self._apply(timer, timer.key)
        assert after is not None
        return after

    def refuse(self, keys: Iterable[TimerKey]) -> None:
        """Say of the requests for these timers that they are being fired."""
        for key in keys:
            for index, _ in self.commands[key]:
                self.outcomes[index] = Outcome.DUE

    @property
    def nearest(self) -> datetime | None:
        """The earliest due time that was set."""
        return nearest_due_at(self._in_order, self.outcomes)

    def _apply(self, timer: Timer | None, key: TimerKey) -> Timer | None:
        for index, command in self.commands[key]:
            timer, self.outcomes[index] = self._rule(timer, command, self.now)
        return timer


async def _insert(connection: Connection, batch: _Batch, keys: Iterable[TimerKey]) -> set[TimerKey]:
    """Insert timers that are new, in the order of the key; return which of them were."""
    timers = [batch.first(key) for key in sorted(keys)]
    inserted = await connection.fetch(_INSERT, *arrays.columns(timers))
    return {(row[0], row[1]) for row in inserted}


async def _decide(connection: Connection, batch: _Batch) -> dict[TimerKey, Timer]:
    """Decide requests for all timers that nobody else holds; return these as they are now."""
    first = {key: batch.first(key) for key in sorted(batch.commands)}
    inserted = await connection.fetch(_INSERT, *arrays.columns(first.values()))
    timers = {(row[0], row[1]): first[row[0], row[1]] for row in inserted}
    if there := first.keys() - timers.keys():
        found = await connection.fetch(_LOCK_FOR_REQUESTS, *arrays.transposed(there, 2))
        # Whoever claimed a timer before did so by the database's clock or an earlier one.
        batch.now = max(batch.now, *(row[-1] for row in found)) if found else batch.now
        before = [rows.timer(row) for row in found if row[-2]]
        after = [batch.apply(timer) for timer in before]
        changed = [new for old, new in zip(before, after, strict=True) if new is not old]
        if changed:
            await connection.execute(_UPDATE, *arrays.columns(changed))
        timers |= {timer.key: timer for timer in after}
    return timers


async def _save(connection: Connection, batch: _Batch, locked: Sequence[Timer]) -> set[TimerKey]:
    """Apply the rules to timers whose locks are held; return which they are."""
    changed = [after for before in locked if (after := batch.apply(before)) is not before]
    if changed:
        await connection.execute(_UPDATE, *arrays.columns(changed))
    return {timer.key for timer in locked}


def _later(moment: datetime, span: timedelta) -> datetime:
    return moment + span if moment <= _LATEST - span else moment
