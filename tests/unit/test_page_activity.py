"""Activity: every change on the page leaves who, what, how it was before, and a way back."""

from typing import Any

from tests.support.explanations import explanations
from tests.support.rest import Site, open_site
from tests.support.timers import ACME, GLOBEX, at
from tests.unit.test_page_refused import ADMIN, rendered, visit
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.screens.activity import ActivityScreen
from timer_service.adapters.http.pages.screens.timer import TimerScreen
from timer_service.adapters.http.pages.visit import SCOPES_OF, Role, User
from timer_service.domain.errors import StoreBusy
from timer_service.ports.audit import Action
from timer_service.testing.audit import MemoryAudit

KEY = {"tenant": "acme", "id": "order-1"}


class BrokenAudit(MemoryAudit):
    async def record(self, action: Action) -> None:
        raise StoreBusy("locked")


def timer_screen(site: Site, audit: MemoryAudit) -> TimerScreen:
    use_case = explanations(site.store, site.clock)
    return TimerScreen(site.timers, site.deliveries, use_case, Auditor(audit, lambda: at(0)))


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
        await screen.move(visit(form={**KEY, "due": action["undo_due"]}))
        timer = (await site.ask("GET", "/v1/timers/order-1")).json["timer"]

    assert (action["actor"], action["role"], action["outcome"]) == ("root", "admin", "cancelled")
    assert action["before"] == "Scheduled, due 2026-01-01T12:02:00.000Z, generation 1"
    assert (timer["state"], timer["dueAt"]) == ("Scheduled", "2026-01-01T12:02:00.000Z")
    newest = (await shown(audit))[0]
    assert (newest["action"], newest["outcome"], newest["undo_due"]) == ("move", "scheduled", None)
    assert "<b>mistake" not in rendered(await ActivityScreen(audit).show(visit()))


async def test_an_action_stands_although_it_cannot_be_noted() -> None:
    async with open_site() as site:
        await site.ask("PUT", "/v1/timers/order-1", {"dueAt": "2026-01-01T12:02:00Z"})
        done = await timer_screen(site, BrokenAudit()).cancel(visit(form=KEY))

    assert done.to.endswith("done=cancelled")


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
