"""What every timer store promises; ports/timer_store.py says it in words."""

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores import KINDS, open_kind
from tests.support.timers import (
    ACME,
    GLOBEX,
    asked,
    at,
    call,
    cancel,
    correlation,
    reached,
    schedule,
    scheduled_timer,
)
from timer_service.domain import timer as rules
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import Command, DueTimeReached, Position, ServiceCallId, TenantId, Trace
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Decided, HeldBack, TimerQuery, TimerStore
from timer_service.testing import MemoryTimerStore

NOW = at(0)


async def keep(store: TimerStore, *commands: Command) -> None:
    await store.apply(commands, NOW)


async def claim(
    store: TimerStore, now_s: float = 0, limit: int = 100, held_back: HeldBack = NOTHING_HELD_BACK
) -> tuple[list[DueTimer], bool]:
    """Look at what a claim would hold, and give it back."""
    async with store.claim_due(at(now_s), limit, held_back) as claimed:
        return list(claimed.timers), claimed.more


async def claimed_names(
    store: TimerStore, now_s: float = 0, limit: int = 100, held_back: HeldBack = NOTHING_HELD_BACK
) -> list[str]:
    timers, _ = await claim(store, now_s, limit, held_back)
    return [timer.service_call_id for timer in timers]


async def mark(store: TimerStore, *events: DueTimeReached) -> int:
    async with store.claim_due(at(0), 100) as claimed:
        return await claimed.mark_reached(events)


async def listed(store: TimerStore, query: TimerQuery) -> list[str]:
    return [timer.service_call_id for timer in await store.list_timers(query)]


def backlog(count: int, *, tenant: str = ACME, first_due_s: float = -1000, number: int = 1) -> list[Command]:
    """Return this many schedules of one tenant, a millisecond apart, all due."""
    return [
        schedule(f"{tenant}-{n:05}", first_due_s + n / 1000, tenant=tenant, number=number + n)
        for n in range(count)
    ]


# Applying commands


async def test_a_schedule_is_kept_whole(store: TimerStore) -> None:
    outcomes = await store.apply(
        [schedule("order-1", 60, number=7, stream=3, correlation="request-1")], at(1)
    )

    assert outcomes == [Outcome.SCHEDULED]
    assert await store.get(ACME, call("order-1")) == scheduled_timer(
        "order-1", 60, registered_s=1, correlation="request-1", number=7, stream=3
    )


async def test_a_cancel_of_an_unknown_timer_is_kept_whole(store: TimerStore) -> None:
    outcomes = await store.apply([cancel("order-1", number=7, stream=3)], at(1))

    assert outcomes == [Outcome.NOT_FOUND]
    assert await store.get(ACME, call("order-1")) == Timer(
        tenant_id=ACME,
        service_call_id=call("order-1"),
        state=TimerState.CANCELLED,
        due_at=None,
        generation=0,
        registered_at=at(1),
        correlation_id=None,
        reached_at=None,
        cancelled_at=at(1),
        position=Position(3, 7),
    )


IN_ORDER: Final[list[Command]] = [
    schedule(due_s=60, number=1, correlation="request-1", trace="trace-1"),
    schedule(due_s=90, number=2, trace="trace-2"),
    cancel(number=3),
    schedule(due_s=120, number=4),
]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in a batch each"])
async def test_any_order_of_commands_ends_with_the_same_timer(
    store: TimerStore, count: int, together: bool
) -> None:
    orders = list(permutations(IN_ORDER[:count]))
    deliveries = [
        [replace(order[step], service_call_id=call(f"order-{n}")) for n, order in enumerate(orders)]
        for step in [*range(count), *range(count)]  # Each comes twice.
    ]
    batches = [[command for delivery in deliveries for command in delivery]] if together else deliveries

    for batch in batches:
        await store.apply(batch, at(0))

    found = [await store.get(ACME, call(f"order-{n}")) for n, _ in enumerate(orders)]
    assert found[0] is not None
    assert found[0].trace == Trace("trace-2", None)
    assert found[0].correlation_position == Position(1, 1)
    assert {timer and replace(timer, service_call_id=call(""), generation=0) for timer in found} == {
        replace(found[0], service_call_id=call(""), generation=0)
    }


async def test_what_an_overtaken_schedule_has_set_is_carried_by_the_event(store: TimerStore) -> None:
    await store.apply([schedule(due_s=-1, number=2)], at(0))
    await store.apply([schedule(due_s=-5, number=1, correlation="request-1", trace="trace-1")], at(0))

    async with store.claim_due(at(0), 10) as claimed:
        [due] = claimed.timers

    assert (due.due_at, due.correlation_id, due.trace) == (at(-1), "request-1", Trace("trace-1", None))


async def test_a_cancel_that_came_first_keeps_the_due_time_of_the_schedule_that_it_overtook(
    store: TimerStore,
) -> None:
    await store.apply([cancel(number=2)], at(0))

    outcomes = await store.apply([schedule(due_s=-1, number=1)], at(0))

    assert outcomes == [Outcome.SUPERSEDED]
    timer = await store.get(ACME, call("order-1"))
    assert timer is not None
    assert (timer.state, timer.due_at) == (TimerState.CANCELLED, at(-1))
    async with store.claim_due(at(0), 10) as claimed:
        assert not claimed.timers


