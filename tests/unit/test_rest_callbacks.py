"""Callbacks over REST: what is accepted, what is refused, what is shown, and sending again."""

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.rest import Site, open_site
from tests.support.timers import ACME, at, call, schedule
from timer_client.wire import format_time
from timer_service.domain.callback import Callback, Sink
from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.messages import DueTimeReached
from timer_service.ports.delivery_store import DeliveryQuery
from timer_service.testing import START, MemoryTimerStore
from timer_service.testing.deliveries import MemoryDeliveries

DUE = format_time(at(60))
URL = "https://receiver.example/hook?order=1"


class Restless(MemoryDeliveries):
    """Deliveries of which one ends as soon as a page was read."""

    async def list_deliveries(self, query: DeliveryQuery) -> list[Delivery]:
        page = await super().list_deliveries(query)
        await self.abandon((ACME, call("order-1")), START)
        return page


@pytest.fixture
async def site() -> Site:
    return await Site(has_broker=False).open()


async def put(site: Site, name: str = "order-1", due: str = DUE, **callback: Any) -> Any:
    body = {"dueAt": due, "callback": {"url": URL, **callback}}
    return await site.ask("PUT", f"/v1/timers/{name}", body)


async def fire(site: Site, name: str = "order-1") -> None:
    timer = site.store.timers[ACME, call(name)]
    assert timer.due_at is not None
    async with site.store.claim_due(timer.due_at, 10, sink=Sink.HTTP) as claim:
        await claim.mark_reached(
            [DueTimeReached(ACME, call(name), timer.due_at, timer.due_at, timer.generation, None)]
        )


def kept(site: Site, name: str = "order-1") -> Any:
    return site.store.deliveries.callbacks[ACME, call(name)]


# Accepting


@pytest.mark.parametrize(
    "url",
    [
        "https://BÜCHER.example/",
        "https://xn--bcher-kva.example:443",
        "https://bücher.example.",
    ],
)
async def test_a_receiver_has_one_origin_however_it_is_spelled(site: Site, url: str) -> None:
    reply = await put(site, url=url)

    assert kept(site).origin == "https://xn--bcher-kva.example:443"
    assert reply.json["timer"]["callback"]["url"] == "https://xn--bcher-kva.example/"


async def test_a_callback_is_kept_as_it_was_given_and_shown_without_its_secrets(site: Site) -> None:
    reply = await put(
        site,
        method="PATCH",
        headers={"Authorization": "Bearer token123", "Accept": "text/plain"},
        body={"b": [1, None], "a": "é"},
        retry={"delaysMs": [1_000, 60_000]},
        timeoutMs=5_000,
        signing="hmac",
        metadata={"client_ref": "order-456"},
    )

    callback, shown = kept(site), reply.json["timer"]["callback"]
    assert (reply.status, reply.json["timer"]["sink"]) == (201, "http")
    assert callback.body == '{"b":[1,null],"a":"é"}'.encode()
    assert (callback.url, callback.retry.max_attempts, callback.timeout.total_seconds()) == (URL, 3, 5)
    assert "token123" not in repr(callback) + reply.body.decode()
    assert shown["headers"]["Accept"] == "text/plain"
    assert shown["headers"]["Authorization"].startswith("***** (")
    assert (shown["body"], shown["metadata"]) == ({"b": [1, None], "a": "é"}, {"client_ref": "order-456"})
    assert shown["retry"] == {"delaysMs": [1_000, 60_000]}


async def test_exact_bytes_are_kept_as_they_are(site: Site) -> None:
    exact = b'{"n": 1.10}\x00'

    reply = await put(
        site, bodyBase64=base64.b64encode(exact).decode(), contentType="application/octet-stream"
    )

    assert kept(site).body == exact
    assert base64.b64decode(reply.json["timer"]["callback"]["bodyBase64"]) == exact


