"""Mark timers as reached: marks that wait for the writer together share one transaction."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiosqlite

from timer_service.adapters.rows import text_of_batch
from timer_service.adapters.sqlite.deliveries import open_deliveries
from timer_service.adapters.sqlite.statements import json_text
from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import TimerServiceError
from timer_service.domain.messages import Event, TimerKey
from timer_service.domain.timer import TimerState, state_of

# Publishing is done; the generation guard leaves alone what was rescheduled meanwhile. The plus keeps SQLite
# from searching by state and tenant, which would pass all of the tenant's pending timers for each one marked.
_MARK: Final = """
UPDATE timer_schedules SET state = :state, pending_due_ms = NULL,
  reached_at = iif(:state = 'Reached', fired.at, NULL),
  expired_at = iif(:state = 'Expired', fired.at, NULL)
"""
MARK_REACHED: Final = f"""
{_MARK}
FROM (
  SELECT value ->> 0 AS tenant_id, value ->> 1 AS service_call_id, value ->> 2 AS generation,
    value ->> 3 AS at
  FROM json_each(:fired)
) AS fired
WHERE timer_schedules.tenant_id = fired.tenant_id
  AND timer_schedules.service_call_id = fired.service_call_id
  AND timer_schedules.generation = fired.generation
  AND +timer_schedules.state = 'Scheduled'
"""  # noqa: S608 - constants

# The same of timers that have all but the service call in common, as most of a burst: to read these values
# out of the JSON of each would take a quarter of the time.
MARK_ALIKE: Final = f"""
{_MARK.replace("fired.at", ":at")}
WHERE tenant_id = :tenant_id AND generation = :generation AND +state = 'Scheduled'
  AND service_call_id IN (SELECT value FROM json_each(:calls))
"""  # noqa: S608 - constants

# Before publishing: of timers that can expire, which event the generation gets.
SETTLE: Final = """
UPDATE timer_schedules SET verdict = :verdict
FROM (
  SELECT value ->> 0 AS tenant_id, value ->> 1 AS service_call_id, value ->> 2 AS generation
  FROM json_each(:timers)
) AS claimed
WHERE timer_schedules.tenant_id = claimed.tenant_id
  AND timer_schedules.service_call_id = claimed.service_call_id
  AND timer_schedules.generation = claimed.generation
  AND +timer_schedules.state = 'Scheduled'
RETURNING timer_schedules.tenant_id, timer_schedules.service_call_id
"""


FEW: Final = 16
"""Fewer timers than this wait for others, to be marked with them; more are worth their own transaction."""
GATHER_S: Final = 0.004
"""How long they wait. They are published already, and each transaction holds up the next look."""


class Changes(Protocol):
    """What a transaction changes about the store as a whole."""

    pending: int


@dataclass(slots=True, eq=False)
class _Mark:
    """The events of one claim, and what became of them."""

    events: Sequence[Event]
    sink: Sink
    marked: int | None = None
    error: TimerServiceError | None = None


class _SomeChangedError(Exception):
    """Some timers of a group were changed before they could be marked."""


class Marks:
    """The marks of all claims: one wait for the disk serves all that came while the writer was busy."""

    def __init__(
        self,
        writer: aiosqlite.Connection,
        transaction: Callable[[], AbstractAsyncContextManager[Changes]],
        gather_s: float = GATHER_S,
    ) -> None:
        self._writer = writer
        self._transaction = transaction
        self._gather_s = gather_s
        self._turn = asyncio.Lock()
        self._waiting: list[_Mark] = []

    async def mark(self, events: Sequence[Event], sink: Sink = Sink.BUS) -> int:
        """Mark each timer whose published generation still stands; return how many."""
        mark = _Mark(events, sink)
        self._waiting.append(mark)
        # A callback is sent once its timer is marked, so that does not wait; and it takes along what does.
        if sink is Sink.BUS and len(events) < FEW:
            await asyncio.sleep(self._gather_s)
        async with self._turn:
            # The previous holder of the turn may have marked these as well.
            if mark.marked is None and mark.error is None:
                await self._mark_all()
        if mark.error is not None:
            raise mark.error
        assert mark.marked is not None
        return mark.marked

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> set[TimerKey]:
        """Keep the verdict on each timer whose generation still stands; return which they are."""
        claimed = json_text([(*timer.key, timer.generation) for timer in timers])
        parameters = {"timers": claimed, "verdict": None if verdict is None else verdict.value}
        async with self._transaction():
            found = await self._writer.execute_fetchall(SETTLE, parameters)
        return {(row[0], row[1]) for row in found}

    async def _mark_all(self) -> None:
        """Do what waits in one transaction: all of it is marked, or nothing is and all of it failed."""
        group: list[_Mark] = []
        counts: list[int] = []
        error: TimerServiceError | None = None
        try:
            try:
                async with self._transaction() as changes:
                    # Not before the writer is ours: others may have come meanwhile.
                    group = list(self._waiting)
                    counts = await self._mark_together(group)
                    changes.pending = -sum(counts)
            except _SomeChangedError:
                async with self._transaction() as changes:
                    counts = [await self._execute([mark]) for mark in group]
                    changes.pending = -sum(counts)
        except TimerServiceError as failed:
            error = failed
            group = group or list(self._waiting)
            counts = [0] * len(group)
        # A caller that is cancelled before this line leaves its group to the next one.
        del self._waiting[: len(group)]
        for mark, count in zip(group, counts, strict=True):
            mark.marked, mark.error = count, error

    async def _mark_together(self, group: Sequence[_Mark]) -> list[int]:
        """Mark a group at once; raise _SomeChangedError if that does not tell how many of each."""
        marked = await self._execute(group)
        wanted = [len(mark.events) for mark in group]
        if len(group) == 1:
            return [marked]
        if marked < sum(wanted):
            raise _SomeChangedError
        return wanted

    async def _execute(self, group: Sequence[_Mark]) -> int:
        """Mark all of a group; many marks take no more statements than one."""
        # Each statement is a way to the writer's thread and back. With two for every mark, a group that had
        # to wait grew faster than it was marked.
        by_kind = defaultdict[type[Event], list[Event]](list)
        for mark in group:
            for event in mark.events:
                by_kind[type(event)].append(event)
        marked = 0
        for events in by_kind.values():
            marked += (await self._writer.execute(*_marking(events))).rowcount
        # In the same transaction: a timer is never reached without its delivery, nor the reverse.
        if handed_over := [event for mark in group if mark.sink is Sink.HTTP for event in mark.events]:
            await open_deliveries(self._writer, handed_over)
        return marked


def _marking(events: Sequence[Event]) -> tuple[str, dict[str, Any]]:
    """Return the statement that marks the timers of events of one kind, and its parameters."""
    state, one = state_of(events[0]).value, events[0]
    if len({(event.tenant_id, event.generation, event.at) for event in events}) == 1:
        alike = {"tenant_id": one.tenant_id, "generation": one.generation, "at": text_of_batch(one.at)}
        return MARK_ALIKE, {"state": state, **alike, "calls": json_text([e.service_call_id for e in events])}
    fired = [(*event.key, event.generation, text_of_batch(event.at)) for event in events]
    return MARK_REACHED, {"state": state, "fired": json_text(fired)}
