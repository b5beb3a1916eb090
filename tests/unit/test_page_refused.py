"""Refused: letters in groups, the broken rule marked, and repairs that go through the one reader."""

import json
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.contract.test_delivery_store import ask, attempt, fire
from tests.support.explanations import MemoryLetterBox
from tests.support.pages import Pages
from tests.support.rest import Site, open_site
from tests.support.timers import ACME, GLOBEX, at
from timer_client.subjects import Subjects
from timer_service.adapters.http.pages import letters as reading
from timer_service.adapters.http.pages.app import Looks
from timer_service.adapters.http.pages.assets import Assets
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.letter_desk import LetterDesk
from timer_service.adapters.http.pages.render import Renderer, as_json
from timer_service.adapters.http.pages.screens.refused import RefusedScreens
from timer_service.adapters.http.pages.visit import (
    SCOPES_OF,
    Look,
    PageError,
    Redirect,
    Role,
    Screen,
    User,
    Visit,
)
from timer_service.domain.delivery import Answered
from timer_service.domain.errors import RightMissing
from timer_service.domain.messages import TenantId
from timer_service.ports.letter_box import Letter
from timer_service.testing.audit import MemoryAudit

SUBJECT = "timer.commands.acme.ScheduleTimer"
ZONELESS = "payload.dueAt: must be an ISO 8601 date and time with an offset or Z (got '2026-07-01T09:00:00')"
ADMIN = User("root", SCOPES_OF[Role.ADMIN], None)


def message(call: str = "order-1", due: str = "2026-07-01T09:00:00", tenant: str = "acme") -> bytes:
    payload = {"tenantId": tenant, "serviceCallId": call, "dueAt": due}
    envelope = {"id": "0192f0c1-2345-7abc-8def-0123456789ab", "type": "ScheduleTimer", "timestampMs": 1}
    return json.dumps({**envelope, "tenantId": tenant, "payload": payload}).encode()


def letter(number: int = 1, detail: str = ZONELESS, body: bytes | None = None, **changes: Any) -> Letter:
    values: dict[str, Any] = {
        "number": number,
        "tenant_id": ACME,
        "received_at": at(number),
        "reason": "invalid",
        "detail": detail,
        "subject": SUBJECT,
        "body": message(f"order-{number}") if body is None else body,
    }
    return Letter(**values | changes)


def visit(
    user: User = ADMIN, form: Mapping[str, str] | None = None, look: Look | None = None, **query: str
) -> Visit:
    sent = {name: [value] for name, value in (form or {}).items()}
    return Visit(user, query, at(0), sent, look or Look())


def screens(site: Site, *letters: Letter, error: Exception | None = None) -> RefusedScreens:
    auditor = Auditor(MemoryAudit(), lambda: at(0))
    desk = LetterDesk(MemoryLetterBox(*letters, error=error), site.timers, Subjects("timer"), auditor)
    return RefusedScreens(desk, site.deliveries, site.store.insight, auditor)


@pytest.mark.parametrize(
    ("detail", "reason", "body", "marked"),
    [
        (ZONELESS, "invalid", message(), '"dueAt": "2026-07-01T09:00:00"'),
        ("timestampMs: must be an integer (got 'x')", "invalid", b'{"timestampMs":"x"}', '"timestampMs":"x"'),
        (
            "tenantId 'globex' must equal",
            "tenant_mismatch",
            b'{"tenantId": "globex"}',
            '"tenantId": "globex"',
        ),
        ("the body must be JSON: key must be a string at line 2 column 1", "not_json", b"{\nnope", "n"),
        ("payload.serviceCallId: is required", "invalid", b'{"payload": {}}', None),
        ("the body must be JSON at line 99 column 1", "not_json", b"{", None),
    ],
)
def test_what_broke_the_rule_is_marked(detail: str, reason: str, body: bytes, marked: str | None) -> None:
    pieces = reading.pieces(letter(detail=detail, reason=reason, body=body))

    assert "".join(piece.text for piece in pieces) == body.decode()
    assert [piece.text for piece in pieces if piece.is_broken] == ([] if marked is None else [marked])


def test_letters_are_grouped_by_tenant_reason_and_field() -> None:
    mine = [letter(1), letter(2), letter(3, "payload.serviceCallId: is required")]
    groups = reading.grouped([*mine, letter(4, tenant_id=None)])

    assert [(each.tenant_id, each.field, len(each.letters)) for each in groups] == [
        ("acme", "payload.dueAt", 2),
        ("", "payload.dueAt", 1),
        ("acme", "payload.serviceCallId", 1),
    ]


def test_a_time_without_a_zone_can_be_meant_in_utc_or_in_the_visitor_s_zone() -> None:
    offered = reading.corrections(letter(), "Europe/Berlin", ZoneInfo("Europe/Berlin"))

    dues = [json.loads(each.body)["payload"]["dueAt"] for each in offered]
    assert dues == ["2026-07-01T09:00:00Z", "2026-07-01T09:00:00+02:00"]


