"""What every timer store promises of timers that can expire, and of schedules that count only if absent."""

import asyncio
import random

import pytest

from tests.support.timers import (
    ACME,
    GLOBEX,
    asked,
    at,
    call,
    cancel,
    expired,
    reached,
    schedule,
    scheduled_timer,
)
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.messages import Command, Event, Position, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import TimerQuery, TimerStore

ONE, TWO = (ACME, call("order-1")), (ACME, call("order-2"))


async def kept(store: TimerStore, name: str = "order-1") -> Timer:
    timer = await store.get(ACME, call(name))
    assert timer is not None
    return timer


async def claimed(store: TimerStore, now_s: float = 0) -> list[DueTimer]:
    async with store.claim_due(at(now_s), 100) as claim:
        return list(claim.timers)


def expiring(name: str = "order-1", due_s: float = 0, number: int = 1) -> Command:
    return schedule(name, due_s, number=number, expires_after_s=5)


async def keep(store: TimerStore, *commands: Command) -> None:
    await store.apply(commands, at(-9))


# Verdicts


async def test_how_long_an_event_is_of_use_is_kept_and_told_to_who_fires_it(store: TimerStore) -> None:
    await keep(store, expiring(), schedule("order-2", 0, number=2))

    assert (await kept(store)).expires_after_ms == 5000
    assert [(t.expires_after_ms, t.verdict) for t in await claimed(store)] == [(5000, None), (None, None)]


@pytest.mark.parametrize("verdict", [TimerState.REACHED, TimerState.EXPIRED])
async def test_a_verdict_is_found_by_the_next_claim(store: TimerStore, verdict: TimerState) -> None:
    await keep(store, expiring("order-1"), expiring("order-2", number=2))

    async with store.claim_due(at(0), 100) as claim:
        ours = await claim.settle(claim.timers[:1], verdict)

    assert set(ours) == {ONE, TWO}
    assert [timer.verdict for timer in await claimed(store)] == [verdict, None]
    assert ((await kept(store)).state, (await kept(store)).verdict) == (TimerState.SCHEDULED, verdict)


async def test_a_verdict_can_be_taken_back(store: TimerStore) -> None:
    await keep(store, expiring())

    async with store.claim_due(at(0), 100) as claim:
        await claim.settle(claim.timers, TimerState.REACHED)
        await claim.settle(claim.timers, None)

    assert [timer.verdict for timer in await claimed(store)] == [None]


async def test_a_timer_whose_verdict_is_kept_is_still_ours(store: TimerStore) -> None:
    await keep(store, expiring())

    async with store.claim_due(at(0), 100) as claim:
        await claim.settle(claim.timers, TimerState.REACHED)
        others = await claimed(store)
        request = await asked(store, cancel(number=7), now=at(0))
        marked = await claim.mark_reached([reached("order-1", 0, reached_s=1)])

    assert (others, request, marked) == ([], [Outcome.DUE], 1)
    assert (await kept(store)).state is TimerState.REACHED


async def test_what_was_moved_before_its_verdict_is_not_ours_and_has_none(store: TimerStore) -> None:
    await keep(store, expiring("order-1"), expiring("order-2", number=2))

    async with store.claim_due(at(0), 100) as claim:
        await store.apply([schedule("order-1", 0, number=7, expires_after_s=9)], at(0))
        ours = await claim.settle(claim.timers, TimerState.EXPIRED)

    assert set(ours) == {TWO}
    assert {t.service_call_id: (t.generation, t.verdict) for t in await claimed(store)} == {
        "order-1": (2, None),
        "order-2": (1, TimerState.EXPIRED),
    }


@pytest.mark.parametrize("expires_after_s", [5, 9, None])
async def test_a_move_forgets_the_verdict_and_a_repetition_does_not(
    store: TimerStore, expires_after_s: float | None
) -> None:
    await keep(store, expiring())
    async with store.claim_due(at(0), 100) as claim:
        await claim.settle(claim.timers, TimerState.REACHED)

    await store.apply([schedule("order-1", 0, number=7, expires_after_s=expires_after_s)], at(0))

    is_same = expires_after_s == 5
    [due] = await claimed(store)
    assert (due.generation, due.verdict) == ((1, TimerState.REACHED) if is_same else (2, None))


# Expired


async def test_an_expired_timer_is_marked_listed_and_final(store: TimerStore) -> None:
    await keep(store, expiring("order-1"), expiring("order-2", number=2), schedule("order-3", number=3))

    async with store.claim_due(at(9), 100) as claim:
        events: list[Event] = [expired("order-1", 0, expired_s=9), reached("order-2", 0, reached_s=9)]
        assert await claim.mark_reached(events) == 2

    timer = await kept(store)
    assert (timer.state, timer.expired_at, timer.reached_at) == (TimerState.EXPIRED, at(9), None)
    assert (await kept(store, "order-2")).expired_at is None
    names = [t.service_call_id for t in await store.list_timers(TimerQuery(ACME, state=TimerState.EXPIRED))]
    assert names == ["order-1"]
    every = [t.service_call_id for t in await store.list_timers(TimerQuery(ACME))]
    assert every == ["order-1", "order-2", "order-3"]
    assert (await store.count(at(9))).pending == 1
    late: list[Command] = [schedule("order-1", 60, number=8), cancel("order-1", number=9)]
    assert await store.apply(late, at(10)) == [Outcome.ALREADY_EXPIRED] * 2
    assert await asked(store, cancel("order-1", number=9), now=at(10)) == [Outcome.ALREADY_EXPIRED]
    assert await kept(store) == timer


