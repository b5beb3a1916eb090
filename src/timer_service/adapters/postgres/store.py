"""Timers in a PostgreSQL database that several instances share.

There is no leader, no lease and no clean-up of what a dead instance left: a claim is a transaction that holds
the rows' locks while their events are published, and the server ends it with its connection.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import structlog

from timer_service.adapters.postgres import rows
from timer_service.adapters.postgres.connections import (
    Address,
    Connection,
    Connections,
    Row,
    commit,
    is_open,
    open_connections,
    roll_back,
)
from timer_service.adapters.postgres.errors import translated
from timer_service.adapters.postgres.hints import Hints
from timer_service.adapters.postgres.schema import IS_COPY, migrate
from timer_service.domain import timer as rules
from timer_service.domain.errors import InvalidConfiguration, StoreBusy, StoreFailed, TransientError
from timer_service.domain.messages import (
    Command,
    DueTimeReached,
    ScheduleTimer,
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

OLDEST_POSTGRES: Final = 14
WORK_CONNECTIONS: Final = 3
"""Applying commands, holding a claim, and deleting or marking besides."""
ANSWER_CONNECTIONS: Final = 3
"""So that questions and calls never keep the work waiting."""
STATEMENT_CACHE_SIZE: Final = 100
CLAIM_LIMIT_S: Final = 10.0
"""A claim that is silent for so long is ended by the server; publishing gives up well before that."""
START_PATIENCE_S: Final = 30.0
START_PAUSE_S: Final = 0.5
LOOK_AGAIN_S: Final = 0.5
"""How soon to look again for due timers that another instance holds: it may be dying."""
APPLY_TRIES: Final = 5
TURN_ROUNDS: Final = 5
CHEAP_COUNT_S: Final = 0.02
PENDING_FRESH_S: Final = 60.0
"""For so long a count of all pending timers serves, unless it is cheap."""

_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)

# The database's own clock, cut down to the millisecond as ours is.
_CLOCK: Final = "date_trunc('milliseconds', clock_timestamp())"

# The name of a timer's advisory lock; two timers with one name only make a call come again.
_FIRING: Final = "hashtextextended(tenant_id || '/' || service_call_id, 7401862650443172901)"

# New timers; what another instance has inserted meanwhile is not touched and not returned.
_INSERT: Final = f"""
INSERT INTO timer_schedules ({rows.COLUMNS})
SELECT * FROM {rows.GIVEN}
ON CONFLICT DO NOTHING
RETURNING tenant_id, service_call_id
"""  # noqa: S608 - constants

# The rows that a batch of commands is about, found by primary key.
_LOAD: Final = f"""
SELECT {rows.COLUMNS} FROM timer_schedules
JOIN unnest($1::text[], $2::text[]) AS wanted(tenant_id, service_call_id)
  USING (tenant_id, service_call_id)
"""  # noqa: S608

# The same, ours until the commit. In the order of the key: two batches never wait for each other in a ring.
_LOCK: Final = f"{_LOAD} ORDER BY tenant_id, service_call_id FOR UPDATE OF timer_schedules"

# For a call, which does not wait for a timer that is being fired. The clock is read once the lock is held.
_LOCK_FOR_CALL: Final = f"""
WITH locked AS MATERIALIZED (
  SELECT {rows.COLUMNS} FROM timer_schedules
  WHERE tenant_id = $1 AND service_call_id = $2 FOR UPDATE NOWAIT)
SELECT {rows.COLUMNS}, pg_try_advisory_xact_lock({_FIRING}), {_CLOCK} FROM locked
"""  # noqa: S608

# Of timers that are being fired but whose rows had to be given up: calls keep off them all the same.
_KEEP_OFF_CALLS: Final = f"""
SELECT pg_advisory_xact_lock({_FIRING})
FROM unnest($1::text[], $2::text[]) AS given_up(tenant_id, service_call_id)
"""  # noqa: S608

# Rows as the domain's rules left them; their locks are held.
_UPDATE: Final = f"""
UPDATE timer_schedules AS t SET
  state = new.state, due_at = new.due_at, generation = new.generation, correlation_id = new.correlation_id,
  reached_at = new.reached_at, cancelled_at = new.cancelled_at, stream_created_us = new.stream_created_us,
  stream_sequence = new.stream_sequence, traceparent = new.traceparent, tracestate = new.tracestate
