"""Activity: who did what on the page, and how to undo it."""

import re
from typing import Any, Final

from timer_service.adapters.http.pages.visit import Screen, Visit, address
from timer_service.ports.audit import Action, Audit

PAGE: Final = 50
_DUE: Final = re.compile(r"^Scheduled, due (\S+),")
UNDONE_BY_A_DUE_TIME: Final = frozenset({"cancel", "move"})


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
        model = {"tenant": tenant or "", "actions": [_view(each) for each in found], "older": older}
        return Screen("activity.html", model, "Activity")


def _view(action: Action) -> dict[str, Any]:
    return {
        "number": action.number,
        "at": action.at,
        "actor": action.actor,
        "role": action.role,
        "action": action.action,
        "tenant_id": action.tenant_id,
        "subject": action.subject,
        "before": action.before,
        "outcome": action.outcome,
        "reason": action.reason,
        "undo_due": undo_due(action),
    }


def undo_due(action: Action) -> str | None:
    """Return the due time that takes an action back; None if nothing does."""
    found = _DUE.match(action.before)
    did = action.outcome in {"cancelled", "rescheduled"}
    return found[1] if found and did and action.action in UNDONE_BY_A_DUE_TIME else None