@pytest.mark.parametrize(
    "exact", [b"[" * 2_000, b'"\\ud800"', b"NaN", b"1e400", b"[" + b"1" * 400 + b".0]", b"\xff"]
)
async def test_bytes_that_only_say_they_are_json_are_shown_as_bytes(site: Site, exact: bytes) -> None:
    text = base64.b64encode(exact).decode()

    replies = [await put(site, bodyBase64=text), await site.ask("GET", "/v1/timers/order-1")]
    compact = await site.ask("GET", "/timers/order-1")

    assert [reply.status for reply in replies] == [201, 200]
    assert [reply.json["timer"]["callback"]["bodyBase64"] for reply in replies] == [text, text]
    assert (compact.status, compact.json["data"]["callback_payload"]) == (200, None)
    assert not any(word in reply.body for reply in (*replies, compact) for word in (b"NaN", b"Infinity"))


async def test_without_a_body_the_event_of_the_firing_is_sent(site: Site) -> None:
    await put(site)

    assert (kept(site).body, kept(site).retry.max_attempts) == (None, 10)


async def test_without_a_broker_a_timer_needs_a_callback(site: Site) -> None:
    await put(site, "order-2")

    replies = [
        await site.ask("POST", "/v1/timers", {"dueAt": DUE}),
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE}),
        await site.ask("PATCH", "/v1/timers/order-2", {"callback": None}),
    ]

    assert [reply.status for reply in replies] == [400] * 3
    assert {reply.json["errors"][0]["pointer"] for reply in replies} == {"/callback"}


@pytest.mark.parametrize(
    ("callback", "pointer"),
    [
        ({"url": None}, "/callback/url"),
        ({"url": "ftp://receiver.example/"}, "/callback/url"),
        ({"url": "https://user:pass@receiver.example/"}, "/callback/url"),
        ({"url": "https://receiver.example/#x"}, "/callback/url"),
        ({"url": "http://127.0.0.1:9/"}, "/callback/url"),
        ({"url": "http://169.254.169.254/latest"}, "/callback/url"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, "/callback/url"),
        ({"method": "GET"}, "/callback/method"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "/callback/headers/X-A"),
        ({"headers": {"webhook-id": "1"}}, "/callback/headers/webhook-id"),
        ({"headers": {"Host": "other"}}, "/callback/headers/Host"),
        ({"headers": {"Authorization": "***** (01234567)"}}, "/callback/headers/Authorization"),
        ({"headers": {"a b": "c"}}, "/callback/headers/a b"),
        ({"headers": {"a/b~": "c"}}, "/callback/headers/a~1b~0"),
        ({"headers": {f"X-{n}": "a" for n in range(21)}}, "/callback/headers"),
        ({"headers": ["X"]}, "/callback/headers"),
        ({"body": 1, "bodyBase64": "MQ=="}, "/callback/bodyBase64"),
        ({"bodyBase64": "?"}, "/callback/bodyBase64"),
        ({"contentType": "a\r\nb"}, "/callback/contentType"),
        ({"retry": {"maxAttempts": 0}}, "/callback/retry/maxAttempts"),
        ({"retry": {"delaysMs": [1]}}, "/callback/retry/delaysMs"),
        ({"retry": {"delaysMs": [], "maxAttempts": 1}}, "/callback/retry/maxAttempts"),
        ({"timeoutMs": 60_001}, "/callback/timeoutMs"),
        ({"signing": "rsa"}, "/callback/signing"),
        ({"colour": "red"}, "/callback/colour"),
    ],
)
async def test_a_wrong_callback_is_refused_with_a_pointer(site: Site, callback: Any, pointer: str) -> None:
    reply = await put(site, **callback)

    assert (reply.status, site.store.timers) == (400, {})
    assert reply.json["errors"][0]["pointer"] == pointer
    assert reply.json["detail"].startswith(f"{pointer}: ")