FROM {rows.GIVEN} AS new({rows.COLUMNS})
WHERE t.tenant_id = new.tenant_id AND t.service_call_id = new.service_call_id
"""  # noqa: S608

_DUE_NOW: Final = """
due_at <= $1::text::timestamptz
  AND (tenant_id, service_call_id) NOT IN (SELECT * FROM unnest($2::text[], $3::text[]))
"""

# The poll: how much is due, and by which clock. The earlier of the two, so that nobody's clock fires early.
PEEK: Final = """
WITH moment AS MATERIALIZED (
  SELECT least($1::text::timestamptz, date_trunc('milliseconds', clock_timestamp())) AS at)
SELECT (SELECT at FROM moment), (
  SELECT count(*) FROM (
    SELECT 1 FROM timer_schedules
    WHERE state = 'Scheduled' AND due_at <= (SELECT at FROM moment)
      AND (tenant_id, service_call_id) NOT IN (SELECT * FROM unnest($2::text[], $3::text[]))
      AND tenant_id <> ALL ($4::text[])
    ORDER BY due_at
    LIMIT $5) AS due)
"""

# What is due, oldest first, without what is held back or in another instance's hands.
FIND_DUE: Final = f"""
SELECT {rows.DUE_COLUMNS} FROM timer_schedules
WHERE state = 'Scheduled' AND {_DUE_NOW} AND tenant_id <> ALL ($4::text[])
ORDER BY due_at
LIMIT $5
FOR UPDATE SKIP LOCKED
"""  # noqa: S608

# Under backlog: every tenant that has something due, oldest first, two index searches each. The state goes
# along as a value: written out, the planner might take the index of all that is due, and read it whole for
# each tenant that has little.
FIND_DUE_TENANTS: Final = """
WITH RECURSIVE tenant(id, state) AS (
  SELECT min(tenant_id), 'Scheduled' FROM timer_schedules
  UNION ALL
  SELECT (SELECT min(tenant_id) FROM timer_schedules WHERE tenant_id > tenant.id), tenant.state
  FROM tenant WHERE tenant.id IS NOT NULL)
SELECT id FROM (
  SELECT id, (
    SELECT min(due_at) FROM timer_schedules AS t
    WHERE t.tenant_id = tenant.id AND t.state = tenant.state) AS oldest
  FROM tenant) AS tenant
WHERE oldest <= $1::text::timestamptz AND id <> ALL ($2::text[])
ORDER BY oldest
"""

# Under backlog: the oldest few of each of these tenants, tenant by tenant until the claim is full.
FIND_DUE_IN_TURNS: Final = f"""
SELECT due.*
FROM unnest($4::text[], array_fill('Scheduled'::text, ARRAY[cardinality($4)])) AS tenant(id, state)
CROSS JOIN LATERAL (
  SELECT {rows.DUE_COLUMNS} FROM timer_schedules AS t
  WHERE t.tenant_id = tenant.id AND t.state = tenant.state AND {_DUE_NOW}
  ORDER BY due_at
  LIMIT $5
  FOR UPDATE SKIP LOCKED) AS due
LIMIT $6
"""  # noqa: S608

# What remains ours of a claim, once some of it was given up.
_CLAIM_AGAIN: Final = """
SELECT 1 FROM timer_schedules
JOIN unnest($1::text[], $2::text[], $3::integer[]) AS kept(tenant_id, service_call_id, generation)
  USING (tenant_id, service_call_id, generation)
WHERE state = 'Scheduled'
FOR UPDATE OF timer_schedules SKIP LOCKED
"""

# Publishing is done; the generation guard leaves alone what was rescheduled meanwhile.
_MARK_REACHED: Final = """
UPDATE timer_schedules AS t SET state = 'Reached', reached_at = event.reached_at
FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[]::timestamptz[])
  AS event(tenant_id, service_call_id, generation, reached_at)
WHERE t.tenant_id = event.tenant_id AND t.service_call_id = event.service_call_id
  AND t.generation = event.generation AND t.state = 'Scheduled'
"""

# After a commit whose answer was lost: how many bear our mark, whichever try set it.
_COUNT_MARKED: Final = """
SELECT count(*) FROM timer_schedules
JOIN unnest($1::text[], $2::text[], $3::integer[], $4::text[]::timestamptz[])
  AS event(tenant_id, service_call_id, generation, reached_at)
  USING (tenant_id, service_call_id, generation, reached_at)
