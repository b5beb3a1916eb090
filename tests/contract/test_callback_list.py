"""What every list of timers with callbacks promises; ports/callback_list.py says it in words."""

import itertools
from dataclasses import replace

import pytest

from tests.support.timers import ACME, GLOBEX, at, call, cancel, schedule
from timer_service.domain.callback import Callback, Sink
from timer_service.domain.callback_status import CallbackStatus
from timer_service.domain.delivery import Answered, CallResult, after_attempt
from timer_service.ports.callback_list import CallbackQuery, ListOrder
from timer_service.ports.delivery_store import Finished
from timer_service.wiring.stores import Store

CALLBACK = Callback("https://shop.example/hooks")
FINAL = Answered(410)

STATUSES = {
    "pending-1": "pending",
    "pending-2": "pending",
    "canceled": "canceled",
    "expired": "failed",
    "failed": "failed",
    "abandoned": "failed",
    "completed": "completed",
    "executing": "executing",
}
"""In the order in which they are created; those that fire are due in the reverse order."""

BY_DUE = ["executing", "completed", "abandoned", "failed", "expired", "pending-1", "pending-2", "canceled"]


async def give(store: Store, name: str, due_s: float, now_s: float, tenant: str = ACME) -> None:
    request = replace(schedule(name, due_s, tenant=tenant), callback=CALLBACK)
    await store.decide([request], at(now_s))


async def end(store: Store, name: str, result: CallResult) -> None:
    [claimed] = await store.deliveries.claim([(ACME, call(name))], at(0))
    before = claimed.delivery
    after = after_attempt(before, claimed.callback.retry, result, at(0), at(0), lambda: 0.0)
    await store.deliveries.finish([Finished(before, after)])


async def fill(store: Store) -> None:
    """Make one timer or two in each status, and some that are not the tenant's or fire on the bus."""
    for number, name in enumerate(STATUSES):
        is_over = STATUSES[name] in ("failed", "completed", "executing")
        await give(store, name, -number if is_over else 100 + number, -100 + number)
    await give(store, "foreign", 100, -50, tenant=GLOBEX)
    await store.apply([schedule("bus", 200, number=9)], at(-50))
    await store.decide([cancel("canceled", number=9)], at(-40))
    async with store.claim_due(at(0), 100, sink=Sink.HTTP) as claim:
        await claim.mark_reached(
            [
                timer.expired(at(0)) if timer.service_call_id == "expired" else timer.reached(at(0))
                for timer in claim.timers
            ]
        )
    await end(store, "failed", FINAL)
    await end(store, "completed", Answered(200))
    await store.deliveries.abandon((ACME, call("abandoned")), at(1))


async def names(store: Store, query: CallbackQuery) -> list[str]:
    return [timer.service_call_id for timer in (await store.callback_list.page(query)).timers]


async def test_an_empty_list_has_no_pages(store: Store) -> None:
    page = await store.callback_list.page(CallbackQuery(ACME))

    assert (page.timers, page.total) == ([], 0)


async def test_a_list_is_sorted_by_creation_or_due_time_either_way(store: Store) -> None:
    await fill(store)
    for order, expected in ((ListOrder.CREATED, list(STATUSES)), (ListOrder.DUE, BY_DUE)):
        assert await names(store, CallbackQuery(ACME, order=order, newest_first=False)) == expected
        assert await names(store, CallbackQuery(ACME, order=order)) == expected[::-1]


@pytest.mark.parametrize("bound", [10, 0], ids=["a short list", "a long one"])
async def test_a_list_has_the_timers_of_one_status_in_their_order(store: Store, bound: int) -> None:
    await fill(store)
    orders = {ListOrder.CREATED: list(STATUSES), ListOrder.DUE: BY_DUE}

    for status, order, newest_first in itertools.product(CallbackStatus, ListOrder, (False, True)):
        query = CallbackQuery(ACME, status, order, newest_first, count_up_to=bound)
        page = await store.callback_list.page(query)

        expected = [name for name in orders[order] if STATUSES[name] == status]
        shown = [timer.service_call_id for timer in page.timers]
        assert (shown[::-1] if newest_first else shown) == expected, query
        assert page.total == min(len(expected), bound + 1)


async def test_a_page_begins_where_it_is_asked_to_and_is_whole(store: Store) -> None:
    await fill(store)

    page = await store.callback_list.page(CallbackQuery(ACME, newest_first=False, offset=2, limit=3))
    beyond = await store.callback_list.page(CallbackQuery(ACME, offset=100))

    assert [timer.service_call_id for timer in page.timers] == ["canceled", "expired", "failed"]
    assert list(page.timers) == [await store.get(*timer.key) for timer in page.timers]
    assert (page.total, beyond.timers, beyond.total) == (8, [], 8)


async def test_those_of_one_moment_are_sorted_by_id(store: Store) -> None:
    for name in ("b", "c", "a"):
        await give(store, name, 100, 0)

    assert await names(store, CallbackQuery(ACME, newest_first=False, limit=2)) == ["a", "b"]
    assert await names(store, CallbackQuery(ACME, order=ListOrder.DUE, offset=1)) == ["b", "a"]


async def test_a_long_list_is_counted_up_to_a_bound_and_one_more(store: Store) -> None:
    await fill(store)

    for bound, total in ((8, 8), (7, 8), (3, 4)):
        assert (await store.callback_list.page(CallbackQuery(ACME, count_up_to=bound))).total == total