SCHEDULED = schedule(due_s=0, number=1, correlation="request-1")
BEFORE: dict[str, tuple[list[Command], list[DueTimeReached]]] = {
    "nothing": ([], []),
    "Scheduled": ([SCHEDULED], []),
    "Reached": ([SCHEDULED], [reached(due_s=0)]),
    "Cancelled": ([SCHEDULED, cancel(number=2)], []),
    "cancelled before any schedule": ([cancel(number=2)], []),
}
COMMANDS: dict[str, Command] = {
    "schedule": schedule(due_s=90, number=5),
    "schedule for the same time": schedule(due_s=0, number=5),
    "schedule with a correlation": schedule(due_s=90, number=5, correlation="request-2"),
    "schedule of a newer stream": schedule(due_s=90, number=1, stream=2),
    "schedule delivered again": schedule(due_s=90, number=1),
    "cancel": cancel(number=5),
    "cancel of a newer stream": cancel(number=1, stream=2),
    "cancel delivered again": cancel(number=1),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
async def test_a_stored_timer_obeys_the_rules_of_the_domain(
    store: TimerStore, before: tuple[list[Command], list[DueTimeReached]], command: Command
) -> None:
    commands, events = before
    await keep(store, *commands)
    await mark(store, *events)
    timer = await store.get(ACME, call("order-1"))
    expected, expected_outcome = rules.apply(timer, command, at(5))

    outcomes = await store.apply([command], at(5))

    assert outcomes == [expected_outcome]
    assert await store.get(ACME, call("order-1")) == expected


async def test_commands_of_one_batch_apply_in_their_order(store: TimerStore) -> None:
    outcomes = await store.apply(
        [
            schedule("order-1", 60, number=1),
            schedule("order-2", 60, number=2),
            schedule("order-1", 60, number=3),
            schedule("order-1", 90, number=4),
            cancel("order-1", number=5),
            cancel("order-1", number=6),
            schedule("order-1", 10, number=7),
            cancel("order-3", number=8),
            cancel("order-2", number=1),
        ],
        at(1),
    )

    assert outcomes == [
        Outcome.SCHEDULED,
        Outcome.SCHEDULED,
        Outcome.UNCHANGED,
        Outcome.RESCHEDULED,
        Outcome.CANCELLED,
        Outcome.ALREADY_CANCELLED,
        Outcome.SCHEDULED,
        Outcome.NOT_FOUND,
        Outcome.SUPERSEDED,
    ]
    assert await store.get(ACME, call("order-1")) == scheduled_timer(
        "order-1", 10, generation=3, registered_s=1, number=7
    )


async def test_an_empty_batch_does_nothing(store: TimerStore) -> None:
    assert await store.apply([], NOW) == []


async def test_a_batch_of_thousands_is_kept_whole(store: TimerStore) -> None:
    commands = backlog(2_500)

    outcomes = await store.apply(commands, NOW)

    assert Counter(outcomes) == {Outcome.SCHEDULED: 2_500}
    timers, more = await claim(store, limit=2_500)
    assert (len(timers), more) == (2_500, False)


async def test_applying_a_batch_again_changes_nothing(store: TimerStore) -> None:
    batch: list[Command] = [
        schedule("order-1", 60, number=1),
        cancel("order-1", number=2),
        schedule("order-2", 60, number=3),
        schedule("order-2", 90, number=4),
    ]
    await store.apply(batch, at(1))
    before = [await store.get(ACME, call(name)) for name in ("order-1", "order-2")]

    outcomes = await store.apply(batch, at(2))

    assert outcomes == [Outcome.SUPERSEDED] * 4
    assert [await store.get(ACME, call(name)) for name in ("order-1", "order-2")] == before


async def test_an_old_schedule_delivered_again_does_not_undo_a_newer_one(store: TimerStore) -> None:
    await keep(store, schedule(due_s=60, number=1))
    await keep(store, schedule(due_s=90, number=2))

    outcomes = await store.apply([schedule(due_s=60, number=1)], at(5))

    assert outcomes == [Outcome.SUPERSEDED]
    assert await store.get(ACME, call("order-1")) == scheduled_timer(due_s=90, generation=2, number=2)


async def test_a_schedule_overtaken_by_its_cancel_does_not_fire(store: TimerStore) -> None:
    await keep(store, cancel(number=2))

    outcomes = await store.apply([schedule(due_s=0, number=1)], at(5))

    assert outcomes == [Outcome.SUPERSEDED]
    assert await claimed_names(store, now_s=99) == []


async def test_an_unchanged_schedule_still_guards_against_what_it_overtook(store: TimerStore) -> None:
    await keep(store, schedule(due_s=60, number=1))
    await keep(store, schedule(due_s=60, number=3))

    assert await store.apply([cancel(number=2)], at(5)) == [Outcome.SUPERSEDED]


async def test_a_recreated_stream_counts_as_newer_than_every_sequence_of_the_old(store: TimerStore) -> None:
    await keep(store, schedule(due_s=60, number=999_999, stream=1_700_000_000_000_000))

    newer = await store.apply([schedule(due_s=90, number=1, stream=1_700_000_000_000_001)], NOW)
    older = await store.apply([cancel(number=1_000_000, stream=1_700_000_000_000_000)], NOW)

    assert (newer, older) == ([Outcome.RESCHEDULED], [Outcome.SUPERSEDED])
    assert await store.get(ACME, call("order-1")) == scheduled_timer(
        due_s=90, generation=2, number=1, stream=1_700_000_000_000_001
    )


async def test_batches_applied_at_the_same_time_are_all_kept(store: TimerStore) -> None:
    batches = [[schedule(f"order-{n}-{m}", number=n * 10 + m) for m in range(10)] for n in range(10)]

    results = await asyncio.gather(*[store.apply(batch, NOW) for batch in batches])

    assert results == [[Outcome.SCHEDULED] * 10] * 10
    assert len(await store.list_timers(TimerQuery(ACME, limit=1000))) == 100


# What a row can hold


@pytest.mark.parametrize(
    "name",
    ["a", "x" * 255, "😀" * 255, "ä€", "'; DROP TABLE timer_schedules; --", '"', "\\", '["a"]', "{}", "null",
     "true", "1", "1.0", "1e3", "0x1", "%", "_", "*", "ORDER", "order", "\u200b", "\ufeff"],
)  # fmt: skip
async def test_any_id_names_its_own_timer(store: TimerStore, name: str) -> None:
    await keep(store, schedule(name, -1, number=1, correlation=name), schedule("other", -1, number=2))

    again = await store.apply([schedule(name, -1, number=3)], NOW)
    timers, _ = await claim(store, held_back=HeldBack(timers=frozenset({(ACME, call("other"))})))
    held = await claimed_names(store, held_back=HeldBack(timers=frozenset({(ACME, call(name))})))
    found = await listed(store, TimerQuery(ACME, correlation_id=correlation(name)))

    assert again == [Outcome.UNCHANGED]
    assert timers == [DueTimer(ACME, call(name), at(-1), 1, correlation(name))]
    assert held == ["other"]
    assert found == [name]


async def test_ids_that_differ_in_case_are_two_timers(store: TimerStore) -> None:
    await keep(store, schedule("Order", 10, number=1), schedule("order", 20, number=2))

    assert await store.get(ACME, call("Order")) == scheduled_timer("Order", 10, number=1)
    assert await store.get(ACME, call("order")) == scheduled_timer("order", 20, number=2)


async def test_every_due_time_from_year_1_to_9999_is_kept_and_ordered(store: TimerStore) -> None:
    moments = [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 11, 59, 59, 999_000, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    ]
    await keep(
        store,
        *[replace(schedule(f"order-{n}", number=9 - n), due_at=due_at) for n, due_at in enumerate(moments)],
    )

    timers = await store.list_timers(TimerQuery(ACME))
    overdue = await claimed_names(store)

    assert [timer.due_at for timer in timers] == moments
    assert overdue == ["order-0", "order-1", "order-2", "order-3", "order-4"]
    assert await store.next_due_at(NOW) == moments[-1]


# Claiming what is due


async def test_a_claim_holds_what_firing_needs(store: TimerStore) -> None:
    await keep(
        store, schedule("order-1", -2, number=1), schedule("order-1", -1, number=2, correlation="request-1")
    )

    assert await claim(store) == (
        [DueTimer(ACME, call("order-1"), at(-1), 2, correlation("request-1"))],
        False,
    )


async def test_nothing_due_is_an_empty_claim(store: TimerStore) -> None:
    assert await claim(store) == ([], False)


async def test_due_is_inclusive_to_the_millisecond(store: TimerStore) -> None:
    await keep(store, schedule("now", 0, number=1), schedule("next", 0.001, number=2))

    assert await claimed_names(store, now_s=-0.001) == []
    assert await claimed_names(store, now_s=0) == ["now"]
    assert await claimed_names(store, now_s=0.001) == ["now", "next"]


async def test_the_oldest_is_claimed_first_whoever_owns_it(store: TimerStore) -> None:
    await keep(
        store,
        schedule("c", -1, number=1),
        schedule("a", -3, tenant=GLOBEX, number=2),
        schedule("d", 0, tenant=GLOBEX, number=3),
        schedule("b", -2, number=4),
    )

    assert await claimed_names(store) == ["a", "b", "c", "d"]


async def test_a_reached_timer_is_never_due_again(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0))
    await mark(store, reached(due_s=0))

    assert await claimed_names(store, now_s=999) == []


