"""A claim: the locks of due timers, held for the length of one publish."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from timer_service.adapters import rows
from timer_service.adapters.postgres import arrays
from timer_service.adapters.postgres.connections import (
    Connection,
    Connections,
    affected,
    commit,
    is_open,
    roll_back,
)
from timer_service.adapters.postgres.delivery_statements import OPEN_DELIVERIES
from timer_service.adapters.postgres.errors import translated
from timer_service.adapters.postgres.statements import FIRING
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import StoreBusy, TransientError
from timer_service.domain.messages import Event, TimerKey
from timer_service.domain.timer import TimerState, state_of

# Of timers that are being fired but whose rows had to be given up: requests keep off them all the same.
_KEEP_OFF_REQUESTS: Final = f"""
SELECT pg_advisory_xact_lock({FIRING})
FROM unnest($1::text[], $2::text[]) AS given_up(tenant_id, service_call_id)
"""  # noqa: S608

# What remains ours of a claim, once some of it was given up.
_CLAIM_AGAIN: Final = """
SELECT tenant_id, service_call_id FROM timer_schedules
JOIN unnest($1::text[], $2::text[], $3::integer[]) AS kept(tenant_id, service_call_id, generation)
  USING (tenant_id, service_call_id, generation)
WHERE state = 'Scheduled'
FOR UPDATE OF timer_schedules SKIP LOCKED
"""

# Before publishing: of timers that can expire, which event the generation gets.
_SETTLE: Final = """
UPDATE timer_schedules AS t SET verdict = $4
FROM unnest($1::text[], $2::text[], $3::integer[]) AS claimed(tenant_id, service_call_id, generation)
WHERE t.tenant_id = claimed.tenant_id AND t.service_call_id = claimed.service_call_id
  AND t.generation = claimed.generation AND t.state = 'Scheduled'
"""

# Publishing is done; the generation guard leaves alone what was rescheduled meanwhile.
_MARK_REACHED: Final = """
UPDATE timer_schedules AS t SET state = event.state,
  reached_at = CASE event.state WHEN 'Reached' THEN event.at END,
  expired_at = CASE event.state WHEN 'Expired' THEN event.at END
FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[]::timestamptz[])
  AS event(tenant_id, service_call_id, generation, state, at)
WHERE t.tenant_id = event.tenant_id AND t.service_call_id = event.service_call_id
  AND t.generation = event.generation AND t.state = 'Scheduled'
"""

# After a commit whose answer was lost: how many bear our mark, whichever try set it.
_COUNT_MARKED: Final = """
SELECT count(*) FROM timer_schedules
JOIN unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[]::timestamptz[])
  AS event(tenant_id, service_call_id, generation, state, at)
  USING (tenant_id, service_call_id, generation, state)
WHERE coalesce(reached_at, expired_at) = event.at
"""


class PostgresClaim:
    """A transaction that holds the locks of due timers for the length of one publish."""

    def __init__(self, connections: Connections, limit_s: float, sink: Sink = Sink.BUS) -> None:
        self._connections = connections
        self._sink = sink
        self._limit_s = limit_s
        self._connection: Connection | None = None
        self._using = asyncio.Lock()
        self._in_doubt = False
        self._held: dict[TimerKey, int] = {}
        self.timers: Sequence[DueTimer] = []
        self.more = False
        self.read_ahead = False

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
            await self._connections.drop_unusable(connection, error)
            raise

    async def hold(self, timers: list[DueTimer], *, more: bool) -> None:
        """Keep these; if there are none, nothing needs to be held."""
        self.timers = sorted(timers, key=lambda timer: (timer.due_at, timer.key))
        self.more = more
        self._held = {timer.key: timer.generation for timer in timers}
        if not timers:
            await self.end()

    async def give_up(self, keys: Iterable[TimerKey]) -> None:
        """Let go of some timers whose commands cannot wait until their events are confirmed.

        The generation guard protects them from the mark, an advisory lock from requests. The rest is locked
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
                await self._connection.fetch(_KEEP_OFF_REQUESTS, *arrays.transposed(wanted, 2))
                # A new one: to go back to the first would give up the advisory locks.
                await self._connection.execute("SAVEPOINT nothing_claimed")
                kept = [(*key, generation) for key, generation in self._held.items()]
                await self._connection.fetch(_CLAIM_AGAIN, *arrays.transposed(kept, 3))
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._end()

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> set[TimerKey]:
        """Commit the verdict, then lock the claim again, as far as nobody was quicker.

        The one that was has changed the timer, or finds the verdict.
        """
        async with self._using:
            settled = [(*timer.key, timer.generation) for timer in timers if timer.key in self._held]
            connection = self._connection
            if connection is None:
                raise StoreBusy("the claim was lost")
            with translated(self._connections.where):
                arguments = arrays.transposed(settled, 3)
                await connection.execute(_SETTLE, *arguments, None if verdict is None else verdict.value)
                await commit(connection)
                await self._connections.begin(connection, self._limit_s)
                await connection.execute("SAVEPOINT nothing_claimed")
                kept = [(*key, generation) for key, generation in self._held.items()]
                found = await connection.fetch(_CLAIM_AGAIN, *arrays.transposed(kept, 3))
            ours = {(row[0], row[1]) for row in found}
            self._held = {key: generation for key, generation in self._held.items() if key in ours}
            return ours

    async def mark_reached(self, events: Sequence[Event]) -> int:
        """Mark and commit in the claim's own transaction, or in another if that one is lost."""
        if not events:
            return 0
        arguments = arrays.transposed(
            [(*event.key, event.generation, state_of(event).value, rows.text(event.at)) for event in events],
            5,
        )
        async with self._using:
            if self._connection is not None and is_open(self._connection):
                try:
                    return await self._mark_and_commit(self._connection, arguments, events)
                except TransientError:
                    self._in_doubt = True  # The commit may have been done all the same.
            await self._end()
        async with self._connections.transaction() as connection:
            marked = await self._mark(connection, arguments, events)
            return int(await connection.fetchval(_COUNT_MARKED, *arguments)) if self._in_doubt else marked

    async def _mark(self, connection: Connection, arguments: list[list[Any]], events: Sequence[Event]) -> int:
        marked = affected(await connection.execute(_MARK_REACHED, *arguments))
        if self._sink is Sink.HTTP:
            # In the same transaction: a timer is never reached without its delivery, nor the reverse.
            await connection.execute(OPEN_DELIVERIES, *arguments, [event.id_text for event in events])
        return marked

    async def _mark_and_commit(
        self, connection: Connection, arguments: list[list[Any]], events: Sequence[Event]
    ) -> int:
        try:
            with translated(self._connections.where):
                marked = await self._mark(connection, arguments, events)
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