@pytest.mark.parametrize("field", ["body", "metadata"])
async def test_a_number_that_could_not_be_written_as_json_is_refused(site: Site, field: str) -> None:
    body = f'{{"delayMs":1,"callback":{{"url":"{URL}","{field}":["Infinity",HUGE]}}}}'

    refused = await site.ask("POST", "/v1/timers", body.replace("HUGE", "-1e400").encode())
    taken = await site.ask("POST", "/v1/timers", body.replace("HUGE", "1e300").encode())

    assert (refused.status, refused.json["errors"]) == (
        400,
        [{"pointer": f"/callback/{field}", "detail": "contains a number that is too large"}],
    )
    assert taken.status == 201


@pytest.mark.parametrize(
    ("name", "value"), [("body", "x" * 65_535), ("metadata", "x" * 4_095), ("bodyBase64", "AAAA" * 21_846)]
)
async def test_what_is_too_large_is_413_with_a_pointer(site: Site, name: str, value: str) -> None:
    reply = await put(site, **{name: value})

    assert (reply.status, reply.json["errors"][0]["pointer"]) == (413, f"/callback/{name}")


# Changing


async def test_a_patch_of_a_callback_keeps_what_it_does_not_name(site: Site) -> None:
    await put(site, headers={"Authorization": "Bearer token123", "X-Old": "1"}, body={"a": 1})
    before = dict(kept(site).headers)

    reply = await site.ask(
        "PATCH",
        "/v1/timers/order-1",
        {"callback": {"method": "PUT", "headers": {"X-Old": None, "X-New": "2"}}},
    )

    after = dict(kept(site).headers)
    assert (reply.status, kept(site).method, kept(site).body) == (200, "PUT", b'{"a":1}')
    assert (after["Authorization"], sorted(after)) == (before["Authorization"], ["Authorization", "X-New"])


async def test_patches_do_not_make_more_headers_than_a_callback_may_have(site: Site) -> None:
    await put(site, headers={f"X-{n}": "a" for n in range(20)})

    too_many = await site.ask("PATCH", "/v1/timers/order-1", {"callback": {"headers": {"X-20": "a"}}})
    too_large = await site.ask("PATCH", "/v1/timers/order-1", {"callback": {"headers": {"X-0": "a" * 8_150}}})
    fits = await site.ask(
        "PATCH", "/v1/timers/order-1", {"callback": {"headers": {"X-0": None, "X-20": "a"}}}
    )

    assert [reply.status for reply in (too_many, too_large, fits)] == [400, 400, 200]
    assert {reply.json["errors"][0]["pointer"] for reply in (too_many, too_large)} == {"/callback/headers"}
    assert sorted(name for name, _ in kept(site).headers) == sorted(f"X-{n}" for n in range(1, 21))


async def test_a_patch_that_names_nothing_of_an_object_changes_nothing_of_it(site: Site) -> None:
    await put(site, retry={"maxAttempts": 2}, headers={"X-A": "1"})
    before = kept(site)

    reply = await site.ask("PATCH", "/v1/timers/order-1", {"callback": {"retry": {}, "headers": {}}})

    assert (reply.status, kept(site)) == (200, before)


async def test_what_a_caller_may_fill_as_he_likes_is_replaced_whole_by_a_patch(site: Site) -> None:
    await put(site, body={"a": 1}, metadata={"b": 2}, retry={"delaysMs": [1_000]})

    changed = {"body": {"c": 3}, "metadata": {"d": 4}, "retry": {"maxAttempts": 1}}
    reply = await site.ask("PATCH", "/v1/timers/order-1", {"callback": changed})

    shown = reply.json["timer"]["callback"]
    assert (shown["body"], shown["metadata"], shown["retry"]) == ({"c": 3}, {"d": 4}, {"delaysMs": []})


async def test_null_in_a_patch_takes_away_what_was_given(site: Site) -> None:
    given = {
        "method": "PUT",
        "headers": {"X-A": "1"},
        "body": {"a": 1},
        "contentType": "application/x-orders+json",
        "retry": {"maxAttempts": 2},
        "timeoutMs": 5_000,
        "signing": "hmac",
        "metadata": {"b": 2},
    }
    callback = {"url": URL, **given}
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE, "expiresAfterMs": 5, "callback": callback})

    removed = {"expiresAfterMs": None, "callback": dict.fromkeys(given)}
    reply = await site.ask("PATCH", "/v1/timers/order-1", removed)
    no_url = await site.ask("PATCH", "/v1/timers/order-1", {"callback": {"url": None}})

    assert (reply.status, kept(site)) == (200, Callback(URL))
    assert "expiresAfterMs" not in reply.json["timer"]
    assert (no_url.status, no_url.json["errors"][0]["pointer"]) == (400, "/callback/url")