WHERE state = 'Reached'
"""

# A timer that was due by our clock but not by the database's has still to come, or has come since the look.
NEXT_DUE: Final = """
WITH moment AS MATERIALIZED (SELECT date_trunc('milliseconds', clock_timestamp()) AS clock)
SELECT (SELECT clock FROM moment), (
  SELECT min(due_at) FROM timer_schedules
  WHERE state = 'Scheduled'
    AND due_at > least($1::text::timestamptz, coalesce($2::text::timestamptz, (SELECT clock FROM moment))))
"""

_GET: Final = f"SELECT {rows.COLUMNS} FROM timer_schedules WHERE tenant_id = $1 AND service_call_id = $2"  # noqa: S608

_WANTED: Final = """
due_at >= $3::text::timestamptz AND due_at < $4::text::timestamptz
  AND (due_at, service_call_id) > ($5::text::timestamptz, $6)
"""

# A page of one tenant's timers: one index-ordered page for each state, merged, so that no list ever sorts a
# tenant's whole history.
LIST: Final = f"""
SELECT page.* FROM unnest($2::text[]) AS wanted(state)
CROSS JOIN LATERAL (
  SELECT {rows.COLUMNS} FROM timer_schedules
  WHERE tenant_id = $1 AND timer_schedules.state = wanted.state AND {_WANTED}
  ORDER BY due_at, service_call_id
  LIMIT $7) AS page
ORDER BY due_at, service_call_id
LIMIT $7
"""  # noqa: S608

# The few timers of one request.
LIST_BY_CORRELATION: Final = f"""
SELECT {rows.COLUMNS} FROM timer_schedules
WHERE correlation_id = $8 AND tenant_id = $1 AND state = ANY ($2::text[]) AND {_WANTED}
ORDER BY due_at, service_call_id
LIMIT $7
"""  # noqa: S608

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

# For health and metrics: what is overdue, what comes next, how much room it takes.
COUNT_OVERDUE: Final = """
SELECT count(*), min(due_at),
  (SELECT min(due_at) FROM timer_schedules WHERE state = 'Scheduled' AND due_at > $1::text::timestamptz),
  pg_total_relation_size('timer_schedules')
FROM timer_schedules WHERE state = 'Scheduled' AND due_at <= $1::text::timestamptz
"""

COUNT_PENDING: Final = "SELECT count(*) FROM timer_schedules WHERE state = 'Scheduled'"

_CHECK: Final = """
SELECT current_setting('server_encoding'), pg_is_in_recovery(), (
  SELECT bool_and(has_table_privilege('timer_schedules', privilege))
  FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege)
