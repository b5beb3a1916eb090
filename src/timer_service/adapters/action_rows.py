"""Rows of the table of actions, the same in every database."""

from datetime import datetime
from typing import Any, Final

from timer_client.wire import parse_time
from timer_service.adapters.rows import text
from timer_service.domain.messages import TenantId
from timer_service.ports.audit import Action

COLUMNS: Final = "at, actor, role, action, tenant_id, subject, before, outcome, reason, job, after"


def row(action: Action) -> tuple[Any, ...]:
    """Return an action as it is kept."""
    return (
        text(action.at),
        action.actor,
        action.role,
        action.action,
        action.tenant_id,
        action.subject,
        action.before,
        action.outcome,
        action.reason,
        action.job,
        action.after,
    )


def action(found: Any) -> Action:
    """Return the action of a row that ends with its number."""
    at, actor, role, name, tenant, subject, before, outcome, reason, job, after, number = found
    moment = at if isinstance(at, datetime) else parse_time(at)
    whose = None if tenant is None else TenantId(tenant)
    return Action(moment, actor, role, name, whose, subject, before, outcome, reason, job, after, number)