async def test_a_patch_keeps_the_time_to_expire_wherever_the_timer_fires() -> None:
    site = await Site().open()
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE, "expiresAfterMs": 5_000})

    to_http = await site.ask("PATCH", "/v1/timers/order-1", {"callback": {"url": URL}})
    expires_after = kept(site).expires_after
    to_bus = await site.ask("PATCH", "/v1/timers/order-1", {"callback": None})
    removed = await site.ask("PATCH", "/v1/timers/order-1", {"expiresAfterMs": None})

    assert [reply.json["timer"].get("expiresAfterMs") for reply in (to_http, to_bus, removed)] == [
        5_000,
        5_000,
        None,
    ]
    assert expires_after == timedelta(seconds=5)
    assert site.store.timers[ACME, call("order-1")].expires_after_ms is None


async def test_the_time_to_expire_is_changed_by_its_own_name_wherever_the_timer_fires(site: Site) -> None:
    await site.ask(
        "PUT",
        "/v1/timers/order-1",
        {"dueAt": DUE, "expiresAfterMs": 5_000, "callback": {"url": URL, "body": 1}},
    )
    before = kept(site)

    longer = await site.ask("PATCH", "/v1/timers/order-1", {"expiresAfterMs": 9_000})
    changed = kept(site)
    removed = await site.ask("PATCH", "/v1/timers/order-1", {"expiresAfterMs": None})

    assert (longer.status, longer.json["timer"]["expiresAfterMs"]) == (200, 9_000)
    assert changed == replace(before, expires_after=timedelta(seconds=9))
    assert (removed.status, "expiresAfterMs" in removed.json["timer"]) == (200, False)
    assert kept(site) == replace(before, expires_after=None)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/timers/order-1", {"correlationId": "request-7"}),
        ("PUT", "/timers/order-1", {"metadata": {"a": 1}}),
    ],
)
async def test_a_change_keeps_what_a_command_has_said_of_a_timer_with_a_callback(
    site: Site, method: str, path: str, body: dict[str, Any]
) -> None:
    await put(site)
    key = ACME, call("order-1")
    site.store.timers[key] = replace(site.store.timers[key], expires_after_ms=5_000)

    reply = await site.ask(method, path, body)

    assert reply.status == 200
    assert (site.store.timers[key].expires_after_ms, site.store.timers[key].generation) == (5_000, 1)


async def test_a_patch_turns_one_kind_of_body_into_the_other(site: Site) -> None:
    await put(site, body={"a": 1})

    def patch(**callback: Any) -> Any:
        return site.ask("PATCH", "/v1/timers/order-1", {"callback": callback})

    bodies = []
    for change in (
        {"bodyBase64": None},
        {"body": None, "bodyBase64": "AAE="},
        {"body": {"b": 2}, "bodyBase64": None},
        {"body": None, "bodyBase64": "AAE="},
        {"bodyBase64": None},
    ):
        assert (await patch(**change)).status == 200
        bodies.append(kept(site).body)

    # A member that is not shown cannot be taken away.
    assert bodies == [b'{"a":1}', b"\0\1", b'{"b":2}', b"\0\1", None]


async def test_null_is_a_body_where_a_callback_is_given_whole(site: Site) -> None:
    await put(site, body=None)

    assert kept(site).body == b"null"


