"""Find what is due: oldest first while a claim can hold it, in turns of the tenants when it is more.

A look reads a bounded number of rows, no matter how many timers are idle, over, still to come or held back.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from timer_service.adapters import rows
from timer_service.adapters.postgres import arrays
from timer_service.adapters.postgres.connections import Connection, Row
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.statements import CLOCK
from timer_service.domain.callback import Sink
from timer_service.domain.messages import TenantId, epoch_ms
from timer_service.ports.timer_store import HeldBack

MAX_ROUNDS: Final = 5

_BUCKET_MS: Final = 600_000
# Ten minutes of due times, by number. As the index of migration 0002 has it.
BUCKET: Final = "(floor(date_part('epoch', due_at AT TIME ZONE 'UTC') / 600)::integer)"
_Place = tuple[int, str]
_START: Final[_Place] = (-(2**31), "")

_NOT_HELD: Final = "(tenant_id, service_call_id) NOT IN (SELECT * FROM unnest($2::text[], $3::text[]))"
_NOT_OF_HELD_TENANT: Final = "tenant_id NOT IN (SELECT unnest($4::text[]))"

# The poll: how much is due, how much of it is free, and by which clock. The earlier of the two, so that
# nobody's clock fires early. It reads a bounded number of rows, those held back included.
PEEK: Final = f"""
WITH moment AS MATERIALIZED (
  SELECT least($1::text::timestamptz, {CLOCK}) AS at),
due AS MATERIALIZED (
  SELECT tenant_id, service_call_id FROM timer_schedules
  WHERE state = 'Scheduled' AND sink = 0 AND due_at <= (SELECT at FROM moment)
  ORDER BY due_at
  LIMIT $5)
SELECT (SELECT at FROM moment), (SELECT count(*) FROM due),
  (SELECT count(*) FROM due WHERE {_NOT_HELD} AND {_NOT_OF_HELD_TENANT})
"""  # noqa: S608 - constants

# What is due, oldest first, without what is held back or in another instance's hands.
FIND_DUE: Final = f"""
SELECT {rows.DUE_COLUMNS} FROM timer_schedules
WHERE state = 'Scheduled' AND sink = 0 AND due_at <= $1::text::timestamptz
  AND {_NOT_HELD} AND {_NOT_OF_HELD_TENANT}
ORDER BY due_at
LIMIT $5
FOR UPDATE SKIP LOCKED
"""  # noqa: S608

_PAIR: Final = f"""
SELECT {BUCKET} AS bucket, tenant_id, due_at FROM timer_schedules
WHERE state = 'Scheduled' AND sink = 0 AND ({BUCKET}, tenant_id) > (%s) AND {BUCKET} <= $1
ORDER BY {BUCKET}, tenant_id, due_at
LIMIT 1
"""  # noqa: S608

# Under backlog: which tenants have something due. One search for each tenant and ten minutes of due times,
# from a place on, a bounded number of them.
SWEEP: Final = f"""
WITH RECURSIVE pair(bucket, tenant_id, due_at, steps) AS (
  (SELECT *, 1 FROM ({_PAIR % "$2::integer, $3::text"}) AS first)
  UNION ALL
  SELECT next.*, pair.steps + 1
  FROM pair CROSS JOIN LATERAL ({_PAIR % "pair.bucket, pair.tenant_id"}) AS next
  WHERE pair.steps < $4)
SELECT bucket, tenant_id, due_at FROM pair
"""  # noqa: S608

# Whose timers have come due last: those need not wait until a sweep comes by.
NEWEST: Final = """
SELECT tenant_id, due_at FROM timer_schedules
WHERE state = 'Scheduled' AND sink = 0 AND due_at <= $1::text::timestamptz
ORDER BY due_at DESC
LIMIT $2
"""

# Under backlog: the oldest few of each of these tenants, tenant by tenant until the claim is full. The state
# goes along as a value: written out, the planner might take the index of all that is due, and read it whole
# for each tenant that has little.
FIND_DUE_IN_TURNS: Final = f"""
SELECT due.*
FROM unnest($4::text[], array_fill('Scheduled'::text, ARRAY[cardinality($4)])) AS tenant(id, state)
CROSS JOIN LATERAL (
  SELECT {rows.DUE_COLUMNS} FROM timer_schedules AS t
  WHERE t.tenant_id = tenant.id AND t.state = tenant.state AND sink = 0
    AND due_at <= $1::text::timestamptz AND {_NOT_HELD}
  ORDER BY due_at
  LIMIT $5
  FOR UPDATE SKIP LOCKED) AS due
