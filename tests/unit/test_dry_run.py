"""A dry run shows the bytes that are sent, says whether the receiver is called, and sends nothing."""

import base64
import socket
from typing import Any

import pytest

from tests.support.callbacks import sending
from tests.support.receiver import receiving
from tests.support.rest import Site
from tests.support.timers import ACME, at, call
from timer_client.wire import format_time
from timer_service.domain.api_keys import Scope
from timer_service.domain.callback import Sink
from timer_service.domain.delivery import CallbackRequest
from timer_service.domain.errors import StoreBusy
from timer_service.workflows.deliver_callbacks import attempt

LOOPBACK = "127.0.0.1/32"
SHOP = "https://shop.example/hook"


def timer(url: str = SHOP, *, due_s: float = 60, **callback: Any) -> dict[str, Any]:
    return {"serviceCallId": "order-1", "dueAt": format_time(at(due_s)), "callback": {"url": url, **callback}}


async def dry_run(site: Site, body: dict[str, Any], **headers: Any) -> Any:
    return await site.ask("POST", "/v1/timers:dryRun", body, **headers)


async def deliver(site: Site) -> None:
    """Let the timer fire, and make its first attempt over a real socket."""
    site.clock.step_to(at(60))
    async with site.store.claim_due(at(60), 10, sink=Sink.HTTP) as claim:
        await claim.mark_reached([due.reached(site.clock.now()) for due in claim.timers])
    [claimed] = await site.store.deliveries.claim([(ACME, call("order-1"))], at(60))
    async with sending(keyring=site.preparer.keyring) as sender:
        await attempt(claimed, sender=sender, clock=site.clock, chance=lambda: 0.0)


def addresses(*found: str) -> Any:
    return lambda _host, port: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]


# The bytes


@pytest.mark.parametrize("signing", ["ed25519", "hmac"])
@pytest.mark.parametrize("given", [{}, {"body": {"order": 42}}, {"bodyBase64": "/wAB"}])
async def test_what_is_shown_is_what_is_sent_when_the_timer_is_due(
    given: dict[str, Any], signing: str
) -> None:
    site = await Site(allow=LOOPBACK).open()
    async with receiving() as receiver:
        body = timer(receiver.url("/a b?c=é".replace(" ", "%20")), signing=signing, **given)
        body |= {"correlationId": "request-7"}
        trace: dict[str, Any] = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        shown = (await dry_run(site, body, **trace)).json
        assert receiver.connections == 0
        await site.ask("POST", "/v1/timers", body, **trace)
        await deliver(site)

    [received] = receiver.requests
    request = shown["request"]
    exact = base64.b64decode(request["bodyBase64"]) if "bodyBase64" in request else request["body"].encode()
    assert received.body == exact
    assert request["headers"].items() <= received.headers.items()
    assert "webhook-signature" in request["headers"]
    assert received.line == f"{request['method']} /a%20b?c=%C3%A9 HTTP/1.1"
    assert request["url"].endswith("/a%20b?c=%C3%A9")
    assert shown["sentAt"] == format_time(at(60))


async def test_secrets_are_masked_as_they_are_on_the_timer() -> None:
    site = await Site().open()
    await site.preparer.keyring.set_named(ACME, "shop", "t0ken")
    body = timer(headers={"Authorization": "Bearer ${secret:shop}", "X-Own": "hidden", "Accept": "*/*"})

    reply = await dry_run(site, body)
    created = (await site.ask("POST", "/v1/timers", body)).json["timer"]["callback"]["headers"]

    shown = reply.json["request"]["headers"]
    assert {name.lower(): value for name, value in created.items()}.items() <= shown.items()
    assert shown["accept"] == "*/*"
    assert b"t0ken" not in reply.body
    assert b"hidden" not in reply.body


async def test_a_timer_that_is_due_already_is_shown_as_it_is_sent_now() -> None:
    site = await Site().open()
    site.clock.step_to(at(90))

    reply = await dry_run(site, timer(due_s=60))

    assert reply.json["sentAt"] == format_time(at(90))
    assert reply.json["request"]["headers"]["timer-lateness-ms"] == "30000"