async def test_secrets_are_not_sent_to_another_receiver_than_they_were_given_for(site: Site) -> None:
    await put(site, headers={"Authorization": "Bearer token123"})

    refused = await site.ask("PATCH", "/v1/timers/order-1", {"callback": {"url": "https://evil.example/"}})
    given = await site.ask(
        "PATCH",
        "/v1/timers/order-1",
        {"callback": {"url": "https://other.example/", "headers": {"X-A": "1"}}},
    )

    assert (refused.status, refused.json["errors"][0]["pointer"]) == (400, "/callback/headers")
    assert (given.status, [name for name, _ in kept(site).headers]) == (200, ["X-A"])


async def test_a_changed_callback_is_another_version_of_the_same_firing(site: Site) -> None:
    first = await put(site)

    second = await put(site, method="PUT")
    stale = await site.ask("DELETE", "/v1/timers/order-1", if_match=first.headers["etag"])

    assert (second.json["timer"]["generation"], stale.status) == (1, 412)


# After the firing


async def test_a_delivery_is_shown_and_changes_the_etag(site: Site) -> None:
    before = await put(site)
    await fire(site)

    shown = await site.ask("GET", "/v1/timers/order-1")
    attempts = await site.ask("GET", "/v1/timers/order-1/attempts")
    listed = await site.ask("GET", "/v1/deliveries?state=waiting")
    cancelled = await site.ask("DELETE", "/v1/timers/order-1")

    assert shown.json["timer"]["delivery"]["state"] == "Waiting"
    assert shown.headers["etag"] != before.headers["etag"]
    assert attempts.json == {"attempts": [], "delivery": shown.json["timer"]["delivery"]}
    assert [each["serviceCallId"] for each in listed.json["deliveries"]] == ["order-1"]
    assert (cancelled.status, cancelled.json["timer"]["delivery"]["state"]) == (409, "Waiting")


async def test_a_delivery_that_waits_again_is_not_what_it_was_before(site: Site) -> None:
    await put(site)
    await fire(site)
    before = await site.ask("GET", "/v1/timers/order-1")

    await site.ask("POST", "/v1/timers/order-1/abandon")
    await site.ask("POST", "/v1/timers/order-1/retry")
    after = await site.ask("GET", "/v1/timers/order-1", if_none_match=before.headers["etag"])

    # The next attempt is at another time.
    assert (after.status, after.json["timer"] != before.json["timer"]) == (200, True)


async def test_an_abandoned_delivery_can_be_sent_again_under_the_same_id(site: Site) -> None:
    await put(site)
    await fire(site)

    abandoned = await site.ask("POST", "/v1/timers/order-1/abandon")
    retried = await site.ask("POST", "/v1/timers/order-1/retry")
    again = await site.ask("POST", "/v1/timers/order-1/retry")

    assert [reply.json["delivery"]["state"] for reply in (abandoned, retried, again)] == [
        "Abandoned",
        "Waiting",
        "Waiting",
    ]
    assert abandoned.json["delivery"]["id"] == retried.json["delivery"]["id"]
    # The second finds it waiting, and leaves it as it is.
    assert (retried.json["retried"], again.json["retried"]) == (1, 0)
    assert again.json["delivery"] == retried.json["delivery"]


async def test_deliveries_are_sent_again_by_filter(site: Site) -> None:
    for name in ("order-1", "order-2"):
        await put(site, name)
        await fire(site, name)
        await site.ask("POST", f"/v1/timers/{name}/abandon")

    none = await site.ask("POST", "/v1/deliveries:retry", {})
    one = await site.ask("POST", "/v1/deliveries:retry", {"state": "abandoned", "limit": 1})
    rest = await site.ask("POST", "/v1/deliveries:retry", {"state": "abandoned"})

    assert (none.json, one.json, rest.json) == (
        {"retried": 0, "more": False},
        {"retried": 1, "more": True, "cursor": one.json["cursor"]},
        {"retried": 1, "more": False},
    )
    listed = await site.ask("GET", "/v1/deliveries")
    assert {each["state"] for each in listed.json["deliveries"]} == {"Waiting"}