async def test_an_expiry_of_a_generation_that_no_longer_stands_marks_nothing(store: TimerStore) -> None:
    await keep(store, expiring())

    async with store.claim_due(at(9), 100) as claim:
        await store.apply([schedule("order-1", 60, number=2)], at(9))
        assert await claim.mark_reached([expired("order-1", 0, expired_s=9)]) == 0

    assert ((await kept(store)).state, (await kept(store)).due_at) == (TimerState.SCHEDULED, at(60))


async def test_marking_an_expiry_again_changes_nothing(store: TimerStore) -> None:
    await keep(store, expiring())

    async with store.claim_due(at(9), 100) as claim:
        await claim.mark_reached([expired("order-1", 0, expired_s=9)])
        assert await claim.mark_reached([expired("order-1", 0, expired_s=10)]) == 0

    assert (await kept(store)).expired_at == at(9)


async def test_retention_counts_from_the_expiry(store: TimerStore) -> None:
    await keep(store, expiring())
    async with store.claim_due(at(9), 100) as claim:
        await claim.mark_reached([expired("order-1", 0, expired_s=9)])

    assert await store.purge(at(9), 10) == 0
    assert await store.purge(at(9.001), 10) == 1
    assert await store.get(ACME, call("order-1")) is None


# Only if absent


async def test_a_schedule_if_absent_leaves_a_timer_as_it_is(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, number=5, correlation="mine"))
    late = schedule("order-1", 90, number=7, correlation="late", if_absent=True)

    applied = await store.apply([late], at(0))
    decided = await store.decide([late], at(0))

    assert applied == [Outcome.UNCHANGED]
    assert [(each.outcome, each.timer) for each in decided] == [(Outcome.UNCHANGED, await kept(store))]
    assert await kept(store) == scheduled_timer("order-1", 60, registered_s=-9, number=5, correlation="mine")


async def test_the_oldest_command_of_a_timer_is_kept(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, number=5, stream=2, if_absent=True))
    first = await kept(store)
    await store.apply([schedule("order-1", 90, number=7, stream=3)], at(0))
    moved = await kept(store)

    assert (first.first_position, first.first_if_absent) == (None, True)
    assert (moved.first_position, moved.first_if_absent, moved.oldest) == (
        Position(2, 5),
        True,
        Position(2, 5),
    )


async def test_an_older_cancel_takes_back_what_a_schedule_if_absent_has_set(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, number=7, correlation="late", if_absent=True))

    outcomes = await store.apply([cancel(number=5)], at(0))

    timer = await kept(store)
    assert outcomes == [Outcome.CANCELLED]
    assert (timer.state, timer.due_at, timer.correlation_id) == (TimerState.CANCELLED, None, None)
    assert await store.list_timers(TimerQuery(ACME)) == []
    assert await store.apply([schedule("order-1", 60, number=8)], at(0)) == [Outcome.SCHEDULED]
    assert (await kept(store)).generation == 2


async def test_1000_racing_schedules_if_absent_give_one_due_time(store: TimerStore) -> None:
    senders = [schedule("order-1", 60 + n, number=n, if_absent=True) for n in range(1, 1001)]
    random.Random(7).shuffle(senders)

    for first in range(0, 1000, 100):
        await asyncio.gather(
            store.apply(senders[first : first + 50], at(0)),
            store.apply(senders[first + 50 : first + 100], at(0)),
        )

    timer = await kept(store)
    assert (timer.due_at, timer.state) == (at(61), TimerState.SCHEDULED), "that of the first in the stream"


async def test_300_racing_requests_if_absent_give_one_due_time(store: TimerStore) -> None:
    async def ask(n: int) -> tuple[Outcome, object]:
        while True:
            [decided] = await store.decide([schedule("order-1", 60 + n, number=1, if_absent=True)], at(0))
            if decided.timer is not None:  # If not, another request has the timer in hand.
                return decided.outcome, decided.timer.due_at
            await asyncio.sleep(0)

    answers: list[tuple[Outcome, object]] = []
    for first in range(0, 300, 10):
        answers += await asyncio.gather(*(ask(n) for n in range(first, first + 10)))

    assert [outcome for outcome, _ in answers].count(Outcome.SCHEDULED) == 1
    assert {due_at for _, due_at in answers} == {(await kept(store)).due_at}


async def test_another_tenants_timer_is_none(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, tenant=GLOBEX))

    assert await store.apply([schedule("order-1", 90, number=2, if_absent=True)], at(0)) == [
        Outcome.SCHEDULED
    ]
    other = await store.get(TenantId("globex"), ServiceCallId("order-1"))
    assert other is not None
    assert other.due_at == at(60)
