"""What every insight into a store promises; ports/timer_insight.py says it in words."""

import itertools
from dataclasses import replace

import pytest

from tests.support.timers import ACME, GLOBEX, at, call, cancel, correlation, schedule
from timer_service.domain.callback import Callback
from timer_service.domain.messages import DueTimeReached, TenantId
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.timer_insight import Glance, Insight, Shares, TimerFilter
from timer_service.wiring.stores import Store

NAMES = ("a", "b", "c", "d", "ü")
"""Of timers that each tenant has, two of them at the same moment."""
TENANTS = (TenantId("Zulu"), ACME, GLOBEX)


@pytest.fixture
async def store(store: Store) -> Store:
    """A store of each kind with five timers of each of three tenants, due after 60, 120 … 240 and 240 s."""
    commands = [
        schedule(name, 60 * min(nth + 1, 4), tenant=tenant, correlation=f"of-{name}")
        for tenant in TENANTS
        for nth, name in enumerate(NAMES)
    ]
    await store.apply(commands, at(0))
    return store


ALL = TimerFilter()
OF_ACME = TimerFilter(frozenset({ACME}))
OF_TWO = TimerFilter(frozenset({ACME, GLOBEX}))


async def test_a_list_is_read_page_by_page_in_both_directions(store: Store) -> None:
    for wanted in (ALL, OF_ACME, OF_TWO):
        whole = (await store.insight.page(wanted, 100)).timers
        assert [wanted.place(timer) for timer in whole] == sorted(
            (at(60 * min(nth + 1, 4)), tenant, call(name))
            for tenant in TENANTS
            if wanted.tenants is None or tenant in wanted.tenants
            for nth, name in enumerate(NAMES)
        )

        for size in (1, 4, 7):
            assert await _read(store.insight, wanted, size) == list(whole)
            assert await _read_back(store.insight, wanted, size, whole[-1]) == list(whole)


async def test_a_range_ends_before_its_end(store: Store) -> None:
    for wanted in (ALL, OF_ACME):
        ranged = TimerFilter(wanted.tenants, since=at(120), until=at(240))

        page = await store.insight.page(ranged, 100)

        assert {timer.due_at for timer in page.timers} == {at(120), at(180)}
        assert (page.before, page.after) == (None, None)
        assert await store.insight.count(ranged, 100) == len(page.timers)


async def test_no_count_goes_beyond_its_bound(store: Store) -> None:
    counts = [await store.insight.count(wanted, most) for wanted in (ALL, OF_TWO) for most in (3, 10, 100)]

    assert counts == [3, 10, 15, 3, 10, 10]


async def test_the_load_is_what_is_scheduled_between_neighbouring_moments(store: Store) -> None:
    edges = [at(0), at(60), at(61), at(240), at(241)]

    assert list(await store.insight.load(edges, None)) == [0, 3, 6, 6]
    assert list(await store.insight.load(edges, frozenset({ACME}))) == [0, 1, 2, 2]
    assert list(await store.insight.load(edges, frozenset({ACME, GLOBEX}))) == [0, 2, 4, 4]
    assert list(await store.insight.load(edges, frozenset({TenantId("none")}))) == [0, 0, 0, 0]


async def over_http(store: Store, name: str, due_s: float, tenant: TenantId = ACME) -> None:
    request = replace(schedule(name, due_s, tenant=tenant), callback=Callback("https://shop.example/hooks"))
    await store.decide([request], at(0))


async def test_shares_are_of_both_sinks_and_name_those_who_have_the_most(store: Store) -> None:
    await over_http(store, "http", 61)

    zulu = TENANTS[0]
    whole, part, none = Shares(7, {ACME: 3, zulu: 2, GLOBEX: 2}), Shares(7, {ACME: 3, zulu: 2}), Shares(0, {})
    assert await store.insight.shares([at(60), at(121)], 5) == [whole]
    assert await store.insight.shares([at(60), at(121)], 2) == [part]
    assert await store.insight.shares([at(241), at(999)], 5) == [none]


async def test_whoever_has_the_most_in_both_sinks_together_is_named_though_others_have_more_in_each(
    store: Store,
) -> None:
    on_the_bus = [(TENANTS[0], name) for name in "xyz"] + [(ACME, name) for name in "xy"]
    await store.apply([schedule(name, 300, tenant=tenant) for tenant, name in on_the_bus], at(0))
    for tenant, names in ((GLOBEX, ("p", "q", "r")), (ACME, ("p", "q"))):
        for name in names:
            await over_http(store, name, 300, tenant)

    assert await store.insight.shares([at(300), at(301)], 1) == [Shares(10, {ACME: 4})]


async def test_the_shares_of_many_spans_are_those_of_each_of_them(store: Store) -> None:
    await over_http(store, "http", 61)
    edges = [at(0), at(60), at(61), at(62), at(120), at(241), at(999)]

    for limit in (1, 2, 5):
        each = [await store.insight.shares(span, limit) for span in itertools.pairwise(edges)]

        assert await store.insight.shares(edges, limit) == [*itertools.chain(*each)]
    assert [share.total for share in await store.insight.shares(edges, 1)] == [0, 3, 1, 0, 12, 0]