async def test_a_cancelled_timer_is_not_due(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0), cancel())

    assert await claimed_names(store, now_s=999) == []


async def test_a_rescheduled_timer_is_due_at_its_new_time_only(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0, number=1), schedule(due_s=60, number=2))

    assert await claimed_names(store, now_s=59.999) == []
    assert await claimed_names(store, now_s=60) == ["order-1"]


async def test_a_claim_of_exactly_the_limit_has_no_more(store: TimerStore) -> None:
    await keep(store, *backlog(5))

    timers, more = await claim(store, limit=5)

    assert (len(timers), more) == (5, False)


async def test_a_claim_beyond_the_limit_holds_the_oldest_and_says_there_is_more(
    store: TimerStore,
) -> None:
    await keep(store, *backlog(6))

    timers, more = await claim(store, limit=5)

    assert [timer.service_call_id for timer in timers] == [f"acme-{n:05}" for n in range(5)]
    assert more is True


async def test_timers_of_one_due_time_are_all_claimed(store: TimerStore) -> None:
    await keep(store, *[schedule(f"order-{n}", 0, number=n + 1) for n in range(20)])

    timers, more = await claim(store, limit=20)

    assert {timer.service_call_id for timer in timers} == {f"order-{n}" for n in range(20)}
    assert more is False


# Fairness under backlog


async def test_a_tenant_with_a_hundred_times_the_backlog_does_not_hold_up_another(store: TimerStore) -> None:
    await keep(store, *backlog(1_000), schedule("lone", 0, tenant=GLOBEX, number=2_000))

    timers, more = await claim(store, limit=10)

    assert [timer.service_call_id for timer in timers] == [f"acme-{n:05}" for n in range(9)] + ["lone"]
    assert more is True


@pytest.mark.parametrize(
    ("limit", "tenants"), [(10, 2), (10, 3), (10, 10), (5, 4), (7, 5), (9, 8), (100, 51), (1, 1)]
)
async def test_under_backlog_the_oldest_timer_of_every_tenant_is_claimed(
    store: TimerStore, limit: int, tenants: int
) -> None:
    names = [f"tenant-{n:02}" for n in range(tenants)]
    for n, name in enumerate(names):
        # Each tenant's timers are all newer than those of the tenant before.
        await keep(store, *backlog(limit + 1, tenant=name, first_due_s=-1000 + n, number=1))

    timers, more = await claim(store, limit=limit)

    assert {timer.service_call_id for timer in timers} >= {f"{name}-00000" for name in names}
    assert (len(timers), more) == (limit, True)


async def test_what_a_clock_that_was_set_back_passes_again_is_found_while_others_are_held_back(
    store: TimerStore,
) -> None:
    await keep(
        store,
        schedule("held", -100, tenant="initech", number=1),
        schedule("lone", -5, tenant=GLOBEX, number=2),
    )
    held, both = (
        HeldBack(tenants=frozenset(map(TenantId, names))) for names in [("initech",), ("initech", GLOBEX)]
    )
    await claim(store, 0, held_back=both)

    found = {now_s: await claimed_names(store, now_s, held_back=held) for now_s in (-10, -6, -5)}

    assert found == {-10: [], -6: [], -5: ["lone"]}


async def test_under_backlog_a_claim_is_full_also_where_most_tenants_have_little(store: TimerStore) -> None:
    small = [schedule("one", 0, tenant=f"small-{n}", number=1) for n in range(6)]
    await keep(store, *backlog(100), *small)

    timers, _ = await claim(store, limit=20)

    assert Counter(timer.tenant_id for timer in timers) == {
        ACME: 14,
        **{TenantId(f"small-{n}"): 1 for n in range(6)},
    }


async def test_under_backlog_a_claim_is_full_although_one_tenant_after_the_other_runs_out(
    store: TimerStore,
) -> None:
    sizes = {TenantId(f"tenant-{n}"): size for n, size in enumerate([1, 2, 3, 3, 5, 8, 12, 12])}
    for tenant_id, size in sizes.items():
        await keep(store, *backlog(size, tenant=tenant_id))
    await keep(store, *backlog(60))

    timers, more = await claim(store, limit=60)

    assert Counter(timer.tenant_id for timer in timers) == {**sizes, ACME: 14}
    assert more is True


async def test_under_backlog_each_tenants_oldest_come_first(store: TimerStore) -> None:
    await keep(store, *backlog(50), *backlog(50, tenant=GLOBEX, first_due_s=-500))

    timers, _ = await claim(store, limit=10)

    assert Counter(timer.tenant_id for timer in timers) == {ACME: 5, GLOBEX: 5}
    assert [timer.service_call_id for timer in timers] == [
        *[f"acme-{n:05}" for n in range(5)],
        *[f"globex-{n:05}" for n in range(5)],
    ]