"""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_postgres_store(
    url: str,
    now: Callable[[], datetime],
    *,
    statement_cache_size: int = STATEMENT_CACHE_SIZE,
    claim_limit_s: float = CLAIM_LIMIT_S,
    start_patience_s: float = START_PATIENCE_S,
) -> AsyncIterator["PostgresTimerStore"]:
    """Connect, bring the schema up to date and open the store.

    A database that is away is waited for, within bounds. Behind a pooler in transaction mode that knows no
    prepared statements, `statement_cache_size` has to be 0.
    """
    address = Address(url, statement_cache_size)
    async with (
        open_connections(address, WORK_CONNECTIONS) as work,
        open_connections(address, ANSWER_CONNECTIONS) as answers,
    ):
        await _wait_for(work, start_patience_s)
        await work.be_durable()
        await answers.be_durable()
        store = PostgresTimerStore(work, answers, Hints(address, answers, now), now, claim_limit_s)
        await store.measure_skew()
        yield store


class PostgresTimerStore:
    """The timer store on PostgreSQL: some connections work, others answer questions."""

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
        self._claims: set[_PostgresClaim] = set()
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
        batch = _Batch(commands, now)
        if commands[0].is_call:
            await self._apply_call(batch, commands[0])
        else:
            await self._apply_batch(batch)
        if batch.nearest is not None:
            await self._hints.announce(batch.nearest)
        return batch.outcomes

    async def _apply_call(self, batch: "_Batch", command: Command) -> None:
        key = (command.tenant_id, command.service_call_id)
        try:
            async with self._answers.transaction() as connection:
                for _ in range(APPLY_TRIES):
                    if await _insert(connection, batch, {key}):
                        return
                    row = await connection.fetchrow(_LOCK_FOR_CALL, *key)
                    if row is not None:
                        if not row[-2]:
                            batch.outcomes[:] = [Outcome.DUE]
                            return
                        # Whoever claimed this timer before did so by the database's clock or an earlier one.
                        batch.now = max(batch.now, row[-1])
                        await _save(connection, batch, [rows.timer(row)])
                        return
        except StoreBusy as error:
            if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise
            batch.outcomes[:] = [Outcome.DUE]  # It is being fired, or about to change.
        else:
            raise StoreBusy("the timer came and went too often")

    async def _apply_batch(self, batch: "_Batch") -> None:
        async with self._work.transaction() as connection:
            unsettled = set(batch.commands)
            for _ in range(APPLY_TRIES):
                unsettled -= await _insert(connection, batch, unsettled)
                if unsettled:
                    unsettled -= await self._change(connection, batch, unsettled)
                if not unsettled:
                    return
            raise StoreBusy("timers came and went too often")

    async def _change(self, connection: Connection, batch: "_Batch", keys: set[TimerKey]) -> set[TimerKey]:
        """Change timers that exist; return which of them do."""
        found = [rows.timer(row) for row in await connection.fetch(_LOAD, *_columns(keys, 2))]
        # Most of what is delivered again changes nothing: that need not wait for anybody's lock.
        touched = {_key(timer) for timer in found if batch.apply(timer) is not timer}
        settled = {_key(timer) for timer in found} - touched
        if touched:
            for claim in list(self._claims):
                await claim.give_up(touched)
            locked = await connection.fetch(_LOCK, *_columns(touched, 2))
            settled |= await _save(connection, batch, [rows.timer(row) for row in locked])
        return settled

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AsyncIterator[Claim]:
        """Lock what is due until the claim is left; other instances pass over it."""
        claim = _PostgresClaim(self._work, self._claim_limit_s)
        try:
            await self._fill(claim, now, limit, held_back)
            self._claims.add(claim)
            yield claim
        finally:
            self._claims.discard(claim)
            await claim.end()

    async def _fill(self, claim: "_PostgresClaim", now: datetime, limit: int, held_back: HeldBack) -> None:
        held = _columns(held_back.timers, 2)
        tenants = list(held_back.tenants)
        # Without a lock first: nothing is due most of the time.
        [(at, due)] = await self._work.fetch(PEEK, rows.text(now), *held, tenants, limit + 1)
        self._looked = (now, at)
        found: list[Row] = []
        if due:
            async with claim.begun() as connection:
                if due <= limit:
                    found = await connection.fetch(FIND_DUE, rows.text(at), *held, tenants, limit)
                else:
                    found = await _take_turns(connection, rows.text(at), limit, held_back)
        self._others_hold_due = len(found) < min(due, limit)
        await claim.hold([rows.due_timer(row) for row in found], more=due > limit and len(found) == limit)

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
        found = await self._answers.fetch(_GET, tenant_id, service_call_id)
        return rows.timer(found[0]) if found else None

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page in the order of an index."""
        after_due, after_id = query.after or (_EARLIEST, "")
        parameters: list[Any] = [
            query.tenant_id,
            [query.state.value] if query.state else [state.value for state in TimerState],
            rows.text(query.due_from or _EARLIEST),
            # Exclusive; the very last millisecond is included where no bound was given.
            rows.text(query.due_before) if query.due_before else "infinity",
            rows.text(after_due),
            after_id,
            query.limit,
        ]
        if query.correlation_id is None:
            found = await self._answers.fetch(LIST, *parameters)
        else:
            found = await self._answers.fetch(LIST_BY_CORRELATION, *parameters, query.correlation_id)
        return [rows.timer(row) for row in found]

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a bounded number of timers that ended before a moment."""
        async with self._work.transaction() as connection:
            return _affected(await connection.execute(PURGE, rows.text(ended_before), limit))

    async def count(self, now: datetime) -> StoreCounts:
        """Count what is overdue, and measure our clock against the database's."""
        await self.measure_skew()
        [(overdue, oldest, nearest, size)] = await self._answers.fetch(COUNT_OVERDUE, rows.text(now))
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
        [(clock,)] = await self._answers.fetch(f"SELECT {_CLOCK}")
        after = self._now()
        self.skew_s = (before + (after - before) / 2 - clock).total_seconds()

    async def _count_pending(self) -> int:
        if self._pending is None or time.monotonic() >= self._pending[0]:
            started = time.monotonic()
            [(pending,)] = await self._answers.fetch(COUNT_PENDING)
            ended = time.monotonic()
            fresh_until = ended + PENDING_FRESH_S if ended - started > CHEAP_COUNT_S else ended
            self._pending = (fresh_until, pending)
        return self._pending[1]


