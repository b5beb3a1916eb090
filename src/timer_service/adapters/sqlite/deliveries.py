"""Deliveries in the SQLite file of the timers.

One process owns the file, so a claim is a plain read: the claimant knows what it holds, and after a crash
everything that waits is free.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import chain, islice
from typing import Any, Final

import aiosqlite

from timer_service.adapters import callback_rows as columns
from timer_service.adapters.rows import moment, of_table, text
from timer_service.adapters.sqlite.questions import NOBODY, Questions
from timer_service.adapters.sqlite.writer import Writer
from timer_service.domain.callback import Callback
from timer_service.domain.delivery import KEPT_ATTEMPTS, Delivery
from timer_service.domain.messages import Event, TimerKey
from timer_service.ports.delivery_store import (
    CallbackRecord,
    ClaimedDelivery,
    DeliveryCounts,
    DeliveryQuery,
    DuePage,
    Finished,
    Lane,
    Place,
    WaitingDelivery,
)

Read = Callable[[str, Any], Awaitable[list[tuple[Any, ...]]]]

# The callbacks that requests have given to their timers.
_ONE_CALLBACK: Final = f"({', '.join('?' for _ in columns.CALLBACK_COLUMNS.split(','))})"
KEEP_CALLBACK: Final = f"""
INSERT OR REPLACE INTO timer_callbacks ({columns.CALLBACK_COLUMNS}) VALUES {_ONE_CALLBACK}
"""  # noqa: S608 - the column list is a constant

# Many of a batch at once: the writer's thread needs the interpreter for each statement, and in a busy process
# it gets it late.
MANY_CALLBACKS: Final = 100
KEEP_MANY_CALLBACKS: Final = f"""
INSERT OR REPLACE INTO timer_callbacks ({columns.CALLBACK_COLUMNS})
VALUES {", ".join([_ONE_CALLBACK] * MANY_CALLBACKS)}
"""  # noqa: S608

# For timers that this transaction has marked, and for no others.
OPEN_DELIVERIES: Final = f"""
INSERT OR IGNORE INTO callback_deliveries ({columns.DELIVERY_COLUMNS})
SELECT t.tenant_id, t.service_call_id, fired.value ->> 4, t.generation, 'Waiting', c.origin, t.due_at,
  t.reached_at, t.reached_at, c.expires_after_ms, 0, 0, NULL, NULL, NULL, NULL
FROM json_each(?) AS fired
CROSS JOIN timer_schedules AS t
  ON t.tenant_id = fired.value ->> 0 AND t.service_call_id = fired.value ->> 1
 AND t.generation = fired.value ->> 2 AND t.reached_at = fired.value ->> 3
CROSS JOIN timer_callbacks AS c ON c.tenant_id = t.tenant_id AND c.service_call_id = t.service_call_id
"""  # noqa: S608

# What may be attempted, from a place on, and behind it the one that comes next.
DUE: Final = f"""
SELECT * FROM (
  SELECT {columns.WAITING_COLUMNS} FROM callback_deliveries INDEXED BY callback_deliveries_waiting
  WHERE state = 'Waiting' AND next_attempt_at <= :now
    AND (next_attempt_at, tenant_id, service_call_id) > (:after_at, :after_tenant, :after_call)
  ORDER BY next_attempt_at, tenant_id, service_call_id
  LIMIT :limit
)
UNION ALL
SELECT * FROM (
  SELECT {columns.WAITING_COLUMNS} FROM callback_deliveries INDEXED BY callback_deliveries_waiting
  WHERE state = 'Waiting' AND next_attempt_at > :now
  ORDER BY next_attempt_at
  LIMIT 1
)
"""  # noqa: S608

# The same of one tenant and receiver.
DUE_OF_LANE: Final = f"""
SELECT {columns.WAITING_COLUMNS} FROM callback_deliveries INDEXED BY callback_deliveries_lanes
WHERE state = 'Waiting' AND tenant_id = :tenant AND origin = :origin
  AND (next_attempt_at, service_call_id) > (:after_at, :after_call) AND next_attempt_at <= :now