async def test_the_key_of_a_request_gives_the_id_that_the_timer_will_have() -> None:
    site = await Site().open()
    body = {"dueAt": format_time(at(60)), "callback": {"url": SHOP}}

    shown = await dry_run(site, body, idempotency_key="once")
    created = await site.ask("POST", "/v1/timers", body, idempotency_key="once")

    assert shown.json["request"]["headers"]["timer-id"] == created.json["timer"]["serviceCallId"]


async def test_nothing_is_kept_of_a_dry_run() -> None:
    site = await Site().open()

    assert (await dry_run(site, timer())).status == 200
    assert (site.store.timers, site.store.deliveries.callbacks, site.woken) == ({}, {}, [])


# The schedule


async def test_the_attempts_are_those_of_the_retry_policy_until_the_timer_expires() -> None:
    site = await Site().open()
    retry = {"delaysMs": [5_000, 60_000]}

    whole = await dry_run(site, timer(retry=retry))
    cut = await dry_run(site, timer(retry=retry) | {"expiresAfterMs": 10_000})
    over = await dry_run(site, timer(due_s=-60, retry=retry) | {"expiresAfterMs": 10_000})

    assert whole.json["attemptsAt"] == [format_time(at(each)) for each in (60, 65, 125)]
    assert cut.json["attemptsAt"] == [format_time(at(each)) for each in (60, 65)]
    assert over.json["attemptsAt"] == []


# The receiver


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (["93.184.216.34"], {"verdict": "allowed"}),
        (["10.1.2.3"], {"verdict": "denied", "detail": "callbacks may not go to the address: private"}),
        (["127.0.0.1"], {"verdict": "denied", "detail": "callbacks may not go to the address: loopback"}),
        (["10.1.2.3", "93.184.216.34"], {"verdict": "allowed"}),
        ([], {"verdict": "notFound", "detail": "the name has no address"}),
    ],
)
async def test_a_name_is_judged_by_its_addresses_which_are_not_told(found: Any, verdict: Any) -> None:
    site = await Site(look_up=addresses(*found)).open()

    reply = await dry_run(site, timer())

    assert (reply.status, reply.json["target"]) == (200, verdict)
    assert not any(each in reply.body.decode() for each in found)


async def test_a_name_that_there_is_not_is_said() -> None:
    def unknown(_host: str, _port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    site = await Site(look_up=unknown).open()

    target = (await dry_run(site, timer())).json["target"]
    assert target == {"verdict": "notFound", "detail": "name or service not known"}


async def test_behind_a_proxy_no_name_is_looked_up() -> None:
    def never(_host: str, _port: int) -> list[Any]:
        raise AssertionError

    site = await Site(has_proxy=True, look_up=never).open()

    assert (await dry_run(site, timer())).json["target"] == {"verdict": "proxy"}


async def test_an_address_that_is_denied_is_refused_with_the_rule() -> None:
    site = await Site().open()

    reply = await dry_run(site, timer("http://10.0.0.1/hook"))

    detail = "the URL names an address that callbacks may not go to: 10.0.0.1 (private)"
    assert (reply.status, reply.json["errors"]) == (400, [{"pointer": "/callback/url", "detail": detail}])


# What cannot be shown


async def test_a_secret_that_is_missing_is_named() -> None:
    site = await Site().open()

    reply = await dry_run(site, timer(headers={"Authorization": "Bearer ${secret:shop}"}))

    detail = "there is no secret named shop"
    assert (reply.status, reply.json["errors"]) == (400, [{"pointer": "/callback/headers", "detail": detail}])


async def test_a_timer_without_a_callback_has_nothing_to_show() -> None:
    site = await Site().open()

    reply = await dry_run(site, {"delayMs": 1})

    assert (reply.status, reply.json["errors"][0]["pointer"]) == (400, "/callback")


async def test_a_key_that_may_not_write_gets_no_signature() -> None:
    site = await Site().open()
    await site.add_key("tmr_reader_secret", ACME, frozenset({Scope.READ}))

    assert (await dry_run(site, timer(), x_api_key="tmr_reader_secret")).status == 403


async def test_secrets_that_cannot_be_read_now_are_asked_for_again() -> None:
    class Away:
        async def preview(self, _: CallbackRequest) -> Any:
            raise StoreBusy("the database is locked")

    site = await Site(preview=Away()).open()

    assert (await dry_run(site, timer())).status == 503
