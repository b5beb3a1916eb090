"""The REST API on every store: what it promises of conditions, repetitions and deliveries rests on theirs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.rest import Site
from tests.support.timers import ACME, at, call
from timer_client.wire import format_time
from timer_service.domain.callback import Sink
from timer_service.domain.delivery import Answered, after_attempt
from timer_service.ports.delivery_store import Finished
from timer_service.wiring.stores import Store

DUE, LATER = format_time(at(60)), format_time(at(90))
CALLBACK = {"url": "https://shop.example/hooks", "headers": {"Authorization": "Bearer t0ken"}}
ONE = "/v1/timers/order-1"


@pytest.fixture
async def site(store: Store) -> Site:
    return await Site(store=store).open()


async def etag(site: Site) -> str:
    return (await site.ask("GET", ONE)).headers["etag"]


async def fail_for_good(site: Site) -> None:
    """Fire what is due at 60 s, and let its callback be refused."""
    site.clock.advance(60)
    async with site.store.claim_due(at(60), 10, sink=Sink.HTTP) as claim:
        await claim.mark_reached([timer.reached(at(60)) for timer in claim.timers])
        names = [timer.service_call_id for timer in claim.timers]
    await refuse(site, names)


async def refuse(site: Site, names: Sequence[str]) -> None:
    """Let the callbacks that wait among these be refused."""
    keys = [(ACME, call(name)) for name in names]
    for claimed in await site.store.deliveries.claim(keys, at(60)):
        before, gone = claimed.delivery, Answered(410)
        after = after_attempt(before, claimed.callback.retry, gone, at(60), at(60), lambda: 0.0)
        await site.store.deliveries.finish([Finished(before, after)])


async def test_a_change_counts_for_the_version_that_was_seen(site: Site) -> None:
    await site.ask("PUT", ONE, {"dueAt": DUE, "callback": CALLBACK})
    seen = await etag(site)

    patched = await site.ask("PATCH", ONE, {"dueAt": LATER}, if_match=seen)
    stale = [
        await site.ask("PATCH", ONE, {"dueAt": DUE}, if_match=seen),
        await site.ask("PUT", ONE, {"dueAt": DUE}, if_match=seen),
        await site.ask("DELETE", ONE, if_match=seen),
    ]
    callback = await site.ask("PATCH", ONE, {"callback": {"method": "PUT"}})
    put = await site.ask("PUT", ONE, {"dueAt": DUE, "callback": CALLBACK}, if_match=await etag(site))
    cancelled = await site.ask("DELETE", ONE, if_match=await etag(site))

    assert [reply.status for reply in (patched, callback, put, cancelled)] == [200] * 4
    assert [reply.status for reply in stale] == [412] * 3
    assert (patched.json["timer"]["dueAt"], callback.json["timer"]["dueAt"]) == (LATER, LATER)
    assert callback.json["timer"]["callback"]["headers"].keys() == CALLBACK["headers"].keys()  # type: ignore[attr-defined]
    assert cancelled.json["outcome"] == "cancelled"


async def test_what_is_not_there_is_neither_changed_nor_made(site: Site) -> None:
    tag = '"0123456789abcdef"'
    replies = [
        await site.ask("PATCH", ONE, {"dueAt": DUE}),
        await site.ask("PUT", ONE, {"dueAt": DUE}, if_match=tag),
        await site.ask("DELETE", ONE, if_match=tag),
        await site.ask("PUT", "/timers/order-1", {"execute_at": DUE}),
    ]

    assert [reply.status for reply in replies] == [404, 412, 412, 404]
    assert (await site.ask("GET", "/v1/timers")).json["timers"] == []


async def test_a_repeated_key_finds_its_timer_and_a_batch_has_a_result_for_each(site: Site) -> None:
    body = {"dueAt": DUE, "callback": CALLBACK}
    replies = [await site.ask("POST", "/v1/timers", body, idempotency_key="k") for _ in range(2)]
    other = await site.ask("POST", "/v1/timers", {**body, "dueAt": LATER}, idempotency_key="k")
    many = [{"serviceCallId": name, **body} for name in ("order-1", "order-2", "order-1")]
    batch = await site.ask("POST", "/v1/timers:batch", {"timers": many})

    assert [reply.status for reply in (*replies, other)] == [201, 200, 422]
    assert replies[0].json["timer"] == replies[1].json["timer"]
    assert [each["status"] for each in batch.json["results"]] == [201, 201, 400]


async def test_a_thousand_racing_requests_with_one_key_make_one_timer_and_one_delivery(site: Site) -> None:
    body = {"dueAt": DUE, "callback": CALLBACK}
    replies = await asyncio.gather(
        *(site.ask("POST", "/v1/timers", body, idempotency_key="k") for _ in range(1_000))
    )
    await fail_for_good(site)
    again = await site.ask("POST", "/v1/timers", body, idempotency_key="k")

    listed = [await site.ask("GET", path) for path in ("/v1/timers", "/v1/deliveries")]
    assert sorted(reply.status for reply in replies) == [200] * 999 + [201]
    assert (len(listed[0].json["timers"]), len(listed[1].json["deliveries"])) == (1, 1)
    assert (again.status, again.json["timer"]["delivery"]["state"]) == (200, "Failed")


async def test_a_delivery_that_has_failed_is_shown_sent_again_and_abandoned(site: Site) -> None:
    await site.ask("PUT", ONE, {"dueAt": DUE, "callback": CALLBACK})
    await fail_for_good(site)

    async def state() -> Any:
        return (await site.ask("GET", ONE)).json["timer"]["delivery"]["state"]

    shown, seen = [await state()], await etag(site)
    listed = await site.ask("GET", "/v1/deliveries?state=failed")
    for request in ("/v1/timers/order-1/retry", "/v1/timers/order-1/abandon"):
        assert (await site.ask("POST", request)).status == 200
        shown.append(await state())
    retried = await site.ask(
        "POST", "/v1/deliveries:retry", {"state": "abandoned", "origin": "https://shop.example"}
    )
    shown.append(await state())

    assert shown == ["Failed", "Waiting", "Abandoned", "Waiting"]
    assert ([each["serviceCallId"] for each in listed.json["deliveries"]], retried.json["retried"]) == (
        ["order-1"],
        1,
    )
    assert await etag(site) != seen
    assert (await site.ask("DELETE", ONE)).status == 409


async def test_what_fails_again_at_once_is_not_sent_again_and_again(site: Site) -> None:
    names = [f"order-{n}" for n in range(3)]
    for name in names:
        await site.ask("PUT", f"/v1/timers/{name}", {"dueAt": DUE, "callback": CALLBACK})
    await fail_for_good(site)

    first = await site.ask("POST", "/v1/deliveries:retry", {"limit": 2})
    await refuse(site, names)
    second = await site.ask("POST", "/v1/deliveries:retry", {"limit": 2, "cursor": first.json["cursor"]})

    assert (first.json["retried"], first.json["more"], second.json) == (
        2,
        True,
        {"retried": 1, "more": False},
    )


async def test_the_compact_dialect_changes_lists_and_cancels(site: Site) -> None:
    body = {"execute_at": DUE, "callback_url": CALLBACK["url"], "callback_payload": {"order": 1}}
    path = f"/timers/{(await site.ask('POST', '/timers', body)).json['data']['id']}"

    updated = await site.ask("PUT", path, {"execute_at": LATER, "callback_method": "PATCH"})
    shown = (await site.ask("GET", path)).json["data"]
    listed = (await site.ask("GET", "/timers?status=pending")).json["data"]
    cancelled = await site.ask("DELETE", path)

    assert (updated.status, cancelled.status, listed["total"]) == (200, 200, 1)
    assert (shown["execute_at"], shown["callback_method"], shown["callback_payload"]) == (
        *(LATER, "PATCH"),
        {"order": 1},
    )
    assert (await site.ask("GET", "/timers?status=canceled")).json["data"]["total"] == 1