ORDER BY next_attempt_at, service_call_id
LIMIT :limit
"""  # noqa: S608

# The same of those that were just handed over.
DUE_AMONG: Final = f"""
SELECT {of_table("d", columns.WAITING_COLUMNS)} FROM json_each(:keys) AS wanted
CROSS JOIN callback_deliveries AS d
  ON d.tenant_id = wanted.value ->> 0 AND d.service_call_id = wanted.value ->> 1
WHERE d.state = 'Waiting' AND d.next_attempt_at <= :now
"""  # noqa: S608

# All that an attempt needs.
CLAIM: Final = f"""
SELECT {of_table("d", columns.DELIVERY_COLUMNS)}, {of_table("c", columns.CALLBACK_COLUMNS)},
  {of_table("t", columns.CONTEXT_COLUMNS)}
FROM json_each(:keys) AS wanted
CROSS JOIN callback_deliveries AS d
  ON d.tenant_id = wanted.value ->> 0 AND d.service_call_id = wanted.value ->> 1
CROSS JOIN timer_callbacks AS c ON c.tenant_id = d.tenant_id AND c.service_call_id = d.service_call_id
CROSS JOIN timer_schedules AS t ON t.tenant_id = d.tenant_id AND t.service_call_id = d.service_call_id
WHERE d.state = 'Waiting' AND d.next_attempt_at <= :now
"""  # noqa: S608

# What attempts came to. Guarded by what was claimed: an outcome that comes twice or too late changes nothing.
# The time of the attempt tells a replay from what was abandoned before its first attempt had ended.
FINISH: Final = f"""
UPDATE callback_deliveries
SET {", ".join(f"{name} = ended.value ->> {n}" for n, name in enumerate(columns.OUTCOME_COLUMNS, start=5))}
FROM json_each(?) AS ended
WHERE callback_deliveries.tenant_id = ended.value ->> 0
  AND callback_deliveries.service_call_id = ended.value ->> 1
  AND +callback_deliveries.state = 'Waiting' AND next_attempt_at = ended.value ->> 4
  AND attempts = ended.value ->> 2 AND series_from = ended.value ->> 3
"""  # noqa: S608

# Failed attempts that counted.
KEEP_ATTEMPTS: Final = f"""
INSERT OR IGNORE INTO callback_attempts ({columns.ATTEMPT_COLUMNS})
SELECT {", ".join(f"failed.value ->> {n}" for n, _ in enumerate(columns.ATTEMPT_COLUMNS.split(",")))}
FROM json_each(?) AS failed
CROSS JOIN callback_deliveries AS d
  ON d.tenant_id = failed.value ->> 0 AND d.service_call_id = failed.value ->> 1
WHERE d.attempts = failed.value ->> 2
"""  # noqa: S608

FORGET_ATTEMPTS: Final = f"""
DELETE FROM callback_attempts WHERE tenant_id = ? AND service_call_id = ? AND attempt <= ? - {KEPT_ATTEMPTS}
"""  # noqa: S608

# A tenant's deliveries in one state, in index order.
LIST: Final = f"""
SELECT {columns.DELIVERY_COLUMNS} FROM callback_deliveries INDEXED BY callback_deliveries_by_state
WHERE tenant_id = :tenant AND state = :state
  AND (opened_at, service_call_id) > (:after_at, :after_call) AND opened_at < :opened_before
  AND (:origin IS NULL OR origin = :origin)
ORDER BY opened_at, service_call_id
LIMIT :limit
"""  # noqa: S608

# By key, and only what is still as it was read.
REPLAY: Final = """
UPDATE callback_deliveries
SET state = 'Waiting', next_attempt_at = ?, series_from = attempts, expires_after_ms = NULL, ended_at = NULL
FROM json_each(?) AS wanted
WHERE callback_deliveries.tenant_id = wanted.value ->> 0
  AND callback_deliveries.service_call_id = wanted.value ->> 1
  AND +state = wanted.value ->> 2 AND attempts = wanted.value ->> 3 AND +state <> 'Waiting'