async def test_a_glance_shows_what_each_tenant_has_to_come(store: Store) -> None:
    await over_http(store, "http", 30)

    found = await store.insight.glance([GLOBEX, ACME, TenantId("none")], at(121), at(240), 3)

    assert list(found) == [
        Glance(GLOBEX, 3, 2, 1, at(60)),
        Glance(ACME, 3, 3, 1, at(30)),
        Glance(TenantId("none"), 0, 0, 0, None),
    ]
    # What is due at this very moment is not late, and what is due at the end comes after it.
    assert list(await store.insight.glance([GLOBEX], at(120), at(180), 3)) == [
        Glance(GLOBEX, 3, 1, 1, at(60))
    ]


async def test_timers_are_read_by_their_keys_as_far_as_there_are_any(store: Store) -> None:
    keys = [(ACME, call("ü")), (GLOBEX, call("a")), (ACME, call("none")), (TenantId("none"), call("a"))]

    found = await store.insight.get(keys)

    assert list(found) == keys[:2]
    assert [timer.key for timer in found.values()] == keys[:2]
    assert await store.insight.get([]) == {}


async def test_an_id_is_found_with_every_tenant_that_may_be_seen(store: Store) -> None:
    found = await store.insight.find(call("b"), None, 10)
    ours = await store.insight.find(call("b"), frozenset({GLOBEX}), 10)

    assert [timer.key for timer in found] == [(tenant, call("b")) for tenant in TENANTS]
    assert [timer.key for timer in ours] == [(GLOBEX, call("b"))]
    assert await store.insight.find(call("none"), None, 10) == []


async def test_ids_are_searched_by_how_they_begin(store: Store) -> None:
    await store.apply([schedule(name, number=9) for name in ("order-1", "order-2", "order%", "ord")], at(0))

    found = await store.insight.search(ACME, "order", 2)

    assert [timer.service_call_id for timer in found] == ["order%", "order-1"]
    assert [timer.service_call_id for timer in await store.insight.search(ACME, "ü", 9)] == ["ü"]
    assert await store.insight.search(GLOBEX, "order", 9) == []


async def test_tenants_are_listed_by_name(store: Store) -> None:
    assert list(await store.insight.tenants(10)) == list(TENANTS)
    assert list(await store.insight.tenants(2)) == list(TENANTS[:2])
    assert list(await store.insight.tenants(10, ACME)) == [GLOBEX]


async def test_what_is_over_is_listed_from_the_latest(store: Store) -> None:
    await store.apply([cancel(name, number=5, tenant=ACME) for name in ("a", "b")], at(1))
    await store.apply([cancel("c", number=6, tenant=GLOBEX)], at(2))
    async with store.claim_due(at(60), 10) as claim:
        events = [
            DueTimeReached(due.tenant_id, due.service_call_id, due.due_at, at(60), due.generation, None)
            for due in claim.timers
        ]
        await claim.mark_reached(events)
    cancelled = TimerFilter(state=TimerState.CANCELLED)
    of_acme = TimerFilter(frozenset({ACME}), TimerState.CANCELLED)

    for wanted, names in ((cancelled, ["c", "b", "a"]), (of_acme, ["b", "a"])):
        there = await _read(store.insight, wanted, 1)
        assert [timer.service_call_id for timer in there] == names
        assert await _read_back(store.insight, wanted, 1, there[-1]) == there
        assert await store.insight.count(wanted, 100) == len(names)
    reached = await store.insight.page(TimerFilter(state=TimerState.REACHED), 10)
    assert [timer.key for timer in reached.timers] == [(GLOBEX, "a"), (TenantId("Zulu"), "a")]


@pytest.mark.parametrize("others", [999, 1_000], ids=["the last of those", "behind them"])
async def test_what_is_over_is_found_behind_more_of_another_state_than_a_page_looks_through(
    store: Store, others: int
) -> None:
    async with store.claim_due(at(60), 1) as claim:
        [due] = claim.timers
        event = DueTimeReached(due.tenant_id, due.service_call_id, due.due_at, at(60), due.generation, None)
        await claim.mark_reached([event])
    await store.apply([cancel(f"order-{n}", number=5 + n) for n in range(others)], at(61))

    found = await _read(store.insight, TimerFilter(state=TimerState.REACHED), 10)

    assert [timer.key for timer in found] == [due.key]


async def test_the_timers_of_one_request_are_found_over_tenants(store: Store) -> None:
    request = correlation("of-c")

    found = await store.insight.page(TimerFilter(correlation_id=request), 10)
    ours = await store.insight.page(TimerFilter(frozenset({ACME}), correlation_id=request), 10)

    assert [timer.key for timer in found.timers] == [(tenant, "c") for tenant in TENANTS]
    assert [timer.key for timer in ours.timers] == [(ACME, "c")]


async def _read(insight: Insight, wanted: TimerFilter, size: int) -> list[Timer]:
    """Read a list to its end."""
    page = await insight.page(wanted, size)
    timers = list(page.timers)
    assert page.before is None
    while page.after is not None:
        page = await insight.page(wanted, size, after=page.after)
        timers += page.timers
        assert page.before is not None
    return timers


async def _read_back(insight: Insight, wanted: TimerFilter, size: int, last: Timer) -> list[Timer]:
    """Read a list from its last timer to its beginning."""
    timers, before = [last], wanted.place(last)
    while True:
        page = await insight.page(wanted, size, before=before)
        timers = [*page.timers, *timers]
        if page.before is None:
            return timers
        before = page.before