class _Batch:
    """Commands by timer, in their order, and what each of them did."""

    def __init__(self, commands: Sequence[Command], now: datetime) -> None:
        self.now = now
        self.outcomes: list[Outcome] = [Outcome.SUPERSEDED] * len(commands)
        self.commands: dict[TimerKey, list[tuple[int, Command]]] = {}
        for index, command in enumerate(commands):
            key = (command.tenant_id, command.service_call_id)
            self.commands.setdefault(key, []).append((index, command))

    def first(self, key: TimerKey) -> Timer:
        """Return the timer that these commands make where there is none."""
        timer = self._apply(None, key)
        assert timer is not None
        return timer

    def apply(self, timer: Timer) -> Timer:
        """Return the timer as it is after its commands: the same object where nothing changes."""
        after = self._apply(timer, _key(timer))
        assert after is not None
        return after

    @property
    def nearest(self) -> datetime | None:
        """The earliest due time that was set."""
        due_times = (
            command.due_at
            for commands in self.commands.values()
            for index, command in commands
            if isinstance(command, ScheduleTimer)
            if self.outcomes[index] in {Outcome.SCHEDULED, Outcome.RESCHEDULED}
        )
        return min(due_times, default=None)

    def _apply(self, timer: Timer | None, key: TimerKey) -> Timer | None:
        for index, command in self.commands[key]:
            timer, self.outcomes[index] = rules.apply(timer, command, self.now)
        return timer


class _PostgresClaim:
    """A transaction that holds the locks of due timers for the length of one publish."""

    def __init__(self, connections: Connections, limit_s: float) -> None:
        self._connections = connections
        self._limit_s = limit_s
        self._connection: Connection | None = None
        self._using = asyncio.Lock()
        self._in_doubt = False
        self._held: dict[TimerKey, int] = {}
        self.timers: Sequence[DueTimer] = []
        self.more = False

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Connection]:
        """Begin the transaction; it outlives this context."""
        self._connection = connection = await self._connections.acquire()
        try:
            with translated(self._connections.where):
                await self._connections.begin(connection, self._limit_s)
                await connection.execute("SAVEPOINT nothing_claimed")
                yield connection
        except StoreBusy as error:
            await self._connections.doubt(connection, error)
            raise

    async def hold(self, timers: list[DueTimer], *, more: bool) -> None:
        """Keep these; where there are none, nothing needs to be held."""
        self.timers = sorted(timers, key=lambda t: (t.due_at, t.tenant_id, t.service_call_id))
        self.more = more
        self._held = {(t.tenant_id, t.service_call_id): t.generation for t in timers}
        if not timers:
            await self.end()

    async def give_up(self, keys: Iterable[TimerKey]) -> None:
        """Let go of some timers whose commands cannot wait until their events are confirmed.

        The generation guard protects them from the mark, an advisory lock from calls. The rest is locked
        again at once; what another instance was quicker to lock is published twice, under one id.
        """
        async with self._using:
            wanted = self._held.keys() & set(keys)
            if self._connection is None or not wanted:
                return
            for key in wanted:
                del self._held[key]
            try:
                await self._connection.execute("ROLLBACK TO SAVEPOINT nothing_claimed")
                await self._connection.fetch(_KEEP_OFF_CALLS, *_columns(wanted, 2))
                # A new one: to go back to the first would give up the advisory locks.
                await self._connection.execute("SAVEPOINT nothing_claimed")
                kept = [(*key, generation) for key, generation in self._held.items()]
                await self._connection.fetch(_CLAIM_AGAIN, *_columns(kept, 3))
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._end()

    async def mark_reached(self, events: Sequence[DueTimeReached]) -> int:
        """Mark and commit in the claim's own transaction, or in another where that one is lost."""
        if not events:
            return 0
        arguments = _columns(
            [(e.tenant_id, e.service_call_id, e.generation, rows.text(e.reached_at)) for e in events], 4
        )
        async with self._using:
            if self._connection is not None and is_open(self._connection):
                try:
                    return await self._mark_and_commit(self._connection, arguments)
                except TransientError:
                    self._in_doubt = True  # The commit may have been done all the same.
            await self._end()
        async with self._connections.transaction() as connection:
            marked = _affected(await connection.execute(_MARK_REACHED, *arguments))
            return int(await connection.fetchval(_COUNT_MARKED, *arguments)) if self._in_doubt else marked

    async def _mark_and_commit(self, connection: Connection, arguments: list[list[Any]]) -> int:
        try:
            with translated(self._connections.where):
                marked = _affected(await connection.execute(_MARK_REACHED, *arguments))
                await commit(connection)
                return marked
        finally:
            await self._end()

    async def end(self) -> None:
        """Give back at once what was not marked."""
        async with self._using:
            await self._end()

    async def _end(self) -> None:
        connection, self._connection = self._connection, None
        self._held = {}
        if connection is not None:
            if is_open(connection) and connection.is_in_transaction():
                await roll_back(connection)
            await self._connections.release(connection)


