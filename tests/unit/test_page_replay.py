"""A group of letters is looked at with one correction for all, then sent again and noted as a job is."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.explanations import MemoryLetterBox
from tests.support.pages import ALL, Notebook, Pages
from tests.support.timers import ACME, call, schedule
from tests.unit.test_page_refused import letter, message
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role
from timer_service.domain.api_keys import Scope
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.ports.audit import Action
from timer_service.ports.letter_box import Letter, LettersFound

GROUP = "tenant=acme&reason=invalid&field=payload.dueAt"
FORM = {"tenant": "acme", "reason": "invalid", "field": "payload.dueAt", "fix": "utc", "count": "3"}
WHY = {"reason_for": "a <b>sender</b> without zones"}


@pytest.fixture
async def pages() -> Pages:
    """A page with three letters of one group, of which one cannot be helped, and one of another tenant."""
    return await opened(
        letter(1), letter(2), letter(3, body=message("order-3", "tomorrow")), letter(4, tenant_id=None)
    )


async def opened(*letters: Letter, **settings: Any) -> Pages:
    return await Pages(settings, letters=MemoryLetterBox(*letters)).open()


async def test_a_preview_says_what_each_would_come_to_and_changes_nothing(pages: Pages) -> None:
    as_it_is = (await pages.get(f"refused-replay?{GROUP}&format=json")).json
    in_utc = (await pages.get(f"refused-replay?{GROUP}&fix=utc&format=json")).json

    assert (as_it_is["count"], as_it_is["good"]) == (3, 0)
    assert (in_utc["count"], in_utc["good"]) == (3, 2)
    assert [each[0] for each in in_utc["fixes"]] == ["", "utc"]
    told = {each["number"]: each for each in in_utc["letters"]}
    assert told[1]["commandOf"]["dueAt"] == "2026-07-01T09:00:00.000Z"
    assert told[3]["problem"] == "the correction does not apply to this one"
    assert pages.site.store.timers == {}
    assert (await pages.get("activity?format=json")).json["actions"] == []


async def test_one_correction_repairs_a_whole_group_and_its_job_tells_of_each(pages: Pages) -> None:
    reply = await pages.post("refused-replay", FORM | WHY)

    number = parse_qs(urlsplit(reply.headers["location"]).query)["n"][0]
    job = (await pages.get(f"job?n={number}&format=json")).json
    page = (await pages.get(f"job?n={number}")).body.decode()
    assert reply.status == 303
    assert job["texts"]["state"] == "finished"
    assert {each["outcome"]: each["count"] for each in job["job"]["outcomes"]} == {
        "scheduled": 2,
        "refused": 1,
    }
    assert pages.site.store.timers.keys() == {(ACME, call("order-1")), (ACME, call("order-2"))}
    assert "a <b>sender" not in page
    again = (await pages.get(f"refused-replay?{GROUP}&fix=utc&format=json")).json
    assert again["letters"][-1]["timer"]["state"] == "Scheduled"  # What was sent already is seen.


async def test_of_two_letters_about_one_timer_the_newer_one_counts() -> None:
    pages = await opened(
        letter(1, body=message("order-1", "2026-07-01T09:00:00")),
        letter(2, body=message("order-1", "2026-08-01T09:00:00")),
    )

    await pages.post("refused-replay", FORM | WHY | {"count": "2"})

    timer = (await pages.get("timer?tenant=acme&id=order-1&format=json")).json["timer"]
    assert timer["dueAt"] == "2026-08-01T09:00:00.000Z"


async def test_letters_are_sent_again_by_those_who_may_schedule() -> None:
    closed = await opened(letter(1), page_key="k" * 40)
    form = {
        "n": "1",
        "subject": "timer.commands.acme.ScheduleTimer",
        "body": message("order-1", "2026-07-01T09:00:00Z").decode(),
    }
    sends_again = await closed.add_key("tmr_again_x", ACME, Scope.READ, Scope.REPLAY)
    reads = await closed.add_key("tmr_admin_x", ACME, Scope.READ, Scope.ADMIN)

    refused = [
        (await closed.post("letter-replay", form, authorization=sends_again)).status,
        (await closed.post("refused-replay", FORM | WHY | {"count": "1"}, authorization=reads)).status,
    ]

    assert refused == [403, 403]
    assert closed.site.store.timers == {}


async def test_a_group_that_has_changed_or_has_no_reason_is_not_sent(pages: Pages) -> None:
    statuses = [
        (await pages.post("refused-replay", form)).status
        for form in (FORM | WHY | {"count": "2"}, FORM, FORM | WHY | {"tenant": "globex"})
    ]

    assert statuses == [409, 400, 409]
    assert pages.site.store.timers == {}


async def test_a_group_is_for_admins_and_reaches_no_other_tenant() -> None:
    foreign = letter(
        2,
        body=message("order-2", "2026-07-01T09:00:00Z", "globex"),
        subject="timer.commands.globex.ScheduleTimer",
    )
    closed = await opened(letter(1), foreign, page_key="k" * 40)
    operator = await closed.add_key("tmr_operator_x", ALL, *SCOPES_OF[Role.OPERATOR])
    acme = await closed.add_key("tmr_acme_x", ACME, *SCOPES_OF[Role.ADMIN])
    form = FORM | WHY | {"count": "2"}

    refused = [
        (await closed.get(f"refused-replay?{GROUP}", authorization=operator)).status,
        (await closed.post("refused-replay", form, authorization=operator)).status,
        (await closed.get("refused-replay?tenant=globex", authorization=acme)).status,
    ]
    shown = (await closed.get(f"refused-replay?{GROUP}&fix=utc&format=json", authorization=acme)).json
    sent = await closed.post("refused-replay", form, authorization=acme)

    assert refused == [403, 403, 404]
    assert shown["good"] == 1
    assert sent.status == 303
    assert {key[0] for key in closed.site.store.timers} == {ACME}


async def test_a_timer_shows_the_letters_that_name_it_also_where_there_is_none() -> None:
    pages = await opened(letter(7, body=message("order-1")), letter(8, body=message("order-2")))
    absent = await pages.get("timer?tenant=acme&id=order-1&format=json")
    await pages.have(schedule("order-1"))
    there = await pages.get("timer?tenant=acme&id=order-1&format=json")
    page = (await pages.get("timer?tenant=acme&id=order-1")).body.decode()

    assert (absent.status, there.status) == (404, 200)
    assert [[each["number"] for each in reply.json["letters"]] for reply in (absent, there)] == [[7], [7]]
    assert 'href="letter?n=7"' in page


async def test_a_visit_does_not_wait_for_letters_that_take_long() -> None:
    class Slow(MemoryLetterBox):
        async def naming(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> LettersFound:
            await asyncio.Event().wait()
            return await super().naming(tenant_id, service_call_id)

    pages = await Pages(letters=Slow()).open()
    await pages.have(schedule("order-1"))

    shown = await pages.get("timer?tenant=acme&id=order-1")

    assert shown.status == 200
    assert "letters=all" in shown.body.decode()


class HeldUp(Notebook):
    """Keeps nothing until the test says so, and knows whether somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def record(self, *actions: Action) -> int:
        self.asked.set()
        await self.goes_on.wait()
        return await super().record(*actions)


