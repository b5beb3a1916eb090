"""The REST API: definite answers, each tenant its own timers, and nothing changed by what is refused."""

import asyncio
from typing import Any

import pytest

from tests.support.rest import KEYS, Site
from tests.support.timers import ACME, GLOBEX, at, call
from timer_client.wire import format_time
from timer_service.adapters.http.v1 import READ_AT_ONCE
from timer_service.domain.messages import DueTimeReached
from timer_service.domain.timer import TimerState

DUE = format_time(at(60))
LATER = format_time(at(90))


@pytest.fixture
async def site() -> Site:
    return await Site().open()


async def reach(site: Site, name: str) -> None:
    """Let a timer fire."""
    timer = site.store.timers[ACME, call(name)]
    assert timer.due_at is not None
    async with site.store.claim_due(timer.due_at, 10) as claim:
        event = DueTimeReached(ACME, call(name), timer.due_at, timer.due_at, timer.generation, None)
        await claim.mark_reached([event])


# Create


async def test_a_timer_is_created_with_an_id_of_ours_and_shown(site: Site) -> None:
    created = await site.ask("POST", "/v1/timers", {"dueAt": DUE, "correlationId": "request 1"})
    shown = await site.ask("GET", created.headers["location"])

    timer = created.json["timer"]
    assert (created.status, created.json["outcome"]) == (201, "scheduled")
    assert (timer["dueAt"], timer["correlationId"], timer["tenantId"]) == (DUE, "request 1", "acme")
    assert timer["serviceCallId"][14] == "7"
    assert (shown.status, shown.json["timer"], shown.headers["etag"]) == (200, timer, created.headers["etag"])
    assert site.woken == [at(60)]


async def test_a_delay_counts_from_our_clock(site: Site) -> None:
    created = await site.ask("POST", "/v1/timers", {"delayMs": 60_000})

    assert created.json["timer"]["dueAt"] == DUE


async def test_a_delay_that_begins_within_a_millisecond_is_not_a_bit_shorter(site: Site) -> None:
    site.clock.advance(-0.0004)

    created = await site.ask("POST", "/v1/timers", {"delayMs": 60_000})

    assert created.json["timer"]["dueAt"] == DUE


async def test_the_trace_of_a_request_is_kept(site: Site) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    created = await site.ask("POST", "/v1/timers", {"dueAt": DUE}, traceparent=trace)

    assert created.json["timer"]["traceparent"] == trace


async def test_an_id_that_is_taken_is_a_conflict_and_changes_nothing(site: Site) -> None:
    await site.ask("POST", "/v1/timers", {"serviceCallId": "order-1", "dueAt": DUE})

    again = await site.ask("POST", "/v1/timers", {"serviceCallId": "order-1", "dueAt": LATER})

    assert (again.status, again.json["type"]) == (409, "urn:timer-service:problem:already-exists")
    assert again.json["timer"]["dueAt"] == DUE


# Idempotency


async def test_a_repeated_key_finds_the_timer_as_it_is_now(site: Site) -> None:
    body = {"dueAt": DUE}
    first = await site.ask("POST", "/v1/timers", body, idempotency_key="order 1")
    await site.ask("PATCH", first.headers["location"], {"dueAt": LATER})

    again = await site.ask("POST", "/v1/timers", body, idempotency_key="order 1")

    assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.json["timer"]["dueAt"] == LATER


async def test_a_key_with_another_request_is_refused_before_anything_else(site: Site) -> None:
    first = await site.ask("POST", "/v1/timers", {"dueAt": DUE}, idempotency_key="order 1")
    await site.ask("DELETE", first.headers["location"])

    other = await site.ask("POST", "/v1/timers", {"dueAt": LATER}, idempotency_key="order 1")

    assert (other.status, other.json["code"]) == (422, 2)


async def test_a_key_is_that_of_one_tenant(site: Site) -> None:
    one = await site.ask("POST", "/v1/timers", {"dueAt": DUE}, idempotency_key="k")
    other = await site.ask("POST", "/v1/timers", {"dueAt": LATER}, idempotency_key="k", tenant=GLOBEX)

    assert (one.status, other.status) == (201, 201)


async def test_a_thousand_racing_requests_with_one_key_make_one_timer(site: Site) -> None:
    replies = await asyncio.gather(
        *(site.ask("POST", "/v1/timers", {"dueAt": DUE}, idempotency_key="k") for _ in range(1_000))
    )

    assert sorted(reply.status for reply in replies) == [200] * 999 + [201]
    assert len(site.store.timers) == 1


