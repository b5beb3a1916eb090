"""Under backlog a look begins where the one before has ended, and misses nothing that comes before that."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.steps import counted
from tests.support.timers import ACME, GLOBEX, at, call, schedule
from timer_service.adapters.sqlite.ahead import MAX_SAVED
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.places import MAX_AGE_S, Places
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.domain.callback import Sink
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack
from timer_service.testing import START as BEGINNING

NOW_S = 1_000
ROWS = [(ACME, "order-1", "2026-01-01T00:00:01.000Z"), (ACME, "order-2", "2026-01-01T00:00:02.000Z")]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteTimerStore]:
    async with open_sqlite_store(tmp_path / "timers.db", lambda: BEGINNING) as opened:
        yield opened


async def _keep(store: SqliteTimerStore, *due_s: int, tenant: str = ACME, number: int = 0) -> None:
    commands = [schedule(f"at-{s}", s, tenant=tenant, number=number + s) for s in due_s]
    await store.apply(commands, BEGINNING)


async def _claim(
    stack: AsyncExitStack, store: SqliteTimerStore, limit: int = 2, held_back: HeldBack = NOTHING_HELD_BACK
) -> Claim:
    return await stack.enter_async_context(store.claim_due(at(NOW_S), limit, held_back))


def _calls(claim: Claim) -> list[str]:
    return [timer.service_call_id.removeprefix(call("at-")) for timer in claim.timers]


async def test_a_look_beside_many_claimed_timers_costs_no_more_than_the_first(
    store: SqliteTimerStore,
) -> None:
    await _keep(store, *range(1, 900))
    async with AsyncExitStack() as stack:
        await _claim(stack, store, 10)
        costs = []
        for _ in range(8):
            async with counted(store._reader) as steps:
                claim = await _claim(stack, store, 100)
            costs.append(steps[0])
            assert len(claim.timers) == 100

    assert costs[-1] <= 1.2 * costs[1]


async def test_what_is_saved_before_the_place_is_found_by_the_next_look(store: SqliteTimerStore) -> None:
    await _keep(store, *range(10, 20))
    async with AsyncExitStack() as stack:
        found = [_calls(await _claim(stack, store)) for _ in range(2)]
        await _keep(store, 1, 12)
        await _keep(store, 3, tenant=GLOBEX)
        found += [_calls(await _claim(stack, store)) for _ in range(4)]

    assert found == [["10", "11"], ["12", "13"], ["1", "3"], ["14", "15"], ["16", "17"], ["18", "19"]]


async def test_a_service_that_looks_for_nothing_keeps_no_list_of_what_it_saves(
    store: SqliteTimerStore,
) -> None:
    """As it is while the broker does not answer and REST goes on."""
    async with AsyncExitStack() as stack:
        await _claim(stack, store)
    for batch in range(5):
        await _keep(store, *range(1, 1 + MAX_SAVED // 4), number=batch * MAX_SAVED, tenant=f"tenant-{batch}")

    assert store._looks[Sink.BUS]._ahead is None
    assert (await store.next_due_at(BEGINNING)) == at(1)


async def test_what_is_given_back_is_found_by_the_next_look(store: SqliteTimerStore) -> None:
    await _keep(store, *range(10, 20))
    async with AsyncExitStack() as stack:
        first = await _claim(stack, store)
        async with AsyncExitStack() as short:
            given_back = await _claim(short, store)
            third = await _claim(stack, store)
            assert await given_back.mark_reached([given_back.timers[1].reached(at(NOW_S))]) == 1
        found = [_calls(await _claim(stack, store)) for _ in range(2)]

    assert [*map(_calls, (first, given_back, third)), *found] == [
        *(["10", "11"], ["12", "13"], ["14", "15"]),
        *(["12", "16"], ["17", "18"]),
    ]


async def test_what_was_held_back_is_found_once_it_is_not(store: SqliteTimerStore) -> None:
    await _keep(store, *range(10, 20))
    held = HeldBack(timers=frozenset({(ACME, call("at-11"))}))
    async with AsyncExitStack() as stack:
        found = [_calls(await _claim(stack, store, held_back=held))]
        found += [_calls(await _claim(stack, store)) for _ in range(2)]

    assert found == [["10", "12"], ["11", "13"], ["14", "15"]]


def test_what_changes_while_a_look_is_under_way_makes_its_place_void() -> None:
    places = Places()
    places.begin(at(0))
    places.forget([ACME])

    places.found(ROWS, passed=[], with_more={ACME})

    assert places.of([ACME]) == {}


def test_a_place_before_what_is_claimed_is_none() -> None:
    """What is claimed would come after it, and be found again."""
    unknown, overtaken = Places(), Places()
    unknown.found(ROWS, passed=[(ACME, call("order-3"))], with_more={ACME})
    overtaken.found(ROWS, passed=[], with_more={ACME})
    overtaken.begin(at(0))
    overtaken.forget([ACME])
    overtaken.begin(at(1))
    overtaken.found(ROWS[:1], passed=[(ACME, call("order-2"))], with_more={ACME})

    assert unknown.of([ACME]) == overtaken.of([ACME]) == {}


def test_a_tenant_that_has_no_more_has_no_place_and_what_it_has_in_hand_is_passed() -> None:
    places = Places()
    places.begin(at(0))
    places.found(ROWS[:1], passed=[], with_more={ACME})
    places.found(ROWS[1:], passed=[], with_more=set())
    claimed = [(ACME, call("order-1")), (ACME, call("order-2")), (GLOBEX, call("order-1"))]

    assert places.of([ACME]) == {}
    assert places.to_pass([ACME], claimed) == claimed[:2]

    # A place before what is in hand would let that be found again.
    places.found(ROWS[:1], passed=claimed[:2], with_more={ACME})

    assert places.of([ACME]) == {}


def test_a_place_is_forgotten_after_a_while_and_when_the_clock_is_set_back() -> None:
    places = Places()
    for moment in (at(0), at(MAX_AGE_S + 0.001), at(1)):
        places.begin(moment)
        assert places.of([ACME]) == {}
        places.found(ROWS, passed=[], with_more={ACME})
        assert places.of([ACME]) != {}