"""

ABANDON: Final = """
UPDATE callback_deliveries SET state = 'Abandoned', next_attempt_at = NULL, ended_at = ?
WHERE tenant_id = ? AND service_call_id = ? AND +state = 'Waiting'
"""

COUNT: Final = """
SELECT (
  SELECT count(*) FROM callback_deliveries INDEXED BY callback_deliveries_waiting WHERE state = 'Waiting'),
  count(*), min(next_attempt_at)
FROM callback_deliveries INDEXED BY callback_deliveries_waiting
WHERE state = 'Waiting' AND next_attempt_at <= ?
"""

CALLBACK_TABLES: Final = ("timer_callbacks", "callback_deliveries", "callback_attempts")
_OF_KEYS: Final = """
SELECT {columns} FROM json_each(?) AS wanted
CROSS JOIN {table} AS t ON t.tenant_id = wanted.value ->> 0 AND t.service_call_id = wanted.value ->> 1
"""
GET: Final = tuple(
    _OF_KEYS.format(columns=of_table("t", names), table=table)
    for table, names in zip(
        CALLBACK_TABLES,
        (columns.CALLBACK_COLUMNS, columns.DELIVERY_COLUMNS, columns.ATTEMPT_COLUMNS),
        strict=True,
    )
)

# Whole rows of another store, for a copy.
WRITE_RECORDS: Final = tuple(
    f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' for _ in names.split(','))})"  # noqa: S608
    for table, names in zip(
        CALLBACK_TABLES,
        (columns.CALLBACK_COLUMNS, columns.DELIVERY_COLUMNS, columns.ATTEMPT_COLUMNS),
        strict=True,
    )
)


class SqliteDeliveries:
    """The delivery store on SQLite."""

    is_shared = False
    gathers_s = 0.02
    """There is one writer: what is due waits for its hand-over, and nobody for an outcome."""

    def __init__(self, writer: Writer, read: Read, questions: Questions) -> None:
        self._writer = writer
        self._read = read
        self._questions = questions

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        """Read an index in its order."""
        at, tenant, call = ("", "", "") if after is None else (text(after[0]), *after[1:])
        place = {"now": text(now), "limit": limit, "after_at": at, "after_call": call}
        if lane is not None:
            of_lane = {"tenant": lane[0], "origin": lane[1]}
            rows = await self._read(DUE_OF_LANE, {**place, **of_lane})
        else:
            rows = await self._read(DUE, {**place, "after_tenant": tenant})
        found = [columns.waiting(row) for row in rows]
        is_last_to_come = bool(found) and found[-1].next_attempt_at > now
        to_come = found.pop().next_attempt_at if is_last_to_come else None
        return DuePage(found, to_come if len(found) < limit else None)

    async def due_among(self, keys: Sequence[TimerKey], now: datetime) -> list[WaitingDelivery]:
        """Read them by their keys."""
        found = await self._read(DUE_AMONG, {"keys": json.dumps(list(keys)), "now": text(now)})
        return [columns.waiting(row) for row in found]

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> list[ClaimedDelivery]:
        """Read what still waits."""
        found = await self._read(CLAIM, {"keys": json.dumps(list(keys)), "now": text(now)})
        return [columns.claimed(row) for row in found]

    async def finish(self, finished: Sequence[Finished]) -> int:
        """Change what is as it was claimed."""
        outcomes = [
            (
                *each.before.key,
                each.before.attempts,
                each.before.series_from,
                None if each.before.next_attempt_at is None else text(each.before.next_attempt_at),
                *columns.outcome_row(each.after),
            )
            for each in finished
        ]
        failed = [columns.attempt_row(each.after.key, each.failure) for each in finished if each.failure]
        async with self._writer.transaction():
            connection = self._writer.connection
            counted = (await connection.execute(FINISH, (json.dumps(outcomes),))).rowcount
            if failed:
                await connection.execute(KEEP_ATTEMPTS, (json.dumps(failed),))
                many = [row[:3] for row in failed if row[2] > KEPT_ATTEMPTS]
                await connection.executemany(FORGET_ATTEMPTS, many)
        return counted

    async def stay(self) -> None:
        """Do nothing: there is no other instance."""

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Read the three tables."""
        tenant = keys[0][0] if keys else NOBODY
        wanted = json.dumps(list(keys))
        callbacks, deliveries, attempts = [await self._questions.ask(tenant, sql, (wanted,)) for sql in GET]
        return columns.records(callbacks, deliveries, attempts)

    async def list_deliveries(self, query: DeliveryQuery) -> list[Delivery]:
        """Merge index-ordered pages, one for each state."""
        pages = [
            await self._questions.ask(query.tenant_id, LIST, {**_page(query), "state": state})
            for state in columns.states_to_list(query)
        ]
        return _merged(pages, query.limit)

    async def replay(self, ended: Sequence[Delivery], now: datetime) -> int:
        """Change what is as it was read."""
        wanted = json.dumps([(*each.key, each.state.value, each.attempts) for each in ended])
        async with self._writer.transaction():
            return (await self._writer.connection.execute(REPLAY, (text(now), wanted))).rowcount

    async def abandon(self, key: TimerKey, now: datetime) -> Delivery | None:
        """End what waits."""
        async with self._writer.transaction():
            await self._writer.connection.execute(ABANDON, (text(now), *key))
        record = (await self.get([key])).get(key)
        return None if record is None else record.delivery

    async def count(self, now: datetime) -> DeliveryCounts:
        """Count along an index."""
        [(waiting, overdue, oldest)] = await self._questions.ask(NOBODY, COUNT, (text(now),))
        return DeliveryCounts(waiting, overdue, moment(oldest))


