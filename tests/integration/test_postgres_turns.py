"""Whose turn it is on PostgreSQL when more is due than a look may read."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.postgres import migrated_schema
from tests.support.timers import at, schedule
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.postgres.store import LOOK_AGAIN_S, PostgresTimerStore
from timer_service.domain.callback import Sink
from timer_service.domain.messages import Command, TenantId
from timer_service.ports.timer_store import NOTHING_HELD_BACK, HeldBack
from timer_service.testing import START

MINUTE = 60
TENANTS = [f"tenant-{n:03}" for n in range(200)]


SMALL_LOOKS = PostgresLimits(max_sweep_steps=10, max_newest_rows=3, max_passed_over=3)
"""Let a look see little, so that small tables show what large ones would."""


@asynccontextmanager
async def opened(**limits: Any) -> AsyncIterator[PostgresTimerStore]:
    async with (
        migrated_schema() as url,
        open_postgres_store(url, lambda: START, limits=replace(SMALL_LOOKS, **limits)) as it,
    ):
        yield it


@pytest.fixture
async def store() -> AsyncIterator[PostgresTimerStore]:
    async with opened() as it:
        yield it


def backlog(tenant: str, count: int, first_s: float = -3600, step_s: float = 0.001) -> list[Command]:
    return [
        schedule(f"order-{n:04}", first_s + n * step_s, tenant=tenant, number=n + 1) for n in range(count)
    ]


async def fire(
    store: PostgresTimerStore, limit: int = 5, held_back: HeldBack = NOTHING_HELD_BACK
) -> tuple[list[str], bool]:
    """Claim and mark one batch; return whose timers were in it, and whether there is more."""
    async with store.claim_due(at(0), limit, held_back) as claim:
        await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers])
        return [timer.tenant_id for timer in claim.timers], claim.more


async def fire_all(
    store: PostgresTimerStore, limit: int = 5, held_back: HeldBack = NOTHING_HELD_BACK, most: int = 200
) -> list[list[str]]:
    """Fire until no more is said to be due, within this many looks."""
    batches = []
    for _ in range(most):
        tenants, more = await fire(store, limit, held_back)
        batches.append(tenants)
        if not more:
            return batches
    raise AssertionError(f"still more after {most} looks")


async def test_every_tenant_has_its_turn_before_any_has_many(store: PostgresTimerStore) -> None:
    await store.apply(backlog("large", 300, first_s=-7200), at(0))
    await store.apply([each for tenant in TENANTS[:50] for each in backlog(tenant, 2)], at(0))

    # Ten tenants are found with each look, and five can be claimed.
    first = [tenant for _ in range(15) for tenant in (await fire(store))[0]]

    assert {*TENANTS[:50], "large"} <= set(first)


async def test_no_tenant_waits_for_the_backlog_of_another(store: PostgresTimerStore) -> None:
    await store.apply(backlog("large", 500, first_s=-36_000, step_s=60), at(0))
    await store.apply([schedule("order-1", -1, tenant="small")], at(0))

    tenants, more = await fire(store)

    assert ("small" in tenants, more) == (True, True)


async def test_what_comes_late_into_an_old_backlog_is_found_within_one_sweep(
    store: PostgresTimerStore,
) -> None:
    await store.apply(backlog("large", 600, first_s=-36_000, step_s=MINUTE), at(0))
    await fire(store)
    await store.apply([schedule("late", -18_000, tenant="small", number=1)], at(0))

    # 60 pieces of ten minutes, ten with each look.
    looks_until = 0
    while "small" not in (await fire(store))[0]:
        looks_until += 1
        assert looks_until <= 8


async def test_what_comes_late_after_a_whole_sweep_is_found_by_the_next() -> None:
    async with opened(sweep_rest_s=0.0) as store:
        await store.apply(backlog("held", 500, first_s=-30_000, step_s=MINUTE), at(0))
        held = HeldBack(tenants=frozenset({TenantId("held")}))
        await fire_all(store, held_back=held, most=8)
        await store.apply([schedule("late", -29_000, tenant="other")], at(0))

        batches = await fire_all(store, held_back=held, most=8)

        assert [tenant for batch in batches for tenant in batch] == ["other"]


async def test_of_more_tenants_than_a_claim_holds_those_with_the_oldest_timers_go_first(
    store: PostgresTimerStore,
) -> None:
    lots = [backlog(tenant, 2, first_s=-100 - n) for n, tenant in enumerate(TENANTS[:6])]
    await store.apply([each for lot in lots for each in lot], at(0))

    tenants = [await fire(store, limit=2) for _ in range(3)]

    assert [set(each) for each, _ in tenants] == [
        {TENANTS[5], TENANTS[4]},
        {TENANTS[3], TENANTS[2]},
        {TENANTS[1], TENANTS[0]},
    ]


async def test_what_another_instance_holds_is_looked_for_again_also_behind_a_held_back_backlog() -> None:
    held = HeldBack(tenants=frozenset({TenantId("held")}))
    async with (
        migrated_schema() as url,
        open_postgres_store(url, lambda: START, limits=SMALL_LOOKS) as first,
        open_postgres_store(url, lambda: START, limits=SMALL_LOOKS) as second,
    ):
        await first.apply([*backlog("held", 20), *backlog("other", 2, first_s=-10)], at(0))
        async with first.claim_due(at(0), 5, held) as claim, second.claim_due(at(0), 5, held) as other:
            counts = (len(claim.timers), len(other.timers), other.more)
            next_look = await second.next_due_at(at(0))

    assert counts == (2, 0, False)
    assert next_look == at(LOOK_AGAIN_S)


async def test_a_tenant_that_waits_for_its_turn_loses_it_when_it_is_held_back(
    store: PostgresTimerStore,
) -> None:
    await store.apply([*backlog("held", 20), *backlog("other", 20)], at(0))
    before, _ = await fire(store, limit=4)

    after, _ = await fire(store, limit=4, held_back=HeldBack(tenants=frozenset({TenantId("held")})))

    assert (Counter(before), after) == ({"held": 2, "other": 2}, ["other"] * 4)


async def test_a_backlog_of_many_tenants_is_fired_whole_and_once(store: PostgresTimerStore) -> None:
    lots = [backlog(tenant, 1 + n % 3, first_s=-3600 - n * 30) for n, tenant in enumerate(TENANTS)]
    await store.apply([each for lot in lots for each in lot], at(0))

    batches = await fire_all(store, limit=20)

    assert Counter(tenant for batch in batches for tenant in batch) == {
        tenant: 1 + n % 3 for n, tenant in enumerate(TENANTS)
    }
    assert await fire(store) == ([], False)


async def test_a_backlog_that_is_held_back_hides_nobody(store: PostgresTimerStore) -> None:
    # Held back over 500 minutes, so that one sweep takes several looks.
    await store.apply(backlog("held", 500, first_s=-30_000, step_s=MINUTE), at(0))
    await store.apply(backlog("other", 3, first_s=-15_000), at(0))
    held = HeldBack(tenants=frozenset({TenantId("held")}))

    batches = await fire_all(store, held_back=held, most=8)

    assert [tenant for batch in batches for tenant in batch] == ["other"] * 3


async def test_what_comes_due_beside_a_held_back_backlog_is_found_at_once(
    store: PostgresTimerStore,
) -> None:
    await store.apply(backlog("held", 500, first_s=-30_000, step_s=MINUTE), at(0))
    held = HeldBack(tenants=frozenset({TenantId("held")}))
    await fire_all(store, held_back=held, most=8)

    await store.apply([schedule("order-1", 0, tenant="other")], at(0))

    assert await fire(store, held_back=held) == (["other"], False)


async def test_a_backlog_that_only_waits_is_not_swept_without_a_rest() -> None:
    async with opened(sweep_rest_s=3600.0) as store:
        await store.apply(backlog("held", 500, first_s=-30_000, step_s=MINUTE), at(0))
        held = HeldBack(tenants=frozenset({TenantId("held")}))

        sweeps = [len(await fire_all(store, held_back=held, most=8)) for _ in range(3)]

        assert sweeps[0] > 1
        assert sweeps[1:] == [1, 1]


async def test_a_tenant_that_is_freed_has_its_turn_again(store: PostgresTimerStore) -> None:
    await store.apply(backlog("held", 20), at(0))
    await store.apply(backlog("other", 20), at(0))
    held = HeldBack(tenants=frozenset({TenantId("held")}))
    await fire(store, held_back=held)

    tenants, _ = await fire(store, limit=6)

    assert Counter(tenants) == {"held": 3, "other": 3}


async def test_no_more_tenants_are_remembered_than_a_bound() -> None:
    async with opened(max_waiting_tenants=20) as store:
        await store.apply([each for tenant in TENANTS for each in backlog(tenant, 1)], at(0))

        seen = 0
        tenants: list[str] = []
        more = True
        while more:
            batch, more = await fire(store, limit=2)
            tenants += batch
            seen = max(seen, len(store._turns[Sink.BUS]._waiting))

        assert seen <= 20 + 10 + 3
        assert Counter(tenants) == dict.fromkeys(TENANTS, 1)


async def test_timers_to_come_within_the_same_minutes_delay_but_do_not_hide(
    store: PostgresTimerStore,
) -> None:
    await store.apply([schedule("later", 300, tenant=tenant) for tenant in TENANTS[:100]], at(0))
    await store.apply(backlog("large", 100, first_s=-10), at(0))
    await store.apply([schedule("order-1", -5, tenant="zz")], at(0))

    batches = await fire_all(store, most=40)

    assert Counter(tenant for batch in batches for tenant in batch) == {"large": 100, "zz": 1}
    assert "zz" in [tenant for batch in batches[:12] for tenant in batch]
