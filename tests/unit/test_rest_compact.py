"""The compact dialect: /timers and /health, {code, message, data}, five statuses."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.rest import Reply, Site
from tests.support.timers import ACME, GLOBEX, at, call
from timer_client.wire import format_time
from timer_service.adapters.http.compact import HEALTH_TIMEOUT_S, MAX_OFFSET
from timer_service.domain.callback import Sink
from timer_service.domain.errors import StoreBusy
from timer_service.domain.messages import DueTimeReached, ServiceCallId, TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import ManualClock, MemoryTimerStore
from timer_service.testing.deliveries import MemoryDeliveries

DUE = format_time(at(60))
LATER = format_time(at(90))
URL = "https://api.example.com/webhook"


@pytest.fixture
async def site() -> Site:
    return await Site(has_broker=False).open()


async def create(site: Site, due: str = DUE, **more: Any) -> Reply:
    return await site.ask("POST", "/timers", {"execute_at": due, "callback_url": URL, **more})


async def fire(site: Site, name: str) -> None:
    timer = site.store.timers[ACME, call(name)]
    assert timer.due_at is not None
    async with site.store.claim_due(timer.due_at, 10, sink=Sink.HTTP) as claim:
        event = DueTimeReached(ACME, call(name), timer.due_at, timer.due_at, timer.generation, None)
        await claim.mark_reached([event])


async def test_a_timer_is_created_and_shown(site: Site) -> None:
    created = await create(
        site,
        callback_headers={"Authorization": "Bearer token123"},
        callback_payload={"event": "timer_triggered"},
        metadata={"client_ref": "order-456"},
    )
    shown = await site.ask("GET", f"/timers/{created.json['data']['id']}")

    assert (created.status, created.json["code"], created.json["message"]) == (
        201,
        0,
        "timer created successfully",
    )
    assert created.json["data"] == {
        "id": created.json["data"]["id"],
        "created_at": format_time(at(0)),
        "execute_at": DUE,
        "callback_url": URL,
        "callback_method": "POST",
        "status": "pending",
        "executed_at": None,
    }
    data = shown.json["data"]
    assert (data["callback_payload"], data["metadata"]) == (
        {"event": "timer_triggered"},
        {"client_ref": "order-456"},
    )
    assert (data["last_error"], data["callback_headers"]["Authorization"][:5]) == (None, "*****")


async def test_one_attempt_is_made_and_no_body_is_sent_unless_asked_for(site: Site) -> None:
    one = await create(site)
    many = await create(site, max_attempts=3, callback_payload={})

    kept = site.store.deliveries.callbacks
    [first, second] = [kept[ACME, call(reply.json["data"]["id"])] for reply in (one, many)]
    assert (first.retry.max_attempts, first.body, second.retry.max_attempts, second.body) == (
        1,
        b"",
        3,
        b"{}",
    )


async def test_null_stands_for_a_field_that_is_not_given(site: Site) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("callback_method", "callback_headers", "callback_payload", "metadata", "max_attempts")
    )
    plain, spelled = await create(site), await create(site, **nothing)
    given: dict[str, Any] = {
        "callback_headers": {"X-A": "1"},
        "callback_payload": {"a": 1},
        "metadata": {"b": 2},
    }
    name = (await create(site, **given)).json["data"]["id"]
    kept = site.store.deliveries.callbacks
    before = kept[ACME, call(name)]

    updated = await site.ask("PUT", f"/timers/{name}", {"execute_at": LATER, "callback_url": None, **nothing})

    [first, second] = [kept[ACME, call(reply.json["data"]["id"])] for reply in (plain, spelled)]
    assert (first, updated.status, kept[ACME, call(name)]) == (second, 200, before)


async def test_an_update_with_headers_replaces_all_of_them(site: Site) -> None:
    name = (await create(site, callback_headers={"X-Old": "1", "X-Both": "1"})).json["data"]["id"]

    await site.ask("PUT", f"/timers/{name}", {"callback_headers": {"X-Both": "2", "X-New": "2"}})
    shown = await site.ask("GET", f"/timers/{name}")

    assert sorted(shown.json["data"]["callback_headers"]) == ["X-Both", "X-New"]


async def test_an_update_changes_what_it_names(site: Site) -> None:
    name = (await create(site, callback_payload={"a": 1})).json["data"]["id"]

    updated = await site.ask("PUT", f"/timers/{name}", {"execute_at": LATER, "callback_method": "PUT"})
    shown = await site.ask("GET", f"/timers/{name}")

    assert (updated.status, updated.json["message"]) == (200, "timer updated successfully")
    data = shown.json["data"]
    assert (data["execute_at"], data["callback_method"], data["callback_payload"]) == (LATER, "PUT", {"a": 1})


async def test_a_timer_says_when_it_was_last_changed(site: Site) -> None:
    name = (await create(site)).json["data"]["id"]

    async def updated_at() -> str:
        return str((await site.ask("GET", f"/timers/{name}")).json["data"]["updated_at"])

    seen = [await updated_at()]
    site.clock.advance(1)
    changed = await site.ask("PUT", f"/timers/{name}", {"callback_method": "PUT"})
    site.clock.advance(1)
    seen.append(await updated_at())
    await fire(site, name)
    seen.append(await updated_at())

    assert seen == [format_time(at(0)), format_time(at(1)), DUE]
    assert changed.json["data"]["updated_at"] == format_time(at(1))


class SlowDeliveries(MemoryDeliveries):
    """Takes a second for every question."""

    def __init__(self, of: MemoryDeliveries, clock: ManualClock) -> None:
        self.__dict__ |= of.__dict__
        self._clock = clock

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        self._clock.advance(1)
        return await super().get(keys)


async def test_an_update_answers_with_the_time_that_is_kept() -> None:
    store, clock = MemoryTimerStore(), ManualClock()
    store.deliveries = SlowDeliveries(store.deliveries, clock)
    site = await Site(clock, store, has_broker=False).open()
    name = (await create(site)).json["data"]["id"]

    changed = await site.ask("PUT", f"/timers/{name}", {"callback_method": "PUT"})
    shown = await site.ask("GET", f"/timers/{name}")

    assert changed.json["data"]["updated_at"] == shown.json["data"]["updated_at"]


async def test_a_canceled_timer_stays_canceled(site: Site) -> None:
    name = (await create(site)).json["data"]["id"]

    replies = [await site.ask("DELETE", f"/timers/{name}") for _ in range(2)]
    update = await site.ask("PUT", f"/timers/{name}", {"execute_at": LATER})

    assert [reply.json["data"] for reply in replies] == [{"id": name, "status": "canceled"}] * 2
    assert (update.status, update.json["code"], update.json["message"]) == (
        400,
        2,
        "cannot update timer with status 'canceled'",
    )


async def test_what_has_fired_can_neither_be_canceled_nor_updated(site: Site) -> None:
    name = (await create(site)).json["data"]["id"]
    await fire(site, name)

    shown = await site.ask("GET", f"/timers/{name}")
    replies = [
        await site.ask("DELETE", f"/timers/{name}"),
        await site.ask("PUT", f"/timers/{name}", {"execute_at": LATER}),
    ]

    assert shown.json["data"]["status"] == "executing"
    assert [reply.json["message"] for reply in replies] == [
        "cannot cancel timer with status 'executing'",
        "cannot update timer with status 'executing'",
    ]


async def test_a_pending_timer_without_a_callback_is_shown_but_not_updated() -> None:
    site = await Site().open()
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})

    shown = await site.ask("GET", "/timers/order-1")
    update = await site.ask("PUT", "/timers/order-1", {"execute_at": LATER})

    assert shown.json["data"]["status"] == "pending"
    assert (update.status, update.json["code"], update.json["message"]) == (
        400,
        2,
        "cannot update timer without a callback: it fires on the bus",
    )


async def test_of_very_many_timers_the_total_is_capped_and_says_so(site: Site) -> None:
    reply = await create(site)
    timer = site.store.timers[ACME, ServiceCallId(reply.json["data"]["id"])]
    for number in range(MAX_OFFSET):
        name = ServiceCallId(f"order-{number:05}")
        site.store.timers[ACME, name] = replace(timer, service_call_id=name)

    data = (await site.ask("GET", "/timers?limit=1")).json["data"]
    beyond = await site.ask("GET", f"/timers?offset={MAX_OFFSET + 1}")

    assert (data["total"], data["total_capped"]) == (MAX_OFFSET, True)
    assert (beyond.status, "cursor" in beyond.json["message"]) == (400, True)


class CountingDeliveries(MemoryDeliveries):
    """Notes how many callbacks are read together."""

    def __init__(self, of: MemoryDeliveries) -> None:
        self.__dict__ |= of.__dict__
        self.reads: list[int] = []

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        self.reads.append(len(keys))
        return await super().get(keys)


async def test_a_long_page_does_not_hold_all_its_bodies_at_once() -> None:
    store = MemoryTimerStore()
    store.deliveries = counting = CountingDeliveries(store.deliveries)
    site = await Site(store=store, has_broker=False).open()
    for number in range(45):
        await create(site, callback_payload={"number": number})
    counting.reads.clear()

    reply = await site.ask("GET", "/timers?limit=200")

    assert (len(reply.json["data"]["timers"]), counting.reads) == (45, [20, 20, 5])


async def test_a_list_has_pages_filters_and_a_total(site: Site) -> None:
    names = []
    for number in range(3):
        names.append((await create(site, format_time(at(100 - number)))).json["data"]["id"])
        site.clock.advance(1)
    await site.ask("DELETE", f"/timers/{names[0]}")
    await create(site)

    newest = (await site.ask("GET", "/timers?limit=1&offset=1")).json["data"]
    pending = (await site.ask("GET", "/timers?status=pending&sort=execute_at&order=asc")).json["data"]
    canceled = (await site.ask("GET", "/timers?status=canceled")).json["data"]
    other = (await site.ask("GET", "/timers", tenant=GLOBEX)).json["data"]

    assert ([timer["id"] for timer in newest["timers"]], newest["total"]) == ([names[2]], 4)
    assert (newest["limit"], newest["offset"]) == (1, 1)
    assert [timer["execute_at"] for timer in pending["timers"]] == [
        DUE,
        format_time(at(98)),
        format_time(at(99)),
    ]
    assert [timer["id"] for timer in canceled["timers"]] == [names[0]]
    assert other == {"timers": [], "total": 0, "limit": 50, "offset": 0}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"callback_url": URL}, "/execute_at"),
        ({"execute_at": DUE}, "/callback_url"),
        ({"execute_at": format_time(at(0)), "callback_url": URL}, "/execute_at"),
        ({"execute_at": "2025-10-26T16:00:00", "callback_url": URL}, "/execute_at"),
        ({"execute_at": DUE, "callback_url": "webhook"}, "/callback_url"),
        ({"execute_at": DUE, "callback_url": URL, "callback_method": "GET"}, "/callback_method"),
        ({"execute_at": DUE, "callback_url": URL, "callback_headers": {"a b": "c"}}, "/callback_headers/a b"),
        ({"execute_at": DUE, "callback_url": URL, "metadata": "x" * 5_000}, "/metadata"),
        ({"execute_at": DUE, "callback_url": URL, "callback_payload": "x" * 70_000}, "/callback_payload"),
        ({"execute_at": DUE, "callback_url": URL, "colour": 1}, "/colour"),
        ({"execute_at": DUE, "callback_url": URL, "url": 1}, "/url"),
    ],
)
async def test_a_wrong_body_is_a_validation_error(site: Site, body: Any, pointer: str) -> None:
    reply = await site.ask("POST", "/timers", body)

    assert (reply.status in (400, 413), reply.json["code"], reply.json["data"]) == (True, 2, None)
    assert (reply.json["errors"][0]["pointer"], site.store.timers) == (pointer, {})
    assert pointer == "/execute_at" or reply.json["message"].startswith(f"{pointer}: ")
    assert pointer.strip("/") in reply.json["message"]


async def test_errors_have_the_codes_of_the_dialect(site: Site) -> None:
    past = await create(site, format_time(at(-1)))
    unknown = await site.ask("GET", "/timers/550e8400-e29b-41d4-a716-446655440000")
    stranger = await site.ask("GET", "/timers", tenant=None, x_api_key="wrong-key")
    far = await site.ask("GET", "/timers?offset=10001")

    assert (past.status, past.json["message"]) == (400, "execute_at must be in the future")
    assert (unknown.status, unknown.json) == (404, {"code": 3, "message": "timer not found", "data": None})
    assert (stranger.status, stranger.json) == (401, {"code": 4, "message": "unauthorized", "data": None})
    assert (far.status, "cursor" in far.json["message"]) == (400, True)


async def test_a_due_time_may_have_to_be_some_seconds_ahead() -> None:
    site = await Site(has_broker=False, min_lead=timedelta(seconds=5)).open()

    too_near = await create(site, format_time(at(5)))
    created = await create(site, format_time(at(5.001)))
    path = f"/timers/{created.json['data']['id']}"
    moved = await site.ask("PUT", path, {"execute_at": format_time(at(4))})
    other = await site.ask("PUT", path, {"callback_method": "PUT"})

    detail = "execute_at must be more than 5 s in the future"
    assert [(reply.status, reply.json["message"]) for reply in (too_near, moved)] == [(400, detail)] * 2
    assert too_near.json["errors"][0]["pointer"] == "/execute_at"
    assert (created.status, other.status) == (201, 200)


async def test_health_needs_no_key(site: Site) -> None:
    reply = await site.ask("GET", "/health", tenant=None)

    assert (reply.status, reply.json) == (
        200,
        {
            "code": 0,
            "message": "healthy",
            "data": {"status": "up", "database": "connected", "timestamp": format_time(at(0))},
        },
    )


class BadStore(MemoryTimerStore):
    """Fails, or does not answer at all."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self._answers = answers

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        if not self._answers:
            await asyncio.Event().wait()
        raise StoreBusy("/secret/path is locked")