async def keep_callbacks(
    connection: aiosqlite.Connection,
    callbacks: Mapping[TimerKey, Callback],
    dropped: Iterable[TimerKey],
    now: datetime,
) -> None:
    """Write the callbacks of timers, and forget those that were taken from theirs; inside a transaction."""
    if callbacks:
        rows = [columns.callback_row(key, callback, now) for key, callback in callbacks.items()]
        whole = len(rows) - len(rows) % MANY_CALLBACKS
        many = [rows[first : first + MANY_CALLBACKS] for first in range(0, whole, MANY_CALLBACKS)]
        flat = [tuple(chain.from_iterable(some)) for some in many]
        for sql, values in ((KEEP_MANY_CALLBACKS, flat), (KEEP_CALLBACK, rows[whole:])):
            await connection.executemany(sql, values)
    await forget_callbacks(connection, dropped)


async def forget_callbacks(connection: aiosqlite.Connection, keys: Iterable[TimerKey]) -> None:
    """Delete all that is kept of the callbacks of timers; inside a transaction."""
    if gone := list(keys):
        for table in CALLBACK_TABLES:
            sql = f"DELETE FROM {table} WHERE tenant_id = ? AND service_call_id = ?"  # noqa: S608 - a constant
            await connection.executemany(sql, gone)


async def open_deliveries(connection: aiosqlite.Connection, events: Sequence[Event]) -> None:
    """Open the deliveries of timers that were marked; inside the transaction of the marks."""
    fired = [(*event.key, event.generation, text(event.at), event.id_text) for event in events]
    await connection.execute(OPEN_DELIVERIES, (json.dumps(fired),))


def _page(query: DeliveryQuery) -> dict[str, Any]:
    first = (text(query.opened_from) if query.opened_from else "", "")
    after = (text(query.after[0]), str(query.after[1])) if query.after else first
    at, call = max(first, after)
    return {
        "tenant": query.tenant_id,
        "after_at": at,
        "after_call": call,
        "opened_before": text(query.opened_before) if query.opened_before else "~",
        "origin": query.origin,
        "limit": query.limit,
    }


def _merged(pages: Sequence[Iterable[tuple[Any, ...]]], limit: int) -> list[Delivery]:
    found = merge(*pages, key=lambda row: (row[7], row[1]))
    return [columns.delivery(row) for row in islice(found, limit)]
