"""What the REST API refuses: the documented code, a pointer to the field, nothing changed, nothing leaked."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.rest import KEYS, Site
from tests.support.timers import ACME, GLOBEX, at
from timer_client.wire import format_time
from timer_service.adapters.http.auth import WRONG_KEYS_PER_MINUTE
from timer_service.adapters.http.bodies import MAX_OBJECTS
from timer_service.adapters.http.refusals import MAX_HELD_BACK, Refusals
from timer_service.domain.api_keys import Scope
from timer_service.domain.errors import StoreBusy
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.domain.timer import Timer
from timer_service.testing import MemoryTimerStore

DUE = format_time(at(60))
URL = "https://receiver.example/hook"


class FailingStore(MemoryTimerStore):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        raise self._error


@pytest.fixture
async def site() -> Site:
    return await Site().open()


# Who asks


@pytest.mark.parametrize("key", [None, "", "tmr_acme_other", "secret"])
async def test_without_a_valid_key_nothing_is_read(site: Site, key: str | None) -> None:
    headers: Any = {} if key is None else {"x_api_key": key}

    reply = await site.ask("POST", "/v1/timers", tenant=None, **headers)

    assert (reply.status, reply.json["code"]) == (401, 4)
    assert (reply.headers["www-authenticate"], reply.headers["connection"]) == ("Bearer", "close")


async def test_whoever_tries_many_wrong_keys_is_told_to_wait(site: Site) -> None:
    tries = [
        await site.ask("GET", "/v1/timers", tenant=None, x_api_key=f"wrong-{n}")
        for n in range(WRONG_KEYS_PER_MINUTE + 1)
    ]

    without_key = await site.ask("GET", "/v1/timers", tenant=None)
    assert [reply.status for reply in tries] == [401] * WRONG_KEYS_PER_MINUTE + [429]
    assert tries[-1].headers["retry-after"] == "2"
    assert tries[-1].json["detail"].startswith("the key is not valid, and too many wrong ones came from here")
    assert without_key.status == 401


async def test_a_key_may_do_no_more_than_its_scopes_say(site: Site) -> None:
    await site.add_key("tmr_reader_secret", ACME, frozenset({Scope.READ}))

    read = await site.ask("GET", "/v1/timers", x_api_key="tmr_reader_secret")
    write = await site.ask("POST", "/v1/timers", {"dueAt": DUE}, x_api_key="tmr_reader_secret")

    assert (read.status, write.status, site.store.timers) == (200, 403, {})
    assert "write" in write.json["detail"]


async def test_a_foreign_timer_and_one_that_there_is_not_look_the_same(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE}, tenant=GLOBEX)

    for method, body in (("GET", None), ("PATCH", {"dueAt": DUE}), ("DELETE", None)):
        foreign = await site.ask(method, "/v1/timers/order-1", body)
        unknown = await site.ask(method, "/v1/timers/order-2", body)
        assert (foreign.status, foreign.body.replace(b"order-1", b"order-2")) == (404, unknown.body)


async def test_the_tenant_is_that_of_the_key_and_never_of_the_body(site: Site) -> None:
    reply = await site.ask("POST", "/v1/timers", {"dueAt": DUE, "tenantId": "globex"})

    assert (reply.status, reply.json["errors"]) == (
        400,
        [{"pointer": "/tenantId", "detail": "is not a known field"}],
    )


# Bodies


async def test_a_batch_with_very_many_objects_and_arrays_is_not_read(site: Site) -> None:
    def batch(brackets: int) -> dict[str, Any]:
        callback = {"url": "https://shop.example/", "body": [[]] * (brackets // 4)}
        return {"timers": [{"dueAt": DUE, "callback": callback}] * 4}

    refused = await site.ask("POST", "/v1/timers:batch", batch(MAX_OBJECTS))
    taken = await site.ask("POST", "/v1/timers:batch", batch(MAX_OBJECTS - 20))

    assert (refused.status, refused.json["errors"]) == (
        400,
        [{"pointer": "", "detail": "must have at most 50000 objects and arrays: send fewer timers at once"}],
    )
    assert ({each["status"] for each in taken.json["results"]}, len(site.store.timers)) == ({201}, 4)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b"", ""),
        (b"{", ""),
        (b"[]", ""),
        (b'"x"', ""),
        (b"\xff", ""),
        (b'{"dueAt": NaN}', ""),
        (b'{"dueAt":"\\ud800"}', ""),
        (b"[" * 100_000, ""),
        (b'{"x":' * 33 + b"1" + b"}" * 33, ""),
        (b"{}", "/dueAt"),
        (b'{"dueAt":null}', "/dueAt"),
        (b'{"dueAt":"2026-01-01T00:00:00"}', "/dueAt"),
        (b'{"dueAt":5}', "/dueAt"),
        (b'{"delayMs":"5"}', "/delayMs"),
        (b'{"delayMs":1.5}', "/delayMs"),
        (b'{"delayMs":-1}', "/delayMs"),
        (b'{"delayMs":1e300}', "/delayMs"),
        (b'{"delayMs":true}', "/delayMs"),
        (b'{"delayMs":1,"dueAt":"2030-01-01T00:00:00Z"}', "/delayMs"),
        (b'{"delayMs":1,"serviceCallId":"a b"}', "/serviceCallId"),
        (b'{"delayMs":1,"correlationId":"\\u0000"}', "/correlationId"),
        (b'{"delayMs":1,"x/y~z":1}', "/x~1y~0z"),
    ],
)
async def test_a_wrong_body_is_refused_with_a_pointer_to_the_field(
    site: Site, body: bytes, pointer: str
) -> None:
    reply = await site.ask("POST", "/v1/timers", body)

    assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json")
    assert reply.json["errors"][0]["pointer"] == pointer
    assert (reply.json["code"], reply.json["data"], site.store.timers) == (2, None, {})


async def test_of_very_many_wrong_fields_a_few_are_named(site: Site) -> None:
    some = {f"x{n}": 0 for n in range(50)}
    many = {f"x{n}": 0 for n in range(10_000)}

    named = await site.ask("POST", "/v1/timers", {"delayMs": 1, **some})
    refused = [
        await site.ask("POST", "/v1/timers", {"delayMs": 1, **many}),
        await site.ask("POST", "/v1/timers", {"delayMs": 1, "callback": {"url": URL, **many}}),
        await site.ask("POST", "/v1/timers", {"delayMs": 1, "callback": {"url": URL, "headers": many}}),
    ]
    batch = await site.ask("POST", "/v1/timers:batch", {"timers": [{"delayMs": 1, **some}] * 100})

    assert (named.status, len(named.json["errors"])) == (400, 20)
    assert named.json["detail"].endswith("/x19: is not a known field; and 30 more")
    assert [reply.json["errors"] for reply in refused] == [
        [{"pointer": pointer, "detail": "must have at most 100 members"}]
        for pointer in ("", "/callback", "/callback/headers")
    ]
    assert [len(result["problem"]["errors"]) for result in batch.json["results"]] == [20] * 100
    assert site.store.timers == {}


async def test_a_body_that_is_too_large_is_refused_while_it_comes_in(site: Site) -> None:
    stated = await site.ask("POST", "/v1/timers", chunks=[], content_length="1048576")
    read: list[int] = []

    def endless() -> Any:
        for number in range(40):
            read.append(number)
            yield b" " * 65_536

    streamed = await site.ask("POST", "/v1/timers", chunks=endless())

    assert (stated.status, streamed.status) == (413, 413)
    assert stated.headers["connection"] == "close"


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "text/plain"},
        {"content_type": ""},
        {"content_type": "application/json", "content_encoding": "gzip"},
    ],
)
async def test_other_content_types_are_refused(site: Site, headers: Any) -> None:
    reply = await site.ask("POST", "/v1/timers", {"dueAt": DUE}, **headers)

    assert (reply.status, site.store.timers) == (415, {})


# Paths, parameters and headers


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/timer", "/v1/timers/", "/v1/timers/%ff", "/v1/timers/a/b", "/v2/timers", "//v1/timers"],
)
async def test_there_is_nothing_at_other_paths(site: Site, path: str) -> None:
    assert (await site.ask("GET", path)).status == 404


@pytest.mark.parametrize("name", ["%00", "a%20b", "%0d%0a", "x" * 256])
async def test_an_id_that_no_timer_can_have_is_not_found(site: Site, name: str) -> None:
    assert [
        (await site.ask(method, f"/v1/timers/{name}", body)).status
        for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"dueAt": DUE}))
    ] == [404] * 3


@pytest.mark.parametrize("name", ["%00", "a%20b", "%0d%0a", "x" * 256])
async def test_a_timer_is_not_created_under_an_id_that_none_can_have(site: Site, name: str) -> None:
    reply = await site.ask("PUT", f"/v1/timers/{name}", {"dueAt": DUE})

    told = reply.json["errors"][0]
    assert (reply.status, told["parameter"], site.store.timers) == (400, "id", {})
    assert told["detail"].startswith("must be 1 to 255 characters, no whitespace or control characters (got ")


async def test_other_methods_are_named(site: Site) -> None:
    reply = await site.ask("OPTIONS", "/v1/timers", origin="https://evil.example")

    assert (reply.status, reply.headers["allow"]) == (405, "GET, POST")
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("state=Due", "state"),
        ("dueFrom=today", "dueFrom"),
        ("colour=red", "colour"),
        ("cursor=x", "cursor"),
        ("limit=1&state=Reached&limit=2", "limit"),
    ],
)
async def test_a_wrong_query_parameter_is_named(site: Site, query: str, name: str) -> None:
    reply = await site.ask("GET", f"/v1/timers?{query}")

    assert (reply.status, reply.json["errors"][0]["parameter"]) == (400, name)
    assert reply.json["detail"].startswith(f"{name}: ")


async def test_all_wrong_query_parameters_are_named(site: Site) -> None:
    reply = await site.ask("GET", "/v1/timers?state=Due&limit=0&colour=red")

    assert reply.status == 400
    assert [error["parameter"] for error in reply.json["errors"]] == ["state", "limit", "colour"]
    assert reply.json["detail"].endswith("; colour: is not a known parameter")


async def test_a_wrong_cursor_is_named_wherever_it_is_given(site: Site) -> None:
    listed = await site.ask("GET", "/v1/deliveries?cursor=x")
    retried = await site.ask("POST", "/v1/deliveries:retry", {"cursor": "x"})

    told = "must be the cursor of the page before"
    assert listed.json["errors"] == [{"parameter": "cursor", "detail": told}]
    assert retried.json["errors"] == [{"pointer": "/cursor", "detail": told}]


@pytest.mark.parametrize("query", ["cursor=%ff", "x=" + "y" * 9_000])
async def test_a_wrong_query_is_refused(site: Site, query: str) -> None:
    assert (await site.ask("GET", f"/v1/timers?{query}")).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"if_match": "x"},
        {"if_match": ""},
        {"if_match": '"a" "b"'},
        {"if_none_match": '"x"'},
        {"if_match": '"x"', "if_none_match": "*"},
        {"idempotency_key": ""},
        {"idempotency_key": "k" * 256},
        {"idempotency_key": "é"},
    ],
)
async def test_a_wrong_header_is_refused(site: Site, headers: Any) -> None:
    is_key = "idempotency_key" in headers
    method, path = ("POST", "/v1/timers") if is_key else ("PUT", "/v1/timers/order-1")

    reply = await site.ask(method, path, {"dueAt": DUE}, **headers)

    assert (reply.status, site.store.timers) == (400, {})


async def test_what_cannot_be_removed_says_so(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE, "correlationId": "a"})

    replies = [
        await site.ask("PATCH", "/v1/timers/order-1", {name: None}) for name in ("dueAt", "correlationId")
    ]

    assert [reply.json["errors"][0]["pointer"] for reply in replies] == ["/dueAt", "/correlationId"]


# Limits and trouble


async def test_a_tenant_that_asks_too_often_is_told_when_to_come_again() -> None:
    site = await Site(rate=1, burst=2).open()

    replies = [await site.ask("GET", "/v1/timers") for _ in range(3)]
    other = await site.ask("GET", "/v1/timers", tenant=GLOBEX)

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert (replies[0].headers["ratelimit-policy"], replies[0].headers["ratelimit"]) == (
        '"default";q=2;w=2',
        '"default";r=1;t=1',
    )
    assert (replies[2].headers["retry-after"], replies[2].json["code"], other.status) == ("1", 1, 200)
    assert replies[2].headers["ratelimit"] == '"default";r=0;t=1'


async def test_every_answer_to_a_known_tenant_says_what_is_left() -> None:
    site = await Site(rate=1, burst=9).open()
    busy = await Site(rate=1, burst=9, store=FailingStore(StoreBusy("locked"))).open()

    replies = [
        await site.ask("GET", "/v1/timers/nobody"),
        await site.ask("DELETE", "/timers/nobody"),
        await busy.ask("GET", "/v1/timers/order-1"),
    ]

    assert [reply.status for reply in replies] == [404, 404, 503]
    assert all({"ratelimit", "ratelimit-policy"} <= reply.headers.keys() for reply in replies)


async def test_a_long_name_is_not_told_at_length(site: Site) -> None:
    unknown = "x" * 50_000
    pair = {"first": await site.ask("POST", "/v1/timers", {"dueAt": DUE, unknown: 1})}
    pair["second"] = await site.ask("GET", f"/v1/timers?{unknown[:8_000]}=1")

    assert [reply.status for reply in pair.values()] == [400, 400]
    assert max(len(reply.body) for reply in pair.values()) < 2_000


async def test_a_long_query_is_not_read(site: Site) -> None:
    longest = "correlationId=" + "x" * (8_192 - len("correlationId="))

    replies = [await site.ask("GET", f"/v1/timers?{query}") for query in (longest, longest + "x")]

    said = [(reply.status, reply.json["detail"].endswith("at most 8192 bytes")) for reply in replies]
    assert said == [(400, False), (400, True)]


async def test_lists_and_batches_count_by_their_timers() -> None:
    site = await Site(rate=1, burst=7).open()
    timers = [{"serviceCallId": f"order-{n}", "delayMs": 60_000} for n in range(40)]

    batch = await site.ask("POST", "/v1/timers:batch", {"timers": timers})
    listed = await site.ask("GET", "/v1/timers?limit=20")
    too_many = [await site.ask("GET", "/v1/timers?limit=20") for _ in range(2)]
    other = await site.ask("GET", "/v1/timers", tenant=GLOBEX)

    assert [reply.headers["ratelimit"] for reply in (batch, listed)] == [
        '"default";r=4;t=1',
        '"default";r=2;t=1',
    ]
    assert [reply.status for reply in too_many] == [200, 429]
    assert other.status == 200


async def test_what_is_refused_counts_by_the_work_that_it_took() -> None:
    site = await Site(rate=1, burst=100, max_pending=1).open()
    batch = {"timers": [{"dueAt": DUE}] * 40}

    first = await site.ask("GET", "/v1/timers")
    wrong_query = await site.ask("GET", "/v1/timers?limit=1&limit=1")
    too_many = await site.ask("POST", "/v1/timers:batch", batch)
    left = [reply.headers["ratelimit"].split(";")[1] for reply in (first, wrong_query, too_many)]

    assert (wrong_query.status, too_many.status, site.store.timers) == (400, 429, {})
    assert left == ["r=99", "r=98", "r=95"]


async def test_whoever_asks_too_often_waits_for_the_refusal_and_nobody_else_does() -> None:
    site = await Site(rate=1, burst=1, too_many_after_s=3_600).open()
    await site.ask("GET", "/v1/timers")

    async with asyncio.TaskGroup() as flood:
        refused = [
            flood.create_task(site.ask("GET", "/v1/timers"), name=f"{n}") for n in range(MAX_HELD_BACK + 1)
        ]
        await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)
        other = await site.ask("GET", "/v1/timers", tenant=GLOBEX)
        answered = [task.result().status for task in refused if task.done()]
        for task in refused:
            task.cancel()

    assert (answered, other.status) == ([429], 200)


def test_those_of_one_tenant_who_are_refused_together_do_not_come_back_together() -> None:
    refusals = Refusals(after_s=0.1, apart_s=0.02)

    with ExitStack() as held:
        waits = [held.enter_context(refusals.held_back(who, 5.0)) for who in (ACME, ACME, ACME, GLOBEX)]
    with refusals.held_back(ACME, 5.0) as later:
        pass

    assert [round(wait_s, 6) for wait_s in (*waits, later)] == [0.1, 0.12, 0.14, 0.1, 0.1]


async def test_a_body_that_does_not_come_in_time_is_given_up() -> None:
    site = await Site(receive_timeout_s=0.01).open()
    sent: list[dict[str, Any]] = []

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"x-api-key", KEYS[ACME].encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/v1/timers",
        "query_string": b"",
        "headers": headers,
    }
    await site.app(scope, never, send)

    assert sent[0]["status"] == 408


async def test_trouble_of_the_store_is_503_without_its_details() -> None:
    site = await Site(store=FailingStore(StoreBusy("/secret/path is locked"))).open()

    reply = await site.ask("GET", "/v1/timers/order-1")

    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    assert b"secret" not in reply.body


async def test_an_error_that_nobody_expects_is_500_without_its_details() -> None:
    site = await Site(store=FailingStore(ValueError("/secret/path"))).open()

    reply = await site.ask("GET", "/v1/timers/order-1")

    assert (reply.status, reply.json["code"]) == (500, 1)
    assert b"secret" not in reply.body
