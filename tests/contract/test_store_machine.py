"""Any order of commands, calls and claims, through one instance or several, against a model of its own.

The model shares no code with the product: it is the table of docs/messages.md, written down once more.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.postgres import database_clock
from tests.support.timers import ACME, GLOBEX, asked, cancel, schedule
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.messages import Command, ServiceCallId, TenantId
from timer_service.ports.timer_store import Claim, TimerStore
from timer_service.testing import START

Key = tuple[TenantId, str]

KEYS: Final = [(tenant, name) for tenant in (ACME, GLOBEX) for name in "ab"]


@dataclass
class Row:
    """What the model knows of a timer."""

    state: str
    due_s: float | None
    generation: int
    number: int


@dataclass
class OpenClaim:
    """What an instance is publishing."""

    context: AbstractAsyncContextManager[Claim]
    claim: Claim
    keys: set[Key]


SetClock = Callable[[datetime], Awaitable[None]]


class StoreMachine:
    """One store, its instances and the model beside them; each method but the last few is a step."""

    def __init__(self, stores: Sequence[TimerStore], skews_s: Sequence[float], clock: SetClock) -> None:
        self.stores = stores
        self.skews_s = skews_s
        """How far the clock of each instance is ahead of the store's."""
        self.set_clock = clock
        self.rows: dict[Key, Row] = {}
        self.claims: dict[int, OpenClaim] = {}
        self.locked: dict[Key, int] = {}
        """Rows that an instance holds, and which one."""
        self.sent: list[Command] = []
        self.number = 0
        self.now_s = 0.0

    async def time_passes(self, _: int, __: Key, seconds: int) -> None:
        self.now_s += max(seconds, 0.001)
        await self.set_clock(_at(self.now_s))

    async def a_schedule_is_delivered(self, which: int, key: Key, due_s: int) -> None:
        if not self._would_wait(which, key):
            self.number += 1
            due = self.now_s + due_s
            command = schedule(key[1], due, tenant=key[0], number=self.number)
            await self._change(which, key, command, self._scheduled(key, due))

    async def a_cancel_is_delivered(self, which: int, key: Key, _: int) -> None:
        if not self._would_wait(which, key):
            self.number += 1
            command = cancel(key[1], tenant=key[0], number=self.number)
            await self._change(which, key, command, self._cancelled(key))

    async def an_old_command_is_delivered_again(self, which: int, _: Key, pick: int) -> None:
        if self.sent:
            command = self.sent[pick % len(self.sent)]
            key = (command.tenant_id, str(command.service_call_id))
            reached = self.rows[key].state == "Reached"

            assert await self._apply(which, command) == ("already_reached" if reached else "superseded")
            await self._compare(key)

    async def a_caller_schedules(self, which: int, key: Key, due_s: int) -> None:
        due = self.now_s + due_s
        command = schedule(key[1], due, tenant=key[0], number=self.number)
        await self._call(which, key, command, self._scheduled(key, due))

    async def a_caller_cancels(self, which: int, key: Key, _: int) -> None:
        command = cancel(key[1], tenant=key[0], number=self.number)
        await self._call(which, key, command, self._cancelled(key))

    async def an_instance_claims(self, which: int, _: Key, pick: int) -> None:
        if which in self.claims:
            return
        limit = [1, 2, 100][pick % 3]
        due_by = min(self.now_s, self._clock_s(which))
        due = {
            (*key, row.generation)
            for key, row in self.rows.items()
            if row.state == "Scheduled" and row.due_s is not None and row.due_s <= due_by
            if key not in self.locked
        }
        context = self.stores[which].claim_due(_at(self._clock_s(which)), limit)
        claim = await context.__aenter__()
        keys = {(timer.tenant_id, str(timer.service_call_id)) for timer in claim.timers}
        self.claims[which] = OpenClaim(context, claim, keys)
        self.locked |= dict.fromkeys(keys, which)

        found = {(t.tenant_id, str(t.service_call_id), t.generation) for t in claim.timers}
        assert found <= due
        assert len(claim.timers) == min(limit, len(due))
        assert [t.due_at for t in claim.timers] == sorted(t.due_at for t in claim.timers)

    async def a_claim_ends(self, _: int, __: Key, pick: int) -> None:
        """The broker has confirmed some of the events, or none, or the instance gives up."""
        if not self.claims:
            return
        which = sorted(self.claims)[pick % len(self.claims)]
        open_claim = self.claims.pop(which)
        at = _at(self._clock_s(which))
        events = [timer.reached(at) for timer in open_claim.claim.timers][: pick % 5]
        expected = 0
        for event in events:
            row = self.rows[event.tenant_id, str(event.service_call_id)]
            if row.state == "Scheduled" and row.generation == event.generation:
                row.state = "Reached"
                expected += 1
        marked = await open_claim.claim.mark_reached(events) if events else 0
        await open_claim.context.__aexit__(None, None, None)
        self.locked = {key: holder for key, holder in self.locked.items() if holder != which}

        assert marked == expected
        for key in open_claim.keys:
            await self._compare(key)

    async def a_command_meets_the_firing_of_its_timer(self, _: int, __: Key, due_s: int) -> None:
        if self.locked:
            key, holder = sorted(self.locked.items())[due_s % len(self.locked)]
            if due_s % 2:
                await self.a_cancel_is_delivered(holder, key, 0)
            else:
                await self.a_schedule_is_delivered(holder, key, due_s)

    async def a_call_meets_the_firing_of_its_timer(self, which: int, _: Key, pick: int) -> None:
        being_fired = sorted({key for claim in self.claims.values() for key in claim.keys})
        if being_fired:
            await self.a_caller_cancels(which, being_fired[pick % len(being_fired)], 0)

    async def end(self) -> None:
        for claim in self.claims.values():
            await claim.context.__aexit__(None, None, None)
        for key in self.rows:
            await self._compare(key)

    # The rules of a timer, in the words of the contract

    def _scheduled(self, key: Key, due_s: float) -> tuple[str, Row]:
        row = self.rows.get(key)
        if row is None:
            return "scheduled", Row("Scheduled", due_s, 1, self.number)
        if row.state == "Reached":
            return "already_reached", row
        moved = row.state == "Cancelled" or row.due_s != due_s
        after = Row("Scheduled", due_s, row.generation + moved, self.number)
        if row.state == "Cancelled":
            return "scheduled", after
        return ("rescheduled" if moved else "unchanged"), after

    def _cancelled(self, key: Key) -> tuple[str, Row]:
        row = self.rows.get(key)
        if row is None:
            return "not_found", Row("Cancelled", None, 0, self.number)
        if row.state == "Reached":
            return "already_reached", row
        outcome = "already_cancelled" if row.state == "Cancelled" else "cancelled"
        return outcome, replace(row, state="Cancelled", number=self.number)

    # Doing it

    def _would_wait(self, which: int, key: Key) -> bool:
        """Say whether a command has to wait, because another instance is publishing its timer."""
        return self.locked.get(key, which) != which

    async def _change(self, which: int, key: Key, command: Command, expected: tuple[str, Row]) -> None:
        outcome, after = expected
        self.sent.append(command)
        found = await self._apply(which, command)
        if after is not self.rows.get(key):
            self.locked.pop(key, None)  # The instance lets go of it: the generation guard is enough.
        self.rows[key] = after

        assert found == outcome
        await self._compare(key)

    async def _call(self, which: int, key: Key, command: Command, expected: tuple[str, Row]) -> None:
        outcome, after = expected
        row = self.rows.get(key)
        being_fired = any(key in claim.keys for claim in self.claims.values())
        late_s = max(self.now_s, self._clock_s(which))
        is_due = row and row.state == "Scheduled" and row.due_s is not None and row.due_s <= late_s
        if being_fired or is_due:
            outcome = "due"
        else:
            self.rows[key] = after
        [found] = await asked(self.stores[which], command, now=_at(self._clock_s(which)))

        assert found == outcome
        await self._compare(key)

    async def _apply(self, which: int, command: Command) -> str:
        [outcome] = await self.stores[which].apply([command], _at(self._clock_s(which)))
        return outcome.value

    async def _compare(self, key: Key) -> None:
        row = self.rows.get(key)
        wanted = row and (row.state, None if row.due_s is None else _at(row.due_s), row.generation)
        for store in self.stores:
            timer = await store.get(key[0], ServiceCallId(key[1]))
            assert (timer and (timer.state.value, timer.due_at, timer.generation)) == wanted

    def _clock_s(self, which: int) -> float:
        return self.now_s + self.skews_s[which]