async def _insert(connection: Connection, batch: _Batch, keys: Iterable[TimerKey]) -> set[TimerKey]:
    """Insert timers that are new, in the order of the key; return which of them were."""
    timers = [batch.first(key) for key in sorted(keys)]
    inserted = await connection.fetch(_INSERT, *rows.columns(timers))
    return {(row[0], row[1]) for row in inserted}


async def _save(connection: Connection, batch: _Batch, locked: Sequence[Timer]) -> set[TimerKey]:
    """Apply the rules to timers whose locks are held; return which they are."""
    changed = [after for before in locked if (after := batch.apply(before)) is not before]
    if changed:
        await connection.execute(_UPDATE, *rows.columns(changed))
    return {_key(timer) for timer in locked}


async def _take_turns(connection: Connection, at: str, limit: int, held_back: HeldBack) -> list[Row]:
    """Lock as many of each tenant, and give what small tenants leave over to the rest."""
    found = await connection.fetch(FIND_DUE_TENANTS, at, list(held_back.tenants))
    tenants = [row[0] for row in found]
    taken: list[Row] = []
    for rounds_left in reversed(range(TURN_ROUNDS)):
        missing = limit - len(taken)
        if not missing or not tenants:
            break
        turn = max(1, missing // len(tenants)) if rounds_left else missing
        # Our own locks are not skipped, so what we have has to be left out by name.
        known = [*held_back.timers, *((row[0], row[1]) for row in taken)]
        lot = await connection.fetch(FIND_DUE_IN_TURNS, at, *_columns(known, 2), tenants, turn, missing)
        taken += lot
        counts = _counts(row[0] for row in lot)
        tenants = [tenant for tenant in tenants if counts.get(tenant, 0) == turn]
    return taken


async def _wait_for(connections: Connections, patience_s: float) -> None:
    """Wait until the database is there, and make it ready."""
    deadline = time.monotonic() + patience_s
    told = False
    while True:
        try:
            async with connections.connection() as connection:
                await _prepare(connection, connections.where)
                return
        except TransientError as error:
            if time.monotonic() >= deadline:
                raise StoreFailed(f"cannot use the database at start: {error}") from error
            if not told:
                log.warning("store.unavailable", kind=type(error).__name__, detail=str(error))
                told = True
            await asyncio.sleep(START_PAUSE_S)
        except ValueError as error:  # The driver reads the address only when it connects.
            raise InvalidConfiguration(
                f"TIMER_STORE_URL must be postgresql://user:password@host:port/database: {error}"
            ) from error


async def _prepare(connection: Connection, where: str) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST_POSTGRES:
        raise StoreFailed(
            f"{where}: PostgreSQL {version.major} is too old: {OLDEST_POSTGRES} or newer is needed"
        )
    await migrate(connection, where)
    row = await connection.fetchrow(_CHECK)
    assert row is not None
    encoding, is_replica, may_write = row
    if encoding != "UTF8":
        raise StoreFailed(f"{where}: the database's encoding is {encoding}: create it with ENCODING 'UTF8'")
    if is_replica:
        raise StoreBusy(f"{where}: this server is a read-only replica")
    if await connection.fetchval(IS_COPY):
        raise StoreFailed(f"{where} holds an unfinished copy: run the same `timer-service copy` again")
    if not may_write:
        raise StoreFailed(f"{where}: this user may not write; grant what docs/postgresql.md lists")


def _key(timer: Timer) -> TimerKey:
    return timer.tenant_id, timer.service_call_id


def _columns(values: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*values, strict=True)] or [[] for _ in range(width)]


def _counts(tenants: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tenant in tenants:
        counts[tenant] = counts.get(tenant, 0) + 1
    return counts


def _later(moment: datetime, span: timedelta) -> datetime:
    return moment + span if moment <= _LATEST - span else moment


def _affected(status: str) -> int:
    return int(status.rpartition(" ")[2])