@pytest.mark.parametrize(("limit", "tenants"), [(7, 3), (3, 10), (1, 2)])
async def test_claim_after_claim_drains_a_backlog_and_claims_nothing_twice(
    store: TimerStore, limit: int, tenants: int
) -> None:
    for n in range(tenants):
        await keep(store, *backlog(4, tenant=f"tenant-{n:02}", first_due_s=-1000 + n))
    claimed: list[DueTimer] = []

    for _ in range(4 * tenants):
        async with store.claim_due(NOW, limit) as batch:
            claimed.extend(batch.timers)
            await batch.mark_reached([timer.reached(NOW) for timer in batch.timers])
            if not batch.more:
                break

    assert Counter(timer.key for timer in claimed) == {
        (f"tenant-{t:02}", f"tenant-{t:02}-{n:05}"): 1 for t in range(tenants) for n in range(4)
    }
    assert await claim(store) == ([], False)


@pytest.mark.parametrize(("limit", "tenants"), [(2, 1), (3, 4)])
async def test_two_open_claims_hold_different_timers(store: TimerStore, limit: int, tenants: int) -> None:
    for n in range(tenants):
        await keep(store, *backlog(4, tenant=f"tenant-{n:02}", first_due_s=-1000 + n))

    async with store.claim_due(NOW, limit) as one, store.claim_due(NOW, limit) as other:
        keys = [timer.key for timer in (*one.timers, *other.timers)]

    assert len(set(keys)) == len(keys) == 2 * limit


async def test_claims_side_by_side_drain_a_backlog_and_claim_nothing_twice(store: TimerStore) -> None:
    for n in range(3):
        await keep(store, *backlog(60, tenant=f"tenant-{n:02}", first_due_s=-1000 + n))
    claimed: list[DueTimer] = []

    async def drain() -> None:
        more = True
        while more:
            async with store.claim_due(NOW, 7) as batch:
                claimed.extend(batch.timers)
                await batch.mark_reached([timer.reached(NOW) for timer in batch.timers])
                more = batch.more

    await asyncio.gather(drain(), drain(), drain())

    counts = Counter(timer.key for timer in claimed)
    assert (len(counts), set(counts.values())) == (180, {1})


@asynccontextmanager
async def fired(
    store: TimerStore, now_s: float = 0, limit: int = 100, held_back: HeldBack = NOTHING_HELD_BACK
) -> AsyncIterator[tuple[list[DueTimer], bool]]:
    """Claim, and mark what is claimed at the end."""
    async with store.claim_due(at(now_s), limit, held_back) as claimed:
        yield list(claimed.timers), claimed.more
        await claimed.mark_reached([timer.reached(at(now_s)) for timer in claimed.timers])


async def test_within_a_few_looks_each_of_500_tenants_has_its_turn(store: TimerStore) -> None:
    tenants = [TenantId(f"tenant-{n:03}") for n in range(500)]
    await keep(store, *backlog(1_000), *[c for t in tenants for c in backlog(3, tenant=t, first_due_s=-500)])
    served: set[TenantId] = set()

    for _ in range(2 * math.ceil(501 / 100)):
        async with fired(store, limit=100) as (timers, more):
            served |= {timer.tenant_id for timer in timers}
            assert (len(timers), more) == (100, True)

    assert served == {ACME, *tenants}


async def test_a_lone_timer_has_its_turn_where_more_tenants_than_a_claim_holds_have_older_ones(
    store: TimerStore,
) -> None:
    for n in range(30):
        await keep(store, *backlog(40, tenant=f"tenant-{n:02}", first_due_s=-1000 + n))
    await keep(store, schedule("lone", 0, tenant=GLOBEX, number=2_000))
    looks = 0

    while "lone" in await listed(store, TimerQuery(GLOBEX, state=TimerState.SCHEDULED)):
        looks += 1
        async with fired(store, limit=10) as (timers, _):
            assert len(timers) == 10

    assert looks <= 2 * math.ceil(31 / 10)


async def test_a_backlog_of_500_tenants_is_drained_and_nothing_claimed_twice(store: TimerStore) -> None:
    waiting = [schedule("later", 60, tenant=f"idle-{n:03}", number=1) for n in range(500)]
    due = [c for n in range(500) for c in backlog(n % 4, tenant=f"tenant-{n:03}", first_due_s=-500)]
    await keep(store, *waiting, *due)
    claimed: Counter[tuple[str, str]] = Counter()
    more = True

    while more:
        async with fired(store, limit=70) as (timers, more):
            claimed.update(timer.key for timer in timers)

    assert claimed == {command.key: 1 for command in due}
    assert await claim(store, now_s=59) == ([], False)


@pytest.mark.parametrize("due_s", [-9999, -1, 0])
async def test_a_timer_accepted_during_a_backlog_has_its_turn_however_old_it_is(
    store: TimerStore, due_s: float
) -> None:
    await keep(store, *backlog(200), *backlog(200, tenant="other", first_due_s=-500))
    async with fired(store, limit=10) as (_, more):
        assert more is True
    await keep(store, schedule("lone", due_s, tenant=GLOBEX, number=2_000))

    assert "lone" in await claimed_names(store, limit=10)


async def test_a_timer_that_comes_due_during_a_backlog_has_its_turn(store: TimerStore) -> None:
    await keep(store, *backlog(200), schedule("lone", 5, tenant=GLOBEX, number=2_000))
    async with fired(store, limit=10) as (timers, more):
        assert (GLOBEX in {timer.tenant_id for timer in timers}, more) == (False, True)

    assert "lone" in await claimed_names(store, now_s=5, limit=10)


# What is held back


HELD = HeldBack(tenants=frozenset({TenantId("held")}))


async def hold(store: TimerStore) -> None:
    """Keep due timers of a tenant that is held back, and look once while it is."""
    await keep(store, *backlog(50, tenant="held", first_due_s=-2000))
    assert await claim(store, held_back=HELD) == ([], False)


async def test_while_a_tenant_is_held_back_what_others_schedule_is_found(store: TimerStore) -> None:
    await hold(store)
    await keep(store, schedule("past", -5000, number=1), schedule("now", 0, tenant=GLOBEX, number=1))
    await keep(store, schedule("soon", 5, tenant="third", number=1))

    assert await claimed_names(store, held_back=HELD) == ["past", "now"]
    assert await claimed_names(store, now_s=5, held_back=HELD) == ["past", "now", "soon"]


async def test_while_a_tenant_is_held_back_what_is_given_back_is_found_again(store: TimerStore) -> None:
    await hold(store)
    await keep(store, schedule("mine", -1, number=1))

    async with store.claim_due(at(0), 10, HELD) as claimed:
        during = await claimed_names(store, held_back=HELD)
    after = await claimed_names(store, held_back=HELD)

    assert ([timer.service_call_id for timer in claimed.timers], during, after) == (["mine"], [], ["mine"])