async def test_beside_an_id_of_the_caller_a_key_tells_a_repetition_from_others_who_want_the_id(
    site: Site,
) -> None:
    body = {"serviceCallId": "order-1", "dueAt": DUE}

    async def ask(key: str, **more: Any) -> tuple[int, str | None]:
        reply = await site.ask("POST", "/v1/timers", {**body, **more}, idempotency_key=key)
        return reply.status, reply.headers.get("idempotency-replayed")

    assert await ask("k") == (201, None)
    assert await ask("k") == (200, "true")
    assert await ask("k", dueAt=LATER) == (422, None)
    assert await ask("another") == (409, None)
    # The id is what a timer is found by: with another one, the key has not come before.
    assert await ask("k", serviceCallId="order-2") == (201, None)
    assert len(site.store.timers) == 2


async def test_a_key_holds_for_the_whole_life_of_the_timer(site: Site) -> None:
    body = {"dueAt": format_time(at(400 * 86_400))}
    first = await site.ask("POST", "/v1/timers", body, idempotency_key="k")
    site.clock.advance(300 * 86_400)

    again = await site.ask("POST", "/v1/timers", body, idempotency_key="k")

    assert (again.status, again.json["timer"]) == (200, first.json["timer"])


# Change


async def test_put_creates_moves_and_revives(site: Site) -> None:
    replies = [await site.ask("PUT", "/v1/timers/a%2Fb", {"dueAt": each}) for each in (DUE, LATER, LATER)]
    await site.ask("DELETE", "/v1/timers/a%2Fb")
    revived = await site.ask("PUT", "/v1/timers/a%2Fb", {"dueAt": LATER})

    assert [(reply.status, reply.json["outcome"]) for reply in replies] == [
        (201, "scheduled"),
        (200, "rescheduled"),
        (200, "unchanged"),
    ]
    assert (revived.status, revived.json["outcome"], revived.json["timer"]["generation"]) == (
        200,
        "scheduled",
        3,
    )


async def test_patch_changes_what_it_names(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE, "correlationId": "a"})

    one = await site.ask("PATCH", "/v1/timers/order-1", {"correlationId": "b"})
    other = await site.ask("PATCH", "/v1/timers/order-1", {"delayMs": 90_000})
    nothing = await site.ask("PATCH", "/v1/timers/order-1", {})

    assert [reply.status for reply in (one, other, nothing)] == [200] * 3
    assert (one.json["timer"]["dueAt"], one.json["timer"]["correlationId"]) == (DUE, "b")
    assert (nothing.json["timer"]["dueAt"], nothing.json["timer"]["correlationId"]) == (LATER, "b")


async def test_a_cancelled_timer_never_fires_and_cancelling_again_is_no_error(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})

    replies = [await site.ask("DELETE", "/v1/timers/order-1") for _ in range(2)]

    assert [(reply.status, reply.json["outcome"]) for reply in replies] == [(200, "cancelled")] * 2
    assert site.store.timers[ACME, call("order-1")].state is TimerState.CANCELLED


async def test_cancelling_what_there_is_not_leaves_nothing_behind(site: Site) -> None:
    reply = await site.ask("DELETE", "/v1/timers/order-1")

    assert (reply.status, site.store.timers) == (404, {})


async def test_a_reached_timer_is_a_conflict_that_shows_it(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})
    await reach(site, "order-1")

    replies = [
        await site.ask("DELETE", "/v1/timers/order-1"),
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": LATER}),
        await site.ask("PATCH", "/v1/timers/order-1", {"dueAt": LATER}),
    ]

    assert [reply.status for reply in replies] == [409] * 3
    assert {reply.json["timer"]["state"] for reply in replies} == {"Reached"}
    told = "the timer has already ended and cannot be changed"
    assert {reply.json["detail"] for reply in replies} == {told}


async def test_a_cancelled_timer_is_not_patched_and_the_answer_says_what_is_possible(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})
    await site.ask("DELETE", "/v1/timers/order-1")

    patched = await site.ask("PATCH", "/v1/timers/order-1", {"dueAt": LATER})
    put = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": LATER})

    assert (patched.status, patched.json["detail"]) == (409, "the timer is cancelled: PUT schedules it again")
    assert (put.status, put.json["timer"]["state"]) == (200, "Scheduled")


