"""Activity: every change on the page leaves who, what, how it was before, and a way back."""

from collections import Counter
from typing import Any

from tests.contract.test_delivery_store import ask, attempt, fire
from tests.support.explanations import explanations
from tests.support.pages import Pages
from tests.support.rest import Site, open_site
from tests.support.timers import ACME, GLOBEX, at, schedule
from tests.unit.test_page_refused import ADMIN, rendered, visit
from timer_client.subjects import Subjects
from timer_service.adapters.http.pages.auditing import REFUSED_PER_MINUTE, Auditor
from timer_service.adapters.http.pages.letter_desk import LetterDesk
from timer_service.adapters.http.pages.past import Past
from timer_service.adapters.http.pages.screens.activity import ActivityScreen
from timer_service.adapters.http.pages.screens.timer import TimerScreen
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role, User
from timer_service.adapters.no_broker import NoBroker
from timer_service.domain.delivery import Answered
from timer_service.domain.errors import StoreBusy
from timer_service.ports.audit import Action
from timer_service.testing.audit import MemoryAudit

KEY = {"tenant": "acme", "id": "order-1"}


class BrokenAudit(MemoryAudit):
    async def record(self, *actions: Action) -> int:
        raise StoreBusy("locked")


def timer_screen(site: Site, audit: MemoryAudit) -> TimerScreen:
    use_case = explanations(site.store, site.clock)
    past, auditor = Past(audit, site.store.insight), Auditor(audit, lambda: at(0))
    letters = LetterDesk(NoBroker(site.store).letter_box, site.timers, Subjects("timer"), auditor)
    return TimerScreen(site.timers, site.deliveries, use_case, letters, past, auditor)


async def shown(audit: MemoryAudit, user: User = ADMIN) -> list[dict[str, Any]]:
    model = (await ActivityScreen(audit).show(visit(user))).model
    actions: list[dict[str, Any]] = model["actions"]
    return actions


async def test_a_cancellation_can_be_taken_back_from_what_was_noted() -> None:
    audit = MemoryAudit()
    async with open_site() as site:
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": "2026-01-01T12:02:00Z"})
        screen = timer_screen(site, audit)
        await screen.cancel(visit(form={**KEY, "reason": "a <b>mistake</b>"}))
        [action] = await shown(audit)
        await screen.undo(visit(form={"n": str(action["number"])}))
        timer = (await site.ask("GET", "/v1/timers/order-1")).json["timer"]

    assert (action["actor"], action["role"], action["outcome"]) == ("root", "admin", "cancelled")
    assert action["before"] == "Scheduled, due 2026-01-01T12:02:00.000Z, generation 1"
    assert action["after"] == "Cancelled, due 2026-01-01T12:02:00.000Z, generation 1"
    assert (timer["state"], timer["dueAt"]) == ("Scheduled", "2026-01-01T12:02:00.000Z")
    newest = (await shown(audit))[0]
    assert (newest["action"], newest["outcome"], newest["undo_due"]) == ("undo", "scheduled", None)
    assert "<b>mistake" not in await rendered(await ActivityScreen(audit).show(visit()))


async def test_what_has_changed_since_is_not_undone() -> None:
    audit = MemoryAudit()
    async with open_site() as site:
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": "2026-01-01T12:02:00Z"})
        screen = timer_screen(site, audit)
        await screen.move(visit(form={**KEY, "due": "2026-01-01T12:03:00Z"}))
        await screen.move(visit(form={**KEY, "due": "2026-01-01T12:04:00Z"}))
        newest, older = await shown(audit)

        done = [await screen.undo(visit(form={"n": str(each["number"])})) for each in (older, newest)]
        timer = (await site.ask("GET", "/v1/timers/order-1")).json["timer"]

    assert [each.to.rpartition("=")[2] for each in done] == ["changed", "rescheduled"]
    assert timer["dueAt"] == "2026-01-01T12:03:00.000Z"