async def test_while_a_tenant_is_held_back_a_timer_that_was_held_back_too_is_found_once_it_is_not(
    store: TimerStore,
) -> None:
    await keep(store, schedule("bad", -1, number=1))
    both = HeldBack(tenants=HELD.tenants, timers=frozenset({(ACME, call("bad"))}))
    await keep(store, *backlog(50, tenant="held", first_due_s=-2000))

    assert await claim(store, held_back=both) == ([], False)
    assert await claimed_names(store, held_back=HELD) == ["bad"]


async def test_while_a_tenant_is_held_back_a_timer_that_is_moved_closer_is_found(store: TimerStore) -> None:
    await keep(store, schedule("mine", 60, number=1))
    await hold(store)
    await keep(store, schedule("mine", -1, number=2))

    assert await claimed_names(store, held_back=HELD) == ["mine"]


async def test_a_tenant_that_is_held_back_no_longer_has_its_turn_at_once(store: TimerStore) -> None:
    await keep(store, *backlog(300))
    await keep(store, *backlog(50, tenant="held", first_due_s=0, number=900))
    async with fired(store, now_s=1, limit=10, held_back=HELD) as (timers, more):
        assert ({timer.tenant_id for timer in timers}, more) == ({ACME}, True)

    timers, _ = await claim(store, now_s=1, limit=10)

    assert Counter(timer.tenant_id for timer in timers) == {ACME: 5, TenantId("held"): 5}


async def test_thousands_of_tenants_may_be_held_back(store: TimerStore) -> None:
    names = [TenantId(f"held-{n:04}") for n in range(3_000)]
    await keep(store, *[schedule("one", -10, tenant=name, number=1) for name in names])
    await keep(store, schedule("good", 0, number=1))

    assert await drained(store, HeldBack(tenants=frozenset(names))) == ["good"]


async def drained(store: TimerStore, held_back: HeldBack) -> list[str]:
    """Fire until there is no more; an empty look that says so may be needed to learn that."""
    names: list[str] = []
    more = True
    while more:
        async with fired(store, limit=10, held_back=held_back) as (timers, more):
            names += [timer.service_call_id for timer in timers]
    return names


async def test_a_held_back_timer_is_passed_over(store: TimerStore) -> None:
    await keep(store, schedule("bad", -2, number=1), schedule("good", -1, number=2))

    held = HeldBack(timers=frozenset({(ACME, call("bad"))}))

    assert await claimed_names(store, held_back=held) == ["good"]


async def test_a_held_back_timer_holds_back_no_other_tenants(store: TimerStore) -> None:
    await keep(store, schedule("bad", -2, number=1), schedule("bad", -1, tenant=GLOBEX, number=2))

    timers, _ = await claim(store, held_back=HeldBack(timers=frozenset({(ACME, call("bad"))})))

    assert [timer.tenant_id for timer in timers] == [GLOBEX]


async def test_a_held_back_tenant_is_passed_over(store: TimerStore) -> None:
    await keep(store, *backlog(3), schedule("good", 0, tenant=GLOBEX))

    held = HeldBack(tenants=frozenset({ACME, TenantId("unknown")}))

    assert await claimed_names(store, held_back=held) == ["good"]


async def test_what_is_held_back_does_not_count_as_more(store: TimerStore) -> None:
    await keep(store, *backlog(5), schedule("good", 0, tenant=GLOBEX, number=9))
    held = HeldBack(timers=frozenset((ACME, call(f"acme-{n:05}")) for n in range(5)))

    assert await claim(store, limit=1, held_back=held) == (
        [DueTimer(GLOBEX, call("good"), at(0), 1, None)],
        False,
    )


async def test_under_backlog_too_what_is_held_back_is_passed_over(store: TimerStore) -> None:
    await keep(
        store,
        *backlog(50),
        *backlog(50, tenant="held", first_due_s=-2000),
        schedule("lone", 0, tenant=GLOBEX, number=99),
    )
    held = HeldBack(
        tenants=frozenset({TenantId("held")}),
        timers=frozenset((ACME, call(f"acme-{n:05}")) for n in range(20)),
    )

    timers, more = await claim(store, limit=10, held_back=held)

    assert [timer.service_call_id for timer in timers] == [f"acme-{n:05}" for n in range(20, 29)] + ["lone"]
    assert more is True


async def test_under_backlog_a_tenant_with_only_held_back_timers_takes_no_turn(
    store: TimerStore,
) -> None:
    await keep(store, *backlog(50), *backlog(3, tenant=GLOBEX, first_due_s=-2000))
    held = HeldBack(timers=frozenset((GLOBEX, call(f"globex-{n:05}")) for n in range(3)))

    timers, more = await claim(store, limit=10, held_back=held)

    assert [timer.service_call_id for timer in timers] == [f"acme-{n:05}" for n in range(10)]
    assert more is True


async def test_thousands_may_be_held_back(store: TimerStore) -> None:
    await keep(store, *backlog(5_000), schedule("good", 0, number=9_999))
    held = HeldBack(timers=frozenset((ACME, call(f"acme-{n:05}")) for n in range(5_000)))

    assert await claimed_names(store, held_back=held) == ["good"]


# Marking


async def test_a_marked_timer_is_reached(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0, correlation="request-1"))

    async with store.claim_due(at(1), 10) as claimed:
        marked = await claimed.mark_reached([timer.reached(at(1)) for timer in claimed.timers])

    assert marked == 1
    assert await store.get(ACME, call("order-1")) == replace(
        scheduled_timer(due_s=0, correlation="request-1"), state=TimerState.REACHED, reached_at=at(1)
    )


async def test_only_what_was_confirmed_is_marked(store: TimerStore) -> None:
    await keep(store, schedule("good", 0, number=1), schedule("bad", 0, number=2))

    assert await mark(store, reached("good", 0)) == 1
    assert await claimed_names(store) == ["bad"]


async def test_nothing_confirmed_marks_nothing(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0))

    assert await mark(store) == 0
    assert await claimed_names(store) == ["order-1"]


async def test_a_reschedule_after_the_claim_is_not_marked(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0, number=1))

    async with store.claim_due(at(1), 10) as claimed:
        events = [timer.reached(at(1)) for timer in claimed.timers]
        await store.apply([schedule(due_s=60, number=2)], at(1))
        marked = await claimed.mark_reached(events)

    assert marked == 0
    assert await store.get(ACME, call("order-1")) == scheduled_timer(due_s=60, generation=2, number=2)


async def test_a_cancel_after_the_claim_is_not_marked(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0, number=1))

    async with store.claim_due(at(1), 10) as claimed:
        events = [timer.reached(at(1)) for timer in claimed.timers]
        await store.apply([cancel(number=2)], at(1))
        marked = await claimed.mark_reached(events)

    assert marked == 0
    timer = await store.get(ACME, call("order-1"))
    assert timer is not None
    assert (timer.state, timer.reached_at) == (TimerState.CANCELLED, None)