LIMIT $6
"""  # noqa: S608


def most_to_read(limit: int, held_back: HeldBack, max_passed_over: int) -> int:
    """Return how many rows a look reads at most: if it reads fewer, it has seen all that is due."""
    return limit + 1 + len(held_back.timers) + (max_passed_over if held_back.tenants else 0)


def bucket_of(moment: datetime) -> int:
    """Return the number of the ten minutes in which a moment lies."""
    return epoch_ms(moment) // _BUCKET_MS


class Turns:
    """Whose turn it is under backlog, from one look to the next.

    Each look finds some more tenants that have something due, and those that had their turn longest ago go
    first. A tenant that had nothing left is forgotten: it is found again when it has.
    """

    def __init__(self, limits: PostgresLimits, sink: Sink, elapsed_s: Callable[[], float]) -> None:
        self._limits = limits
        self._elapsed_s = elapsed_s
        self._newest, self._sweep, self._find = (
            rows.for_sink(sql, sink) for sql in (NEWEST, SWEEP, FIND_DUE_IN_TURNS)
        )
        self._waiting: dict[str, None] = {}
        self._place = _START
        self._pieces = 0
        self._rests_until = 0.0
        self._looking = asyncio.Lock()
        self._has_seen_all = True
        self.met_locks = False
        """Whether a tenant had nothing to give at the last look: another instance may hold it."""

    @property
    def has_more(self) -> bool:
        """Whether to look again at once: somebody waits, or the sweep has not come to its end."""
        return bool(self._waiting) or not self._has_seen_all

    def forget(self) -> None:
        """End the backlog: what is due fits into a claim."""
        self._waiting.clear()
        self._place, self._pieces, self._rests_until = _START, 0, 0.0

    async def take(self, connection: Connection, at: datetime, limit: int, held_back: HeldBack) -> list[Row]:
        """Lock as many of each tenant, and give what small tenants leave over to the rest."""
        async with self._looking:
            await self._find_tenants(connection, at)
            tenants = self._choose(limit, held_back.tenants)
        moment = rows.text(at)
        taken: list[Row] = []
        spent: set[str] = set()
        for rounds_left in reversed(range(MAX_ROUNDS)):
            missing = limit - len(taken)
            if not missing or not tenants:
                break
            turn = max(1, missing // len(tenants)) if rounds_left else missing
            # Our own locks are not skipped, so what we have has to be left out by name.
            known = arrays.transposed([*held_back.timers, *((row[0], row[1]) for row in taken)], 2)
            found = await connection.fetch(self._find, moment, *known, tenants, turn, missing)
            taken += found
            counts = _counts(row[0] for row in found)
            if len(found) < missing:  # Nobody was cut off: who gave less has no more.
                spent |= {tenant for tenant in tenants if counts.get(tenant, 0) < turn}
            tenants = [tenant for tenant in tenants if counts.get(tenant, 0) == turn]
        self.met_locks = not spent <= {row[0] for row in taken}
        for tenant in spent:
            self._waiting.pop(tenant, None)
        return taken

    def _choose(self, limit: int, held_back: Iterable[TenantId]) -> list[str]:
        for held in held_back:
            self._waiting.pop(held, None)
        chosen = list(self._waiting)[:limit]
        for tenant in chosen:  # To the end of the queue.
            del self._waiting[tenant]
            self._waiting[tenant] = None
        return chosen

    async def _find_tenants(self, connection: Connection, at: datetime) -> None:
        """Look at what came due last, and at the next piece of all that is due."""
        newest = await connection.fetch(self._newest, rows.text(at), self._limits.max_newest_rows)
        found = [(row[0], row[1]) for row in newest]
        if len(self._waiting) < self._limits.max_waiting_tenants and self._elapsed_s() >= self._rests_until:
            steps = self._limits.max_sweep_steps
            piece = await connection.fetch(self._sweep, bucket_of(at), *self._place, steps)
            found += [(row[1], row[2]) for row in piece if row[2] <= at]
            self._go_on(piece)
        found.sort(key=lambda pair: pair[1])
        for tenant, _ in found:
            self._waiting.setdefault(tenant)

    def _go_on(self, piece: Sequence[Row]) -> None:
        self._pieces += 1
        self._has_seen_all = len(piece) < self._limits.max_sweep_steps
        if not self._has_seen_all:
            self._place = (piece[-1][0], piece[-1][1])
            return
        if self._pieces > 1:
            self._rests_until = self._elapsed_s() + self._limits.sweep_rest_s
        self._place, self._pieces = _START, 0


def _counts(tenants: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tenant in tenants:
        counts[tenant] = counts.get(tenant, 0) + 1
    return counts