def _at(seconds: float) -> datetime:
    return START + timedelta(milliseconds=round(seconds * 1000))


@asynccontextmanager
async def _sqlite() -> AsyncIterator[StoreMachine]:
    """One file has one instance."""

    async def no_clock_of_its_own(_: datetime) -> None:
        pass

    with tempfile.TemporaryDirectory() as folder:
        async with open_sqlite_store(Path(folder) / "timers.db", lambda: START) as store:
            yield StoreMachine([store], (0,), no_clock_of_its_own)


@asynccontextmanager
async def _postgres() -> AsyncIterator[StoreMachine]:
    """Three instances, one of them with a fast clock, one with a slow one."""
    async with database_clock() as clock, AsyncExitStack() as stack:
        await clock.set(START)
        opening = [open_postgres_store(clock.url, lambda: START) for _ in range(3)]
        stores = [await stack.enter_async_context(each) for each in opening]
        yield StoreMachine(stores, (0, 2, -2), clock.set)


STEPS: Final = {
    StoreMachine.time_passes: 2,
    StoreMachine.a_schedule_is_delivered: 4,
    StoreMachine.a_cancel_is_delivered: 1,
    StoreMachine.an_old_command_is_delivered_again: 1,
    StoreMachine.a_caller_schedules: 2,
    StoreMachine.a_caller_cancels: 1,
    StoreMachine.an_instance_claims: 4,
    StoreMachine.a_claim_ends: 2,
    StoreMachine.a_command_meets_the_firing_of_its_timer: 2,
    StoreMachine.a_call_meets_the_firing_of_its_timer: 2,
}
"""What may happen, and how often beside the others."""
Step = tuple[Callable[[StoreMachine, int, Key, int], Awaitable[None]], int, Key, int]
HISTORIES: Final = st.lists(
    st.tuples(
        st.sampled_from([step for step, weight in STEPS.items() for _ in range(weight)]),
        st.integers(0, 2),
        st.sampled_from(KEYS),
        st.integers(-4, 5),
    ),
    min_size=40,
    max_size=60,
)


@pytest.mark.parametrize("opened", [_sqlite, _postgres], ids=["sqlite", "postgres"])
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(history=HISTORIES)
def test_whatever_happens_the_store_is_as_the_contract_says(
    opened: Callable[[], AbstractAsyncContextManager[StoreMachine]], history: list[Step]
) -> None:
    async def live_through() -> None:
        async with opened() as machine:
            for step, which, key, number in history:
                await step(machine, which % len(machine.stores), key, number)
            await machine.end()

    asyncio.run(live_through())