async def test_a_timer_cancelled_and_scheduled_anew_after_the_claim_is_not_marked(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0, number=1))

    async with store.claim_due(at(1), 10) as claimed:
        events = [timer.reached(at(1)) for timer in claimed.timers]
        await store.apply([cancel(number=2), schedule(due_s=0, number=3)], at(1))
        marked = await claimed.mark_reached(events)

    assert marked == 0
    assert await claim(store) == ([DueTimer(ACME, call("order-1"), at(0), 2, None)], False)


async def test_a_timer_purged_after_the_claim_is_not_marked(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0, number=1))

    async with store.claim_due(at(1), 10) as claimed:
        events = [timer.reached(at(1)) for timer in claimed.timers]
        await store.apply([cancel(number=2)], at(1))
        await store.purge(at(2), 10)
        marked = await claimed.mark_reached(events)

    assert marked == 0
    assert await store.get(ACME, call("order-1")) is None


async def test_marking_again_changes_nothing(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0))
    await mark(store, reached(due_s=0, reached_s=1))
    before = await store.get(ACME, call("order-1"))

    assert await mark(store, reached(due_s=0, reached_s=2)) == 0
    assert await store.get(ACME, call("order-1")) == before


async def test_a_batch_is_marked_where_it_still_stands(store: TimerStore) -> None:
    await keep(store, *[schedule(f"order-{n}", 0, number=n) for n in range(1, 6)])

    async with store.claim_due(at(1), 10) as claimed:
        events = [timer.reached(at(1)) for timer in claimed.timers]
        await store.apply([schedule("order-2", 60, number=7), cancel("order-4", number=8)], at(1))
        marked = await claimed.mark_reached(events)

    states = [await store.get(ACME, call(f"order-{n}")) for n in range(1, 6)]
    assert marked == 3
    assert [timer.state.value for timer in states if timer] == [
        "Reached",
        "Scheduled",
        "Reached",
        "Cancelled",
        "Reached",
    ]


async def test_leaving_a_claim_without_marking_gives_the_timers_back_at_once(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0))

    async with store.claim_due(at(1), 10):
        pass

    assert await claimed_names(store) == ["order-1"]


async def test_an_error_inside_a_claim_gives_the_timers_back_and_is_passed_on(store: TimerStore) -> None:
    await keep(store, schedule(due_s=0))

    with pytest.raises(LookupError, match="boom"):
        async with store.claim_due(at(1), 10):
            raise LookupError("boom")

    assert await claimed_names(store) == ["order-1"]


# The next due time


async def test_the_next_due_time_is_the_earliest_later_one_of_any_tenant(store: TimerStore) -> None:
    await keep(
        store,
        schedule("past", -1, number=1),
        schedule("now", 0, number=2),
        schedule("far", 90, number=3),
        schedule("near", 30, tenant=GLOBEX, number=4),
    )

    assert await store.next_due_at(at(0)) == at(30)
    assert await store.next_due_at(at(29.999)) == at(30)
    assert await store.next_due_at(at(30)) == at(90)
    assert await store.next_due_at(at(90)) is None
    async with store.claim_due(at(0), 10):
        pass
    assert await store.next_due_at(at(30)) == at(90)


async def test_only_scheduled_timers_have_a_next_due_time(store: TimerStore) -> None:
    await keep(
        store,
        schedule("reached", 30, number=1),
        schedule("cancelled", 40, number=2),
        cancel("cancelled", number=3),
    )
    await mark(store, reached("reached", 30))

    assert await store.next_due_at(at(0)) is None


# Looking up


async def test_an_unknown_timer_is_not_found(store: TimerStore) -> None:
    await keep(store, schedule("order-1"))

    assert await store.get(ACME, call("order-2")) is None


async def test_a_tenant_sees_only_its_own(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, number=1, correlation="request-1"))

    assert await store.get(GLOBEX, call("order-1")) is None
    assert await store.list_timers(TimerQuery(GLOBEX)) == []
    assert await store.list_timers(TimerQuery(GLOBEX, correlation_id=correlation("request-1"))) == []


async def test_two_tenants_with_one_id_never_touch_each_other(store: TimerStore) -> None:
    await keep(store, schedule("order-1", -2, number=1), schedule("order-1", -1, tenant=GLOBEX, number=2))

    await keep(store, cancel("order-1", tenant=GLOBEX, number=3))
    await mark(store, reached("order-1", -2, reached_s=1))

    assert await store.get(ACME, call("order-1")) == replace(
        scheduled_timer("order-1", -2), state=TimerState.REACHED, reached_at=at(1)
    )
    assert await store.get(GLOBEX, call("order-1")) == replace(
        scheduled_timer("order-1", -1, tenant=GLOBEX, number=2),
        state=TimerState.CANCELLED,
        cancelled_at=NOW,
        position=Position(1, 3),
    )


async def test_a_purge_of_one_tenants_timer_leaves_the_others(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, number=1), cancel("order-1", tenant=GLOBEX, number=2))

    await store.purge(at(1), 10)

    assert await store.get(GLOBEX, call("order-1")) is None
    assert await store.get(ACME, call("order-1")) == scheduled_timer("order-1", 60)


# Listing


async def many_states(store: TimerStore) -> None:
    """Keep timers of every state, due at 10 to 60 s, and a cancel that came before its schedule."""
    await keep(
        store,
        schedule("f", 60, number=1),
        schedule("e", 50, number=2, correlation="request-2"),
        schedule("d", 40, number=3, correlation="request-1"),
        schedule("c", 30, number=4),
        schedule("b", 20, number=5, correlation="request-1"),
        schedule("a", 10, number=6, correlation="request-1"),
        schedule("a", 10, tenant=GLOBEX, number=7, correlation="request-1"),
        cancel("c", number=8),
        cancel("d", number=9),
        cancel("tombstone", number=10),
    )
    await mark(store, reached("a", 10), reached("f", 60))


async def test_a_list_is_in_the_order_of_due_times(store: TimerStore) -> None:
    await many_states(store)

    assert await listed(store, TimerQuery(ACME)) == ["a", "b", "c", "d", "e", "f"]


async def test_a_list_holds_whole_timers(store: TimerStore) -> None:
    await many_states(store)

    timers = await store.list_timers(TimerQuery(ACME))

    assert timers == [await store.get(ACME, call(name)) for name in "abcdef"]