async def test_with_if_absent_a_timer_that_exists_stays_as_it_is_and_is_the_answer(site: Site) -> None:
    wanted = {"serviceCallId": "order-1", "dueAt": LATER, "ifAbsent": True}
    whole = {"dueAt": LATER, "ifAbsent": True}
    seen = [await site.ask("POST", "/v1/timers", {**wanted, "dueAt": DUE})]
    seen += [await site.ask("POST", "/v1/timers", wanted), await site.ask("PUT", "/v1/timers/order-1", whole)]
    await site.ask("PUT", "/v1/timers/order-2", {"dueAt": DUE})
    await site.ask("DELETE", "/v1/timers/order-2")
    seen.append(await site.ask("PUT", "/v1/timers/order-2", whole))
    await reach(site, "order-1")
    seen.append(await site.ask("PUT", "/v1/timers/order-1", whole))
    batch = {"timers": [wanted, {**wanted, "serviceCallId": "order-3"}]}
    first, second = (await site.ask("POST", "/v1/timers:batch", batch)).json["results"]

    assert [(reply.status, reply.json["outcome"]) for reply in seen] == [
        (201, "scheduled"),
        (200, "unchanged"),
        (200, "unchanged"),
        (200, "already_cancelled"),
        (200, "already_reached"),
    ]
    assert {reply.json["timer"]["dueAt"] for reply in seen} == {DUE}
    assert (first["status"], first["outcome"], first["timer"]["dueAt"]) == (200, "already_reached", DUE)
    assert (second["status"], second["outcome"]) == (201, "scheduled")


# Conditions


async def test_with_if_absent_a_condition_counts_all_the_same(site: Site) -> None:
    body = {"dueAt": LATER, "ifAbsent": True}
    first = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})

    met = await site.ask("PUT", "/v1/timers/order-1", body, if_match=first.headers["etag"])
    refused = [
        await site.ask("PUT", "/v1/timers/order-1", body, if_match='"stale"'),
        await site.ask("PUT", "/v1/timers/order-1", body, if_none_match="*"),
    ]

    assert (met.status, met.json["outcome"]) == (200, "unchanged")
    assert [reply.status for reply in refused] == [412, 412]
    assert {reply.json["timer"]["dueAt"] for reply in refused} == {DUE}


async def test_a_stale_etag_changes_nothing(site: Site) -> None:
    first = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})
    stale = first.headers["etag"]
    moved = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": LATER}, if_match=stale)

    refused = [
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE}, if_match=stale),
        await site.ask("PATCH", "/v1/timers/order-1", {"dueAt": DUE}, if_match=f'"x", {stale}'),
        await site.ask("DELETE", "/v1/timers/order-1", if_match=stale),
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE}, if_none_match="*"),
    ]

    assert [reply.status for reply in refused] == [412] * 4
    shown = await site.ask("GET", "/v1/timers/order-1")
    assert (moved.status, shown.headers["etag"]) == (200, moved.headers["etag"])


async def test_a_header_of_several_lines_is_one_list(site: Site) -> None:
    first = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})
    body, lines = {"dueAt": DUE}, ["a", "b"]

    moved = await site.ask(
        "PUT", "/v1/timers/order-1", {"dueAt": LATER}, if_match=[first.headers["etag"], '"x"']
    )
    created = [
        await site.ask("POST", "/v1/timers", body, idempotency_key=lines),
        await site.ask("POST", "/v1/timers", body, idempotency_key="b"),
        await site.ask("POST", "/v1/timers", body, idempotency_key=lines),
    ]
    two_keys = await site.ask("GET", "/v1/timers", x_api_key=["wrong", KEYS[ACME]])

    assert (moved.status, two_keys.status) == (200, 401)
    assert [reply.status for reply in created] == [201, 201, 200]


async def test_of_many_who_saw_the_same_version_one_changes_it(site: Site) -> None:
    first = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})

    replies = await asyncio.gather(
        *(
            site.ask("PUT", "/v1/timers/order-1", {"delayMs": 1_000 * n}, if_match=first.headers["etag"])
            for n in range(100, 150)
        )
    )

    assert sorted(reply.status for reply in replies) == [200] + [412] * 49


async def test_patches_that_meet_each_other_are_all_carried_out(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})

    replies = await asyncio.gather(
        site.ask("PATCH", "/v1/timers/order-1", {"dueAt": LATER}),
        site.ask("PATCH", "/v1/timers/order-1", {"correlationId": "b"}),
    )

    timer = site.store.timers[ACME, call("order-1")]
    assert [reply.status for reply in replies] == [200, 200]
    assert (timer.due_at, timer.correlation_id) == (at(90), "b")


async def test_a_condition_on_a_timer_that_there_is_not_fails(site: Site) -> None:
    replies = [
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE}, if_match="*"),
        await site.ask("DELETE", "/v1/timers/order-1", if_match='"x"'),
    ]
    created = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE}, if_none_match="*")

    assert ([reply.status for reply in replies], created.status) == ([412, 412], 201)


async def test_what_the_caller_has_already_is_not_sent_again(site: Site) -> None:
    created = await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})

    reply = await site.ask("GET", "/v1/timers/order-1", if_none_match=created.headers["etag"])

    assert (reply.status, reply.body) == (304, b"")


# Lists and batches


