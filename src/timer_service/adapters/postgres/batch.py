"""Commands of one transaction: what the rules make of them, and how it is written."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from timer_service.adapters import rows
from timer_service.adapters.postgres import arrays
from timer_service.adapters.postgres.connections import Connection
from timer_service.adapters.postgres.statements import INSERT, LOAD, LOCK_FOR_REQUESTS, UPDATE
from timer_service.domain import timer as rules
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import Command, TimerKey
from timer_service.domain.outcomes import DECIDED_AT_ONCE, in_groups, nearest_due_at
from timer_service.domain.timer import Outcome, Timer

AT_ONCE: Final = DECIDED_AT_ONCE // 2
"""To the driver a row is twice as much work as to SQLite's."""


class Batch:
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
        """Return the timer that these commands make if there is none."""
        timer = self._apply(None, key)
        assert timer is not None
        return timer

    def apply(self, timer: Timer) -> Timer:
        """Return the timer as it is after its commands: the same object if nothing changes."""
        after = self._apply(timer, timer.key)
        assert after is not None
        return after

    def refuse(self, keys: Iterable[TimerKey]) -> None:
        """Answer the requests for these timers: they are being fired."""
        for key in keys:
            for index, _ in self.commands[key]:
                self.outcomes[index] = Outcome.DUE

    @property
    def about_versions(self) -> frozenset[TimerKey]:
        """The timers that must be there: a request is about a version of each."""
        return frozenset(key for key, given in self.commands.items() if given[0][1].expected)

    @property
    def nearest(self) -> datetime | None:
        """The earliest due time that was set."""
        return nearest_due_at(self._in_order, self.outcomes)

    def _apply(self, timer: Timer | None, key: TimerKey) -> Timer | None:
        for index, command in self.commands[key]:
            timer, self.outcomes[index] = self._rule(timer, command, self.now)
        return timer


async def insert(connection: Connection, batch: Batch, keys: Iterable[TimerKey]) -> set[TimerKey]:
    """Insert timers that are new, in the order of the key; return which of them were."""
    timers = [batch.first(key) for key in sorted(keys)]
    inserted = await connection.fetch(INSERT, *rows.columns(timers))
    return {(row[0], row[1]) for row in inserted}


async def decide(connection: Connection, batch: Batch) -> dict[TimerKey, Timer]:
    """Decide requests for all timers that nobody else holds; return these as they are now."""
    timers: dict[TimerKey, Timer] = {}
    about_versions = batch.about_versions
    for keys in map(frozenset, in_groups(sorted(batch.commands), AT_ONCE)):
        timers |= await _decide(connection, batch, keys, about_versions & keys)
    return timers


async def _decide(
    connection: Connection, batch: Batch, keys: frozenset[TimerKey], about_versions: frozenset[TimerKey]
) -> dict[TimerKey, Timer]:
    first = {key: batch.first(key) for key in sorted(keys - about_versions)}
    inserted = await connection.fetch(INSERT, *rows.columns(first.values())) if first else []
    timers = {(row[0], row[1]): first[row[0], row[1]] for row in inserted}
    if there := keys - timers.keys():
        found = await connection.fetch(LOCK_FOR_REQUESTS, *arrays.transposed(there, 2))
        await _expect(connection, about_versions - {(row[0], row[1]) for row in found})
        # An earlier claim of a timer went by the database's clock or an earlier one.
        batch.now = max(batch.now, *(row[-1] for row in found)) if found else batch.now
        before = [rows.timer(row) for row in found if row[-2]]
        after = [batch.apply(timer) for timer in before]
        changed = [new for old, new in zip(before, after, strict=True) if new is not old]
        if changed:
            await connection.execute(UPDATE, *rows.columns(changed))
        timers |= {timer.key: timer for timer in after}
    return timers


async def _expect(connection: Connection, keys: frozenset[TimerKey]) -> None:
    """Raise TimerNotFound unless these timers, whose locks others hold, are there."""
    if keys:
        there = {(row[0], row[1]) for row in await connection.fetch(LOAD, *arrays.transposed(keys, 2))}
        for key in keys - there:
            raise TimerNotFound(key[1])


async def save(connection: Connection, batch: Batch, locked: Sequence[Timer]) -> set[TimerKey]:
    """Apply the rules to timers whose locks are held; return which they are."""
    changed = [after for before in locked if (after := batch.apply(before)) is not before]
    if changed:
        await connection.execute(UPDATE, *rows.columns(changed))
    return {timer.key for timer in locked}