@pytest.mark.parametrize("due", ["2026-03-29T02:30:00", "2026-10-25T02:30:00"], ids=["never", "twice"])
def test_a_time_that_a_zone_does_not_have_or_has_twice_is_not_guessed(due: str) -> None:
    offered = reading.corrections(letter(body=message(due=due)), "Berlin", ZoneInfo("Europe/Berlin"))

    assert [each.fix for each in offered] == [reading.IN_UTC]


async def test_an_edited_message_is_checked_and_then_carried_out() -> None:
    async with open_site() as site:
        refused = screens(site, letter())
        form = {"n": "1", "subject": SUBJECT, "body": message("order-1", "2026-07-01T09:00:00Z").decode()}

        still = await refused.check(visit(form={**form, "body": message().decode()}))
        fine = await refused.check(visit(form=form))
        done = await refused.replay(visit(form=form))
        again = await refused.replay(visit(form=form))
        timer = await site.timers.get(ACME, TenantId("order-1"))  # type: ignore[arg-type]

    assert str(still.model["problem"]).startswith("payload.dueAt: must be an ISO 8601")
    assert fine.model["command_of"]["service_call_id"] == "order-1"
    assert done == Redirect("timer?tenant=acme&id=order-1&done=scheduled")
    assert again == Redirect("timer?tenant=acme&id=order-1&done=unchanged")
    assert timer.due_at is not None
    assert timer.due_at.isoformat() == "2026-07-01T09:00:00+00:00"


async def test_a_visitor_of_one_tenant_sees_and_sends_nothing_of_another() -> None:
    theirs = User("kim", SCOPES_OF[Role.ADMIN], frozenset({GLOBEX}))
    foreign = letter(2, body=message("order-2", "2026-07-01T09:00:00Z"), tenant_id=GLOBEX)
    form = {"n": "2", "subject": SUBJECT, "body": foreign.body.decode()}
    async with open_site() as site:
        refused = screens(site, letter(1), foreign, letter(3, tenant_id=None))

        shown = await refused.show(visit(theirs))
        for number in ("1", "3", "9", "x", "9" * 20):
            with pytest.raises(PageError, match="no such letter"):
                await refused.letter(visit(theirs, n=number))
        with pytest.raises(PageError, match="not yours"):
            await refused.replay(visit(theirs, form))

    assert [each["number"] for each in shown.model["letters"]] == [2]


async def test_a_missing_right_is_named_to_operators_of_all_tenants_only() -> None:
    missing = RightMissing("grant it to publish to $JS.API.X")
    async with open_site() as site:
        refused = screens(site, error=missing)
        some = await refused.show(visit(User("kim", SCOPES_OF[Role.VIEWER], frozenset({ACME}))))
        everything = await refused.show(visit())

    assert (some.model["trouble"], everything.model["trouble"]) == (missing.public, str(missing))


async def test_hostile_bodies_are_shown_as_text() -> None:
    hostile = b'{"dueAt": "</textarea><script>alert(1)</script>\xe2\x80\xae"}'
    async with open_site() as site:
        refused = screens(site, letter(detail="dueAt: <b>bold</b>", body=hostile))
        shown = [await refused.show(visit()), await refused.letter(visit(n="1"))]

    for screen in shown:
        page = await rendered(screen)
        assert "<script>alert" not in page
        assert "<b>bold" not in page
    assert "&lt;/textarea&gt;&lt;script&gt;" in await rendered(shown[1])


async def test_a_large_number_in_a_body_is_shown_to_its_last_digit() -> None:
    async with open_site() as site:
        refused = screens(site, letter(body=b'{"amount": 12345678901234567890123}'))
        screen = await refused.letter(visit(n="1"))

    assert "12345678901234567890123" in await rendered(screen)
    assert b"12345678901234567890123" in as_json(screen.model)


async def rendered(screen: Screen, look: Look | None = None) -> str:
    chrome = {
        "title": "x",
        "command": "",
        "screens": [],
        "done": "",
        "here": "",
        "as_json": "",
        "user": ADMIN,
        "can_log_out": False,
        "may": lambda _: True,
        "look": look or Look(),
        "looks": Looks(),
        "now": at(0),
        "running_version": "1",
    }
    return (await Renderer(Assets()).html(screen.template, screen.model, chrome)).decode()


async def test_failed_callbacks_are_shown_however_many_tenants_there_are() -> None:
    pages = await Pages().open()
    tenants = [f"tenant-{n:02}" for n in range(25)]
    for tenant in tenants:
        await ask(pages.site.store, "order-1", tenant=tenant)
    await fire(pages.site.store)
    for tenant in tenants:
        await attempt(pages.site.store, Answered(410), tenant=tenant)

    shown = (await pages.get("refused?format=json")).json["failed"]
    of_one = (await pages.get("refused?format=json&tenant=tenant-07")).json["failed"]

    assert sorted(each["tenantId"] for each in shown) == tenants
    assert [(each["tenantId"], each["count"], each["newest"]["serviceCallId"]) for each in of_one] == [
        ("tenant-07", 1, "order-1")
    ]