async def test_groups_are_sent_one_after_the_other() -> None:
    notes, letters = HeldUp(), MemoryLetterBox(letter(1), letter(2), letter(3))
    pages = await Pages(letters=letters, audit=notes).open()

    first = asyncio.ensure_future(pages.post("refused-replay", FORM | WHY))
    await notes.asked.wait()
    reply = await pages.post("refused-replay?format=json", FORM | WHY)
    sent_meanwhile = len(pages.site.store.timers)
    notes.goes_on.set()
    done = await first
    third = await pages.post("refused-replay", FORM | WHY)

    assert (reply.status, sent_meanwhile) == (409, 0)
    assert (done.status, third.status) == (303, 303)


async def test_letters_stay_whatever_becomes_of_their_group() -> None:
    letters = MemoryLetterBox(letter(1), letter(2), letter(3))
    pages = await Pages(letters=letters).open()
    pages.audit.failures = [None, None, OSError("the disk is gone")]

    broken = await pages.post("refused-replay", FORM | WHY)
    left = (await pages.get("refused?tenant=acme&format=json")).json["letters"]
    again = await pages.post("refused-replay", FORM | WHY)

    assert broken.status == 500
    assert [each["number"] for each in left] == [3, 2, 1]
    job = (await pages.get(f"{again.headers['location']}&format=json")).json["job"]
    assert {each["outcome"]: each["count"] for each in job["outcomes"]} == {"unchanged": 2, "scheduled": 1}