async def test_a_cancel_that_came_before_any_schedule_is_not_listed(store: TimerStore) -> None:
    await keep(store, cancel("tombstone"))

    assert await store.list_timers(TimerQuery(ACME)) == []
    assert await store.list_timers(TimerQuery(ACME, state=TimerState.CANCELLED)) == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (TimerQuery(ACME, state=TimerState.SCHEDULED), "be"),
        (TimerQuery(ACME, state=TimerState.REACHED), "af"),
        (TimerQuery(ACME, state=TimerState.CANCELLED), "cd"),
        (TimerQuery(ACME, due_from=at(30)), "cdef"),
        (TimerQuery(ACME, due_from=at(30.001)), "def"),
        (TimerQuery(ACME, due_before=at(30)), "ab"),
        (TimerQuery(ACME, due_before=at(30.001)), "abc"),
        (TimerQuery(ACME, due_from=at(20), due_before=at(50)), "bcd"),
        (TimerQuery(ACME, due_from=at(30), due_before=at(30)), ""),
        (TimerQuery(ACME, correlation_id=correlation("request-1")), "abd"),
        (TimerQuery(ACME, correlation_id=correlation("request-2")), "e"),
        (TimerQuery(ACME, correlation_id=correlation("request-9")), ""),
        (TimerQuery(ACME, state=TimerState.SCHEDULED, correlation_id=correlation("request-1")), "b"),
        (TimerQuery(ACME, correlation_id=correlation("request-1"), due_from=at(11), due_before=at(40)), "b"),
        (TimerQuery(ACME, state=TimerState.CANCELLED, due_from=at(31)), "d"),
        (TimerQuery(ACME, limit=2), "ab"),
        (TimerQuery(ACME, limit=2, correlation_id=correlation("request-1")), "ab"),
        (TimerQuery(ACME, after=(at(20), call("b"))), "cdef"),
        (TimerQuery(ACME, after=(at(20), call("a"))), "bcdef"),
        (TimerQuery(ACME, after=(at(20), call("b")), correlation_id=correlation("request-1")), "d"),
        (TimerQuery(ACME, after=(at(60), call("f"))), ""),
        (TimerQuery(TenantId("nobody")), ""),
    ],
    ids=repr,
)
async def test_a_list_holds_what_was_asked_for(store: TimerStore, query: TimerQuery, names: str) -> None:
    await many_states(store)

    assert await listed(store, query) == list(names)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 24, 25])
@pytest.mark.parametrize("by_correlation", [False, True])
async def test_page_after_page_every_timer_comes_once(
    store: TimerStore, limit: int, by_correlation: bool
) -> None:
    names = [f"order-{n:02}" for n in range(24)]
    # Six timers share each due time, and the states are mixed.
    await keep(
        store,
        *[schedule(name, n % 4, number=n + 1, correlation="request-1") for n, name in enumerate(names)],
        *[cancel(name, number=n + 100) for n, name in enumerate(names) if n % 3 == 0],
    )
    await mark(store, *[reached(name, n % 4) for n, name in enumerate(names) if n % 3 == 1])
    query = TimerQuery(ACME, limit=limit, correlation_id=correlation("request-1") if by_correlation else None)
    pages: list[Sequence[Timer]] = []

    while page := await store.list_timers(query):
        pages.append(page)
        assert page[-1].due_at is not None
        query = replace(query, after=(page[-1].due_at, page[-1].service_call_id))

    found = [timer.service_call_id for page in pages for timer in page]
    assert found == sorted(names, key=lambda name: (int(name[-2:]) % 4, name))
    assert all(len(page) == limit for page in pages[:-1])


# Retention


async def ended(store: TimerStore) -> None:
    """Keep timers that ended at 10 to 50 s, and two that wait."""
    names = ["r10", "r30", "r50"]
    await keep(store, *[schedule(name, 0, number=n) for n, name in enumerate([*names, "c20"], start=1)])
    await mark(store, *[reached(name, 0, reached_s=int(name[1:])) for name in names])
    await store.apply([cancel("c20", number=9)], at(20))
    await store.apply([cancel("tombstone40", tenant=GLOBEX, number=10)], at(40))
    await keep(store, schedule("overdue", -9999, number=11), schedule("waiting", 9999, number=12))


async def survivors(store: TimerStore) -> list[str]:
    tombstone = await store.get(GLOBEX, call("tombstone40"))
    names = await listed(store, TimerQuery(ACME, limit=1000))
    return sorted([*names, *([tombstone.service_call_id] if tombstone else [])])


async def test_a_purge_deletes_what_ended_before_the_moment(store: TimerStore) -> None:
    await ended(store)

    assert await store.purge(at(40), 100) == 3
    assert await survivors(store) == ["overdue", "r50", "tombstone40", "waiting"]


async def test_a_purge_is_bounded_and_takes_the_oldest_first(store: TimerStore) -> None:
    await ended(store)

    assert await store.purge(at(9999), 3) == 3
    assert await survivors(store) == ["overdue", "r50", "tombstone40", "waiting"]
    assert await store.purge(at(9999), 3) == 2
    assert await survivors(store) == ["overdue", "waiting"]
    assert await store.purge(at(9999), 3) == 0


async def test_a_purge_never_deletes_a_scheduled_timer(store: TimerStore) -> None:
    await keep(store, schedule("overdue", -9999, number=1), schedule("again", 0, number=2))
    await store.apply([cancel("again", number=3), schedule("again", 0, number=4)], NOW)

    assert await store.purge(at(99_999), 100) == 0
    assert await survivors(store) == ["again", "overdue"]


async def test_a_purge_of_an_empty_store_deletes_nothing(store: TimerStore) -> None:
    assert await store.purge(at(9999), 100) == 0


# Any history: every other store reads as the one in memory does