@pytest.mark.parametrize("answers", [True, False])
async def test_health_says_soon_that_the_store_does_not_answer(*, answers: bool) -> None:
    site = await Site(store=BadStore(answers=answers), health_timeout_s=0 if not answers else 5.0).open()

    reply = await site.ask("GET", "/health", tenant=None)

    data = {"status": "degraded", "database": "disconnected", "timestamp": format_time(at(0))}
    assert (reply.status, reply.json) == (
        500,
        {"code": 1, "message": "database connection failed", "data": data},
    )
    assert HEALTH_TIMEOUT_S < 5  # What the callers of this dialect wait.


async def test_a_repeated_key_makes_one_timer(site: Site) -> None:
    body = {"execute_at": DUE, "callback_url": URL}
    replies = [await site.ask("POST", "/timers", body, idempotency_key="k") for _ in range(2)]
    other = await site.ask("POST", "/timers", {**body, "metadata": 1}, idempotency_key="k")

    assert replies[0].json["data"] == replies[1].json["data"]
    assert (len(site.store.timers), other.status) == (1, 422)


async def test_a_repeated_key_finds_its_timer_after_the_due_time_too(site: Site) -> None:
    body = {"execute_at": DUE, "callback_url": URL}
    created = await site.ask("POST", "/timers", body, idempotency_key="k")
    name = created.json["data"]["id"]
    await fire(site, name)
    site.clock.advance(61)

    again = await site.ask("POST", "/timers", body, idempotency_key="k")
    others = [
        await site.ask("POST", "/timers", {**body, "metadata": 1}, idempotency_key="k"),
        await site.ask("POST", "/timers", body, idempotency_key="new"),
        await site.ask("POST", "/timers", body),
    ]

    assert (again.status, again.json["data"]["id"], again.json["data"]["status"]) == (201, name, "executing")
    assert [reply.status for reply in others] == [422, 400, 400]
    assert len(site.store.timers) == 1
