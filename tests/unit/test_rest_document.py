"""The OpenAPI document says what the API does."""

from typing import Any

import pytest

from tests.support.rest import Site
from tests.support.timers import ACME, at, call
from timer_client.wire import format_time
from timer_service.domain.callback import Sink
from timer_service.domain.messages import DueTimeReached

DUE = format_time(at(60))
TIMER = {
    "dueAt": DUE,
    "correlationId": "request-7",
    "callback": {"url": "https://receiver.example/hook", "body": {"a": 1}, "metadata": {"b": 2}},
}
COMPACT = {"execute_at": DUE, "callback_url": "https://receiver.example/hook"}
ASKED = [
    ("PUT", "/v1/timers/order-1", TIMER),
    ("POST", "/v1/timers", TIMER),
    ("POST", "/v1/timers:batch", {"timers": [TIMER, {}, {**TIMER, "serviceCallId": "order-0"}]}),
    ("POST", "/v1/timers:dryRun", TIMER),
    ("GET", "/v1/timers/order-0", None),
    ("GET", "/v1/timers/order-0/explanation", None),
    ("GET", "/v1/timers?limit=1", None),
    ("PATCH", "/v1/timers/order-2", {"dueAt": format_time(at(90))}),
    ("DELETE", "/v1/timers/order-2", None),
    ("GET", "/v1/timers/order-0/attempts", None),
    ("POST", "/v1/timers/order-0/abandon", None),
    ("POST", "/v1/timers/order-0/retry", None),
    ("GET", "/v1/deliveries?limit=1", None),
    ("POST", "/v1/deliveries:retry", {}),
    ("GET", "/v1/signing-keys", None),
    ("POST", "/timers", COMPACT),
    ("GET", "/timers/order-0", None),
    ("GET", "/timers", None),
    ("PUT", "/timers/order-2", COMPACT),
    ("DELETE", "/timers/order-2", None),
    ("GET", "/health", None),
    ("GET", "/v1/timers/order-9", None),
    ("POST", "/v1/timers", {"dueAt": 1}),
    ("POST", "/timers", {"execute_at": 1}),
]


async def document_of(site: Site) -> dict[str, Any]:
    document: dict[str, Any] = (await site.ask("GET", "/openapi.json", tenant=None)).json
    return document


async def test_every_route_is_described_and_nothing_else() -> None:
    site = await Site().open()

    described = {
        (method.upper(), path)
        for path, methods in (await document_of(site))["paths"].items()
        for method in methods
    }
    served = {(method, path) for path, methods in site.app.routes.items() for method in methods}

    assert described == served - {("GET", "/openapi.json"), ("GET", "/v1")}


@pytest.mark.parametrize(("method", "path", "body"), ASKED, ids=[f"{m} {p}" for m, p, _ in ASKED])
async def test_every_member_of_an_answer_is_described(method: str, path: str, body: Any) -> None:
    site = await Site(has_broker=False).open()
    for name in ("order-0", "order-2"):
        await site.ask("PUT", f"/v1/timers/{name}", TIMER)
    await _fire(site, "order-0")
    patched: dict[str, Any] = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}

    reply = await site.ask(method, path, body, **patched)

    document = await document_of(site)
    operation = _path(document, path)[method.lower()]
    [content] = operation["responses"][str(reply.status)]["content"].values()
    assert _undescribed(reply.json, content["schema"], document) == []


async def test_every_header_of_a_callback_is_described() -> None:
    site = await Site().open()
    parent = f"00-{'a' * 32}-{'b' * 16}-01"

    described = (await document_of(site))["webhooks"]["timer.reached"]["post"]["parameters"]
    answer = await site.ask("POST", "/v1/timers:dryRun", TIMER, traceparent=parent, tracestate="a=1")
    sent = answer.json["request"]["headers"]

    assert {each["name"] for each in described} == set(sent) - {"content-type", "user-agent"}
    assert {each["name"] for each in described if not each["required"]} == {"traceparent", "tracestate"}


async def _fire(site: Site, name: str) -> None:
    async with site.store.claim_due(at(60), 1, sink=Sink.HTTP) as claim:
        await claim.mark_reached([DueTimeReached(ACME, call(name), at(60), at(60), 1, None)])


def _path(document: dict[str, Any], path: str) -> dict[str, Any]:
    words = path.partition("?")[0].split("/")
    [found] = [
        methods
        for each, methods in document["paths"].items()
        if len(each.split("/")) == len(words)
        and all(mine in ("{id}", other) for mine, other in zip(each.split("/"), words, strict=True))
    ]
    assert isinstance(found, dict)
    return found


def _undescribed(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str = "") -> list[str]:
    """Return the places of all members that the document does not name."""
    if isinstance(value, list):
        items = _resolved(schema, document).get("items", {})
        return [one for each in value for one in _undescribed(each, items, document, f"{where}[]")]
    if not isinstance(value, dict) or "description" in schema:
        return []
    known = _members(schema, document)
    if known is None:
        return []
    found = []
    for name, each in value.items():
        place = f"{where}/{name}"
        found += _undescribed(each, known[name], document, place) if name in known else [place]
    return found


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found = document["components"]["schemas"][name] if name else schema
    assert isinstance(found, dict)
    return found


def _members(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the members that an object may have; None if it may have any."""
    resolved = _resolved(schema, document)
    choices = [each for each in resolved.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        return _members(choices[0], document)
    if "additionalProperties" in resolved or not {"properties", "allOf"} & resolved.keys():
        return None if resolved else {}
    members = dict(resolved.get("properties", {}))
    for part in resolved.get("allOf", []):
        members |= _members(part, document) or {}
    return members


async def test_the_page_needs_no_key_and_runs_no_script() -> None:
    site = await Site().open()

    page = await site.ask("GET", "/v1", tenant=None)

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert b"<script" not in page.body
    assert b"/v1/timers:batch" in page.body
    assert b"correlationId" in page.body