_TENANTS = [ACME, GLOBEX]
_NAMES = ["a", "b", "c"]
_Step = tuple[str, TenantId, str, int, int]
_steps = st.lists(
    st.tuples(
        st.sampled_from(["schedule", "schedule", "cancel", "redeliver", "fire", "purge"]),
        st.sampled_from(_TENANTS),
        st.sampled_from(_NAMES),
        st.integers(-3, 3),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=25,
)


async def _take(store: TimerStore, steps: list[_Step]) -> list[object]:
    """Do the steps and return everything that can be seen on the way."""
    seen: list[object] = []
    sent: list[Command] = []
    for number, (what, tenant, name, moment, count) in enumerate(steps, start=1):
        now = NOW + timedelta(milliseconds=number)
        if what == "schedule":
            sent.append(
                schedule(name, moment, tenant=tenant, number=number, correlation=name if moment else None)
            )
            seen.append(await store.apply(sent[-count:], now))
        elif what == "cancel":
            sent.append(cancel(name, tenant=tenant, number=number))
            seen.append(await store.apply(sent[-1:], now))
        elif what == "redeliver":
            seen.append(await store.apply(sent[:count], now))
        elif what == "purge":
            seen.append(await store.purge(now, count))
        else:
            async with store.claim_due(at(moment), 100) as claimed:
                seen.append((list(claimed.timers), claimed.more))
                seen.append(await claimed.mark_reached([t.reached(now) for t in claimed.timers][:count]))
        seen.append(await store.next_due_at(at(moment)))
        seen.append(await store.get(tenant, ServiceCallId(name)))
        seen.append(await store.list_timers(TimerQuery(tenant, limit=count)))
        seen.append(await store.list_timers(TimerQuery(tenant, correlation_id=correlation(name))))
    return seen


@pytest.mark.parametrize("name", [name for name in KINDS if name != "memory"])
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(steps=_steps)
def test_any_history_reads_as_it_does_in_memory(name: str, steps: list[_Step]) -> None:
    async def compare() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with open_kind(name, Path(folder)) as opened:
                found = await _take(opened.store, steps)
        assert found == await _take(MemoryTimerStore(), steps)

    asyncio.run(compare())


# Counts


async def test_the_counts_tell_what_is_pending_overdue_and_next(store: TimerStore) -> None:
    await keep(
        store,
        schedule("late", -10),
        schedule("later", -5, number=2),
        schedule("next", 60, number=3),
        schedule("gone", 30, number=4),
        cancel("gone", number=5),
    )

    counts = await store.count(NOW)

    assert (counts.pending, counts.overdue, counts.oldest_overdue_at, counts.next_due_at) == (
        3,
        2,
        at(-10),
        at(60),
    )


async def test_what_is_pending_is_counted_on_from_change_to_change(store: TimerStore) -> None:
    before = (await store.count(NOW)).pending
    await keep(store, schedule("order-1", -1), schedule("order-2", 60, number=2))
    kept = (await store.count(NOW)).pending
    await mark(store, reached("order-1", -1))
    marked = (await store.count(NOW)).pending

    assert (before, kept, marked) == (0, 2, 1)


async def test_only_what_a_mark_changes_is_no_longer_pending(store: TimerStore) -> None:
    await keep(store, *[schedule(f"order-{n}", -1, number=n) for n in range(1, 5)])
    before = (await store.count(NOW)).pending
    async with store.claim_due(NOW, 10) as claimed:
        events = [timer.reached(NOW) for timer in claimed.timers]
        await store.apply([schedule("order-1", 60, number=9), cancel("order-2", number=10)], NOW)
        await claimed.mark_reached(events)
        await claimed.mark_reached(events)

    assert (before, (await store.count(NOW)).pending) == (4, 1)


# Requests, whose senders wait for the answer


async def test_a_group_of_requests_is_answered_one_by_one(store: TimerStore) -> None:
    await keep(store, schedule("moved", number=1), schedule("kept", number=2), schedule("gone", number=3))
    group: list[Command] = [
        schedule("new", 60, number=9),
        schedule("moved", 90, number=9),
        schedule("kept", 60, number=9),
        cancel("gone", number=9),
        cancel("never-seen", number=9),
        schedule("moved", 30, tenant=GLOBEX, number=9),
    ]

    answers = await store.decide(group, NOW)

    assert [answer.outcome for answer in answers] == [
        Outcome.SCHEDULED,
        Outcome.RESCHEDULED,
        Outcome.UNCHANGED,
        Outcome.CANCELLED,
        Outcome.NOT_FOUND,
        Outcome.SCHEDULED,
    ]
    kept = [await store.get(*command.key) for command in group]
    assert [answer.timer for answer in answers] == kept
    assert None not in kept


async def test_a_timer_that_is_being_fired_does_not_spoil_the_group(store: TimerStore) -> None:
    await keep(store, schedule("due", -1, number=1), schedule("other", 60, number=2))

    async with store.claim_due(NOW, 10):
        answers = await store.decide([cancel(name, number=9) for name in ("other", "due", "new")], NOW)

    assert [answer.outcome for answer in answers] == [Outcome.CANCELLED, Outcome.DUE, Outcome.NOT_FOUND]
    assert answers[1].timer is None
    due = await store.get(ACME, call("due"))
    assert due is not None
    assert due.state is TimerState.SCHEDULED


async def test_a_timer_that_is_due_and_not_claimed_yet_is_left_to_the_worker(store: TimerStore) -> None:
    await keep(store, schedule("due", -1, number=1))

    answers = await asked(store, cancel("due", number=9), schedule("new", 60, number=9), now=NOW)

    assert answers == [Outcome.DUE, Outcome.SCHEDULED]
    assert await claimed_names(store) == ["due"]


async def test_a_request_at_an_older_position_changes_nothing_and_says_so(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60, number=5))

    answers = await asked(store, cancel("order-1", number=4), cancel("order-2", number=4), now=NOW)

    assert answers == [Outcome.SUPERSEDED, Outcome.NOT_FOUND]


async def test_an_empty_group_has_no_answers(store: TimerStore) -> None:
    assert await store.decide([], NOW) == []


async def test_a_request_about_a_version_changes_that_one_and_no_other(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 60), schedule("order-2", 60, number=2))
    before = await store.get(ACME, call("order-1"))
    assert before is not None
    moved = replace(schedule("order-1", 90, number=9), expected=frozenset({before.version}))
    cancelled = replace(cancel("order-1", number=9), expected=frozenset({before.version}))

    [first, beside] = await store.decide([moved, cancel("order-2", number=9)], NOW)
    [second] = await store.decide([cancelled], NOW)

    assert [first.outcome, beside.outcome] == [Outcome.RESCHEDULED, Outcome.CANCELLED]
    assert (second.outcome, second.timer) == (Outcome.CHANGED, first.timer)
    assert await store.get(ACME, call("order-1")) == first.timer


async def test_a_request_about_a_version_of_a_timer_that_there_is_not_changes_nothing(
    store: TimerStore,
) -> None:
    request = replace(schedule("order-1", 90), expected=frozenset({"0123456789abcdef"}))

    with pytest.raises(TimerNotFound):
        await store.decide([request, schedule("order-2", 90)], NOW)

    assert await store.list_timers(TimerQuery(ACME)) == []


async def test_a_request_about_a_version_waits_for_a_timer_that_is_being_fired(store: TimerStore) -> None:
    await keep(store, schedule("order-1", 0))
    timer = await store.get(ACME, call("order-1"))
    assert timer is not None
    request = replace(cancel("order-1", number=9), expected=frozenset({timer.version}))

    async with store.claim_due(NOW, 10):
        [decided] = await store.decide([request], NOW)

    assert decided == Decided(Outcome.DUE, None)