async def test_a_page_that_is_sent_again_is_the_one_that_was_found() -> None:
    store = MemoryTimerStore()
    store.deliveries = Restless(store.timers)
    site = await Site(store=store, has_broker=False).open()
    for name in ("order-1", "order-2"):
        await put(site, name)
        await fire(site, name)
    await site.ask("POST", "/v1/timers/order-2/abandon")

    reply = await site.ask("POST", "/v1/deliveries:retry", {"state": "abandoned", "limit": 1})

    # The cursor leads on behind order-2: who follows it would never come back to it.
    states = {name: store.deliveries.kept[ACME, call(name)].state for name in ("order-1", "order-2")}
    assert reply.json["retried"] == 1
    assert states == {"order-1": DeliveryState.ABANDONED, "order-2": DeliveryState.WAITING}


async def test_lists_of_callbacks_count_by_what_is_read_for_them() -> None:
    site = await Site(rate=1, burst=1_000, has_broker=False).open()
    for n in range(20):
        await put(site, f"order-{n}")
        await fire(site, f"order-{n}")
        await site.ask("POST", f"/v1/timers/order-{n}/abandon")

    async def cost(method: str, path: str, body: Any = None) -> int:
        left = [
            int((await site.ask(*asked)).headers["ratelimit"].split(";")[1][2:])
            for asked in (("GET", "/v1/signing-keys"), (method, path, body))
        ]
        return left[0] - left[1]

    costs = [
        await cost("GET", "/timers?limit=19"),
        await cost("GET", "/timers"),
        await cost("GET", "/timers?offset=1500"),
        await cost("GET", "/v1/deliveries?limit=20"),
        await cost("POST", "/v1/deliveries:retry", {"state": "abandoned"}),
    ]

    assert costs == [1, 2, 4, 2, 2]


async def test_a_timer_without_a_delivery_says_so(site: Site) -> None:
    await put(site)

    retried = await site.ask("POST", "/v1/timers/order-1/retry")
    abandoned = await site.ask("POST", "/v1/timers/order-1/abandon")

    told = "there is no delivery: the timer has not fired"
    assert [(reply.status, reply.json["detail"]) for reply in (retried, abandoned)] == [(409, told)] * 2


async def test_a_timer_on_the_bus_has_no_callback_which_is_what_is_said(site: Site) -> None:
    await site.ask("PUT", "/v1/timers/order-1", {"dueAt": DUE})
    asked = [("POST", "retry"), ("POST", "abandon"), ("GET", "attempts")]

    on_bus = [await site.ask(method, f"/v1/timers/order-1/{what}") for method, what in asked]
    unknown = [await site.ask(method, f"/v1/timers/order-9/{what}") for method, what in asked]

    told = [(reply.status, reply.json["detail"]) for reply in on_bus]
    assert told == [(404, "there is no timer 'order-1' with a callback")] * 3
    assert [reply.status for reply in unknown] == [404] * 3


async def test_a_timer_that_expired_by_a_command_has_no_delivery_to_send_again(site: Site) -> None:
    await put(site)
    await site.store.apply([schedule("order-1", 0, number=9, expires_after_s=5)], at(-1))
    async with site.store.claim_due(at(6), 10, sink=Sink.HTTP) as claim:
        await claim.mark_reached([due.event(due.judged(at(6)), at(6)) for due in claim.timers])

    shown = await site.ask("GET", "/v1/timers/order-1")
    again = await site.ask("POST", "/v1/timers/order-1/retry")

    assert (shown.json["timer"]["state"], "delivery" in shown.json["timer"]) == ("Expired", False)
    assert (again.status, again.json["detail"]) == (409, "there is no delivery: the timer has not fired")


async def test_a_larger_body_can_be_allowed() -> None:
    body = "x" * (1024 * 1024 - 2)
    async with open_site(max_payload_bytes=1024 * 1024) as site:
        allowed, too_large = [
            await site.ask("POST", "/v1/timers", {"dueAt": DUE, "callback": {"url": URL, "body": text}})
            for text in (body, body + "x")
        ]

    assert (allowed.status, too_large.status) == (201, 413)
