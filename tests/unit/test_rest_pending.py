"""A tenant may have so many pending timers, and no more."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.rest import Site, open_site
from tests.support.timers import GLOBEX, at
from timer_client.wire import format_time
from timer_service.adapters.http.pending import FRESH_S

DUE = format_time(at(60))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(max_pending=3) as opened:
        yield opened


async def create(site: Site, name: str, **more: Any) -> int:
    reply = await site.ask("POST", "/v1/timers", {"serviceCallId": name, "dueAt": DUE}, **more)
    return reply.status


async def test_new_timers_beyond_the_limit_are_refused_until_others_are_over(site: Site) -> None:
    first = [await create(site, f"order-{n}") for n in range(4)]
    of_another_tenant = await create(site, "order-1", tenant=GLOBEX)
    await site.ask("DELETE", "/v1/timers/order-1")
    at_once = await create(site, "order-5")
    site.clock.advance(FRESH_S)
    later = await create(site, "order-5")

    assert (first, of_another_tenant) == ([201, 201, 201, 429], 201)
    assert (at_once, later) == (429, 201)


async def test_timers_that_there_are_can_still_be_changed_and_asked_for_again(site: Site) -> None:
    body = {"dueAt": DUE}
    created = [
        (await site.ask("POST", "/v1/timers", body, idempotency_key=f"key-{n}")).status for n in range(3)
    ]
    site.clock.advance(FRESH_S)

    again = await site.ask("POST", "/v1/timers", body, idempotency_key="key-1")
    moved = await site.ask("PUT", f"/v1/timers/{again.json['timer']['serviceCallId']}", body)
    new = await site.ask("PUT", "/v1/timers/order-9", body)

    assert (created, again.status, moved.status, new.status) == ([201] * 3, 200, 200, 429)
    assert (new.headers["retry-after"], "3 pending timers" in new.json["detail"]) == ("5", True)


async def test_a_cancelled_timer_that_is_scheduled_again_counts_as_a_new_one(site: Site) -> None:
    body = {"dueAt": DUE}
    cancelled = await site.ask("POST", "/v1/timers", body, idempotency_key="key-1")
    path = f"/v1/timers/{cancelled.json['timer']['serviceCallId']}"
    await site.ask("DELETE", path)
    for n in range(3):
        site.clock.advance(FRESH_S)
        assert await create(site, f"order-{n}") == 201

    again = await site.ask("PUT", path, body)
    repeated = await site.ask("POST", "/v1/timers", body, idempotency_key="key-1")
    as_it_is = await site.ask("PUT", path, {**body, "ifAbsent": True})
    pending = await site.ask("GET", "/v1/timers?state=Scheduled")

    assert (again.status, repeated.status, as_it_is.status) == (429, 200, 200)
    assert (as_it_is.json["outcome"], len(pending.json["timers"])) == ("already_cancelled", 3)


async def test_a_batch_that_does_not_fit_changes_nothing(site: Site) -> None:
    timers = [{"serviceCallId": f"order-{n}", "dueAt": DUE} for n in range(4)]

    too_many = await site.ask("POST", "/v1/timers:batch", {"timers": timers})
    fitting = await site.ask("POST", "/v1/timers:batch", {"timers": timers[:3]})

    assert (too_many.status, fitting.status, len(site.store.timers)) == (429, 200, 3)


async def test_a_batch_with_a_key_can_be_asked_for_again_at_the_limit(site: Site) -> None:
    batch = {"timers": [{"dueAt": DUE}] * 3}
    more = {"timers": [{"dueAt": DUE}] * 4}
    await site.ask("POST", "/v1/timers:batch", batch, idempotency_key="k")

    again = await site.ask("POST", "/v1/timers:batch", batch, idempotency_key="k")
    longer = await site.ask("POST", "/v1/timers:batch", more, idempotency_key="k")
    new = await site.ask("POST", "/v1/timers:batch", batch, idempotency_key="other")

    assert [each["status"] for each in again.json["results"]] == [200] * 3
    assert (longer.status, new.status, len(site.store.timers)) == (429, 429, 3)


async def test_the_smaller_dialect_has_the_same_limit(site: Site) -> None:
    body = {"execute_at": DUE, "callback_url": "https://shop.example/hook"}

    replies = [await site.ask("POST", "/timers", body) for _ in range(4)]

    assert [reply.status for reply in replies] == [201, 201, 201, 429]
