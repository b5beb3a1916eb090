"""Activity: who did what on the page, and how to undo it."""

from typing import Any, Final

from timer_service.adapters.http.pages.auditing import JOB
from timer_service.adapters.http.pages.past import undo_due
from timer_service.adapters.http.pages.visit import Screen, Visit, address, by_curl
from timer_service.ports.audit import Action, Audit

PAGE: Final = 50


class ActivityScreen:
    """The newest actions first."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def show(self, visit: Visit) -> Screen:
        """Show a page of what the visitor may see."""
        tenant = visit.tenant(visit.query.get("tenant"))
        scope = visit.user.tenants if tenant is None else frozenset({tenant})
        before = visit.query.get("before", "")
        number = int(before) if before.isascii() and before.isdigit() and len(before) < 16 else None
        found = await self._audit.page(scope, number, PAGE)
        older = address("activity", tenant=tenant, before=found[-1].number) if len(found) == PAGE else None
        model = {"tenant": tenant or "", "actions": [action_view(each) for each in found], "older": older}
        return Screen("activity.html", model, "Activity", by_curl("activity", tenant=tenant, before=number))


def action_view(action: Action) -> dict[str, Any]:
    """Return what a list shows of an action."""
    return {
        "number": action.number,
        "is_job": action.action.startswith(f"{JOB} "),
        "at": action.at,
        "actor": action.actor,
        "role": action.role,
        "action": action.action,
        "tenant_id": action.tenant_id,
        "subject": action.subject,
        "before": action.before,
        "after": action.after,
        "outcome": action.outcome,
        "reason": action.reason,
        "undo_due": undo_due(action),
    }
