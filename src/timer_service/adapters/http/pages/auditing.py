"""Notes what people do on the page: in the log at once, and in the table of actions."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from timer_client.wire import format_time
from timer_service.adapters.http.pages.visit import User, Visit
from timer_service.domain.errors import TransientError
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import Timer
from timer_service.ports.audit import Action, Audit

MAX_TEXT: Final = 500
"""Characters of what others wrote that are kept of one action."""

log = structlog.get_logger(__name__)


class Auditor:
    """Every change that is made on the page, or tried, goes through here."""

    def __init__(self, audit: Audit, now: Callable[[], datetime]) -> None:
        self._audit = audit
        self._now = now

    async def note(
        self,
        user: User,
        action: str,
        outcome: str,
        *,
        tenant: TenantId | None = None,
        subject: str = "",
        before: Timer | None = None,
        reason: str = "",
    ) -> None:
        """Note an action after it was done; what cannot be kept is in the log all the same."""
        done = Action(
            self._now(),
            user.name[:MAX_TEXT] or "anybody on this machine",
            user.role.value if user.role else "",
            action,
            tenant,
            subject[:MAX_TEXT],
            "" if before is None else _as_it_was(before),
            outcome,
            reason[:MAX_TEXT],
        )
        log.info(
            "page.action",
            actor=done.actor,
            role=done.role,
            action=action,
            tenant=tenant,
            subject=done.subject,
            before=done.before,
            outcome=outcome,
            reason=done.reason,
        )
        try:
            await self._audit.record(done)
        except TransientError as error:
            log.warning("page.action_not_kept", action=action, detail=str(error))

    async def refused(self, visit: Visit, path: str, why: str) -> None:
        """Note what somebody may not do."""
        await self.note(visit.user, path, "refused", reason=why)


def _as_it_was(timer: Timer) -> str:
    due = "" if timer.due_at is None else f", due {format_time(timer.due_at)}"
    return f"{timer.state.value}{due}, generation {timer.generation}"