async def test_every_action_is_noted_with_what_was_there_before() -> None:
    pages = await Pages(is_dev=True).open()
    await ask(pages.site.store, "failed")
    await fire(pages.site.store)
    await attempt(pages.site.store, Answered(410), "failed")
    await pages.have(schedule("tried", 60))

    await pages.post("schedule", {"tenant": "acme", "id": "tried", "delay": "90"})
    await pages.post("retry", {"tenant": "acme", "id": "failed"})
    await pages.post("abandon", {"tenant": "acme", "id": "failed"})

    noted = (await pages.get("activity?format=json")).json["actions"]
    assert [(each["action"], each["before"], each["after"]) for each in reversed(noted)] == [
        (
            "schedule",
            "Scheduled, due 2026-01-01T12:01:00.000Z, generation 1",
            "Scheduled, due 2026-01-01T12:01:30.000Z, generation 2",
        ),
        ("retry", "callback Failed after 1 attempt", ""),
        ("abandon", "callback Waiting after 1 attempt", ""),
    ]


async def test_a_callback_that_has_arrived_or_ended_is_left_as_it_is() -> None:
    pages = await Pages().open()
    for name, answer in (("arrived", 204), ("failed", 410)):
        await ask(pages.site.store, name)
        await fire(pages.site.store)
        await attempt(pages.site.store, Answered(answer), name)

    shown = [
        (await pages.get(f"timer?tenant=acme&id={name}")).body.decode() for name in ("arrived", "failed")
    ]
    again = await pages.post("retry", {"tenant": "acme", "id": "arrived"})
    given_up = await pages.post("abandon", {"tenant": "acme", "id": "failed"})

    assert ["Send again" in each for each in shown] == [False, True]
    assert [each.headers["location"].rpartition("=")[2] for each in (again, given_up)] == ["unchanged"] * 2
    noted = (await pages.get("activity?format=json")).json["actions"]
    assert [each["outcome"] for each in noted] == ["unchanged"] * 2


async def test_callbacks_that_are_sent_again_together_are_one_action_of_a_receiver() -> None:
    pages = await Pages().open()
    for name in ("one", "two"):
        await ask(pages.site.store, name)
    await fire(pages.site.store)
    for name in ("one", "two"):
        await attempt(pages.site.store, Answered(410), name)
    [group] = (await pages.get("refused?format=json")).json["failed"]

    await pages.post("refused-retry", {"tenant": "acme", "origin": group["origin"]})

    [noted] = (await pages.get("activity?format=json")).json["actions"]
    assert (noted["subject"], noted["before"], noted["outcome"]) == (
        f"callbacks to {group['origin']}",
        "2 callbacks Failed",
        "2 retried",
    )
    # It is about no single timer, so it leads to none.
    assert 'href="timer?' not in (await pages.get("activity")).body.decode()
    assert (await pages.get("refused?format=json")).json["failed"] == []


async def test_an_action_stands_although_it_cannot_be_noted() -> None:
    async with open_site() as site:
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": "2026-01-01T12:02:00Z"})
        done = await timer_screen(site, BrokenAudit()).cancel(visit(form=KEY))

    assert done.to.endswith("done=cancelled")


async def test_who_tries_on_and_on_what_is_not_theirs_does_not_fill_the_disk() -> None:
    audit, elapsed_s = MemoryAudit(), 0.0
    auditor = Auditor(audit, lambda: at(0), lambda: elapsed_s)
    kim, ann = (User(name, SCOPES_OF[Role.VIEWER], None) for name in ("kim", "ann"))

    for _ in range(1_000):
        await auditor.refused(visit(kim), "cancel", "viewers may not")
    await auditor.refused(visit(ann), "cancel", "viewers may not")
    elapsed_s = 60.0
    await auditor.refused(visit(kim), "cancel", "viewers may not")

    names = [action.actor for action in await audit.page(None, None, 100)]
    assert Counter(names) == {"kim": REFUSED_PER_MINUTE + 1, "ann": 1}


async def test_others_actions_and_refused_tries_are_shown_to_those_who_see_every_tenant_only() -> None:
    audit = MemoryAudit()
    auditor = Auditor(audit, lambda: at(0))
    kim = User("kim", SCOPES_OF[Role.VIEWER], frozenset({GLOBEX}))
    await auditor.note(ADMIN, "cancel", "cancelled", tenant=ACME, subject="order-1")
    await auditor.note(ADMIN, "cancel", "cancelled", tenant=GLOBEX, subject="order-2")
    await auditor.refused(visit(kim), "cancel", "viewers may not")

    assert [action["subject"] for action in await shown(audit, kim)] == ["order-2"]
    everything = await shown(audit)
    told = [(each["actor"], each["outcome"], each["reason"]) for each in everything]
    assert told == [("kim", "refused", "viewers may not"), *[("root", "cancelled", "")] * 2]
