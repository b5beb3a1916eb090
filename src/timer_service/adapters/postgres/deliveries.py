"""Deliveries in the PostgreSQL database of the timers.

A claim is a name and an end in the row, by the database's clock; nothing is held while an attempt is under
way. An instance says again and again that it is there; the claims of one that is silent are free.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from timer_service.adapters import callback_rows as columns
from timer_service.adapters.postgres import arrays
from timer_service.adapters.postgres import delivery_statements as statements
from timer_service.adapters.postgres.connections import Connection, Connections, affected
from timer_service.adapters.rows import text
from timer_service.domain.delivery import KEPT_ATTEMPTS, Delivery
from timer_service.domain.errors import TimerServiceError
from timer_service.domain.messages import Command, TimerKey
from timer_service.domain.outcomes import accepted_callbacks, dropped_callbacks, in_groups
from timer_service.domain.timer import Outcome
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

BEAT_S: Final = 2.0
"""How often an instance says that it is there."""
_EARLIEST: Final = "-infinity"
_OUTCOME_WIDTH: Final = 4 + len(columns.OUTCOME_COLUMNS)


class PostgresDeliveries:
    """The delivery store on PostgreSQL."""

    is_shared = True
    gathers_s = 0.0

    def __init__(self, work: Connections, answers: Connections, elapsed_s: Callable[[], float]) -> None:
        self._work = work
        self._elapsed_s = elapsed_s
        self._answers = answers
        self._instance: str | None = None
        """The name that the database gave us."""
        self._beat_again_s = 0.0

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        """Read an index in its order, without what other instances hold."""
        me = await self._present()
        at, tenant, call = (_EARLIEST, "", "") if after is None else (text(after[0]), *after[1:])
        arguments: list[Any] = [text(now), me, at, tenant, call, limit]
        if lane is not None:
            arguments[3] = lane[0]
            found = await self._work.fetch(statements.DUE_OF_LANE, *arguments, lane[1])
        else:
            found = await self._work.fetch(statements.DUE, *arguments)
        next_at = None
        if len(found) < limit:
            [(clock, next_at)] = await self._work.fetch(statements.NEXT_ATTEMPT, text(now))
            if next_at is not None:
                # Where our clock is ahead, that is when the database's clock says so too.
                next_at += max(now - clock, timedelta())
        return DuePage([columns.waiting(row) for row in found], next_at)

    async def due_among(self, keys: Sequence[TimerKey], now: datetime) -> list[WaitingDelivery]:
        """Read them by their keys, without what other instances hold."""
        me = await self._present()
        wanted = arrays.transposed(keys, 2)
        return [
            columns.waiting(row)
            for row in await self._work.fetch(statements.DUE_AMONG, text(now), me, *wanted)
        ]

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> list[ClaimedDelivery]:
        """Write our name on what is free."""
        me = await self._present()
        async with self._work.transaction() as connection:
            wanted = arrays.transposed(keys, 2)
            found = await connection.fetch(statements.CLAIM, text(now), me, *wanted)
        return [columns.claimed(tuple(row)) for row in found]

    async def finish(self, finished: Sequence[Finished]) -> int:
        """Change what still bears our name and is as it was claimed."""
        me = await self._present()
        outcomes = [
            (
                *each.before.key,
                each.before.attempts,
                each.before.series_from,
                *columns.outcome_row(each.after),
            )
            for each in sorted(finished, key=lambda each: each.before.key)
        ]
        async with self._work.transaction() as connection:
            changed = await connection.fetch(
                statements.FINISH, me, *arrays.transposed(outcomes, _OUTCOME_WIDTH)
            )
            counted = {(row[0], row[1]) for row in changed}
            failed = [
                columns.attempt_row(each.after.key, each.failure)
                for each in finished
                if each.failure and each.after.key in counted
            ]
            if failed:
                await connection.executemany(statements.KEEP_ATTEMPT, failed)
                many = [row[:3] for row in failed if row[2] > KEPT_ATTEMPTS]
                await connection.executemany(statements.FORGET_ATTEMPTS, many)
        return len(counted)

    async def stay(self) -> None:
        """Say so, if that was not said for a while."""
        await self._present()

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Read the three tables."""
        wanted = arrays.transposed(keys, 2)
        return columns.records(
            await self._answers.ask(statements.GET_CALLBACKS, *wanted),
            await self._answers.ask(statements.GET_DELIVERIES, *wanted),
            await self._answers.ask(statements.GET_ATTEMPTS, *wanted),
        )

    async def list_deliveries(self, query: DeliveryQuery) -> list[Delivery]:
        """Return a page in the order of an index."""
        page = _page(query, columns.states_to_list(query))
        return [columns.delivery(row) for row in await self._answers.ask(statements.LIST, *page)]

    async def replay(self, ended: Sequence[Delivery], now: datetime) -> int:
        """Change what is as it was read."""
        wanted = sorted((*each.key, each.state.value, each.attempts) for each in ended)
        async with self._answers.transaction() as connection:
            changed = await connection.execute(statements.REPLAY, text(now), *arrays.transposed(wanted, 4))
        return affected(changed)

    async def abandon(self, key: TimerKey, now: datetime) -> Delivery | None:
        """End what waits."""
        async with self._answers.transaction() as connection:
            await connection.execute(statements.ABANDON, text(now), *key)
        record = (await self.get([key])).get(key)
        return None if record is None else record.delivery

    async def count(self, now: datetime) -> DeliveryCounts:
        """Count along an index."""
        [(waiting, overdue, oldest)] = await self._answers.ask(statements.COUNT, text(now))
        return DeliveryCounts(waiting, overdue, oldest)

    async def leave(self) -> None:
        """Give back at once what was claimed and not finished."""
        if self._instance is not None:
            with suppress(TimerServiceError):  # Others find out by themselves.
                await self._work.fetch(statements.LEAVE, self._instance)

    async def _present(self) -> str:
        """Say that we are there, if that was not said for a while, and return our name."""
        if self._instance is None or self._elapsed_s() >= self._beat_again_s:
            [(self._instance,)] = await self._work.fetch(statements.BEAT, self._instance)
            self._beat_again_s = self._elapsed_s() + BEAT_S
        assert self._instance is not None
        return self._instance


async def keep_callbacks(
    connection: Connection,
    requests: Sequence[Command],
    outcomes: Sequence[Outcome],
    decided: Mapping[TimerKey, object],
    now: datetime,
) -> None:
    """Write the callbacks of timers, and forget those that were taken from theirs; inside a transaction."""
    callbacks = accepted_callbacks(requests, outcomes)
    kept = [(key, each) for key, each in callbacks.items() if key in decided]
    for some in in_groups(kept):
        written = [columns.callback_row(key, each, now) for key, each in some]
        await connection.executemany(statements.KEEP_CALLBACK, written)
    dropped = [key for key in dropped_callbacks(requests, outcomes) if key in decided]
    for sql in statements.FORGET if dropped else ():
        await connection.executemany(sql, dropped)


def _page(query: DeliveryQuery, states: Sequence[str]) -> list[Any]:
    # No id is empty: what was opened at `opened_from` comes behind it.
    first = (query.opened_from or datetime.min.replace(tzinfo=UTC), "")
    at, call = max(first, query.after) if query.after else first
    return [
        query.tenant_id,
        list(states),
        text(at),
        call,
        text(query.opened_before) if query.opened_before else "infinity",
        query.limit,
        query.origin,
    ]