async def test_a_list_is_read_page_by_page(site: Site) -> None:
    for number in range(5):
        await site.ask("PUT", f"/v1/timers/order-{number}", {"delayMs": number * 1_000, "correlationId": "c"})
    await site.ask("PUT", "/v1/timers/other", {"dueAt": DUE}, tenant=GLOBEX)

    pages, path = [], "/v1/timers?limit=2"
    while path:
        page = (await site.ask("GET", path)).json
        pages.append([timer["serviceCallId"] for timer in page["timers"]])
        path = f"/v1/timers?limit=2&cursor={page['cursor']}" if "cursor" in page else ""

    assert pages == [["order-0", "order-1"], ["order-2", "order-3"], ["order-4"]]


async def test_a_list_is_narrowed_by_what_is_asked(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE, "correlationId": "a b"})
    await site.ask("PUT", "/v1/timers/order-2", {"dueAt": LATER})
    await site.ask("PUT", "/v1/timers/order-3", {"dueAt": LATER})
    await site.ask("DELETE", "/v1/timers/order-3")

    found = {
        query: [
            timer["serviceCallId"] for timer in (await site.ask("GET", f"/v1/timers?{query}")).json["timers"]
        ]
        for query in ("state=Cancelled", "correlationId=a%20b", f"dueFrom={LATER}", f"dueBefore={LATER}")
    }

    assert list(found.values()) == [["order-3"], ["order-1"], ["order-2", "order-3"], ["order-1"]]


async def test_a_batch_has_a_result_for_each(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/taken", {"dueAt": DUE})
    batch: list[Any] = [
        {"serviceCallId": "order-1", "dueAt": DUE},
        {"dueAt": LATER},
        {"serviceCallId": "taken", "dueAt": LATER},
        {"serviceCallId": "order-1", "dueAt": LATER},
        {"dueAt": "tomorrow"},
        7,
    ]

    reply = await site.ask("POST", "/v1/timers:batch", {"timers": batch})

    results = reply.json["results"]
    assert (reply.status, [result["status"] for result in results]) == (200, [201, 201, 409, 400, 400, 400])
    assert results[4]["problem"]["errors"][0]["pointer"] == "/timers/4/dueAt"
    assert len(site.store.timers) == 3


async def test_a_batch_is_answered_while_the_broker_is_away() -> None:
    site = await Site(is_broker_away=True).open()

    async def ask(**timer: Any) -> Any:
        return (await site.ask("POST", "/v1/timers:batch", {"timers": [timer]})).json

    taken, wrong = await ask(dueAt=DUE), await ask(dueAt="tomorrow")

    assert (taken["results"][0]["status"], taken["ordered"]) == (201, False)
    assert (wrong["results"][0]["status"], "ordered" in wrong) == (400, False)


async def test_a_batch_is_read_in_many_rounds_of_the_loop(site: Site) -> None:
    batch = [{"dueAt": DUE}] * 1_000
    rounds = 0
    asking = asyncio.create_task(site.ask("POST", "/v1/timers:batch", {"timers": batch}))
    while not asking.done():
        await asyncio.sleep(0)
        rounds += 1

    assert rounds >= 1_000 // READ_AT_ONCE
    assert (await asking).status == 200


async def test_a_batch_of_a_thousand_is_one_transaction_and_one_more_is_refused(site: Site) -> None:
    timers = [{"dueAt": DUE}] * 1_000

    taken = await site.ask("POST", "/v1/timers:batch", {"timers": timers})
    refused = await site.ask("POST", "/v1/timers:batch", {"timers": [*timers, {"dueAt": DUE}]})

    assert ({result["status"] for result in taken.json["results"]}, refused.status) == ({201}, 400)
    assert len(site.store.timers) == 1_000


async def test_a_repeated_batch_with_a_key_finds_its_timers(site: Site) -> None:
    batch: list[Any] = [{"dueAt": DUE}, {"dueAt": LATER}, {"serviceCallId": "order-1", "dueAt": DUE}, {}]

    async def ask(*timers: Any, key: str = "k") -> list[tuple[int, str | None]]:
        reply = await site.ask("POST", "/v1/timers:batch", {"timers": timers}, idempotency_key=key)
        results = reply.json["results"]
        return [(each["status"], each.get("timer", {}).get("serviceCallId")) for each in results]

    first, again = await ask(*batch), await ask(*batch)
    other = await ask({"dueAt": LATER}, {"dueAt": LATER})

    assert [status for status, _ in first] == [201, 201, 201, 400]
    assert again == [(200, name) for _, name in first[:3]] + [(400, None)]
    assert other == [(422, None), (200, first[1][1])]
    assert [status for status, _ in await ask({"dueAt": DUE}, key="another")] == [201]
    assert [status for status, _ in await ask(batch[2], key="another")] == [409]
    assert len(site.store.timers) == 4
