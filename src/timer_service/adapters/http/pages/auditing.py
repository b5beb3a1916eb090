"""Notes what people do on the page: in the log at once, and in the table of actions."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import structlog

from timer_client.wire import format_time
from timer_service.adapters.http.pages.visit import User, Visit
from timer_service.bulk import Did, Ending, Job
from timer_service.domain.admission import RateLimit
from timer_service.domain.errors import TransientError
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import Timer
from timer_service.ports.audit import Action, Audit

MAX_TEXT: Final = 500
"""Characters of what others wrote that are kept of one action."""
REFUSED_PER_MINUTE: Final = 10
"""Notes of what one visitor may not do."""

JOB: Final = "bulk"
BEGUN: Final = "begun with"
ENDED: Final = "ended"
"""Words by which the notes of a job are found again."""

log = structlog.get_logger(__name__)


class Auditor:
    """Every change that is made on the page, or tried, goes through here."""

    def __init__(
        self, audit: Audit, now: Callable[[], datetime], elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._audit = audit
        self._now = now
        self._elapsed_s = elapsed_s
        self._refusals = RateLimit(REFUSED_PER_MINUTE / 60, REFUSED_PER_MINUTE)

    async def note(
        self,
        user: User,
        action: str,
        outcome: str,
        *,
        tenant: TenantId | None = None,
        subject: str = "",
        before: Timer | None = None,
        after: Timer | None = None,
        reason: str = "",
        job: int | None = None,
        was: str = "",
    ) -> None:
        """Note an action after it was done; what cannot be kept is in the log all the same.

        `was` says how it was before where that is not a timer.
        """
        done = _action(self._now(), user, action, outcome, tenant, subject, before, reason, job, after)
        done = replace(done, before=done.before or was)
        _log(done)
        try:
            await self._audit.record(done)
        except TransientError as error:
            log.warning("page.action_not_kept", action=action, detail=str(error))

    async def refused(self, visit: Visit, path: str, why: str) -> None:
        """Note what somebody may not do; who tries on and on would fill the disk with it."""
        if not self._refusals.wait_s(visit.user.name, self._elapsed_s()):
            await self.note(visit.user, path, "refused", reason=why)

    def of_job(
        self, user: User, action: str, tenant: TenantId | None, subject: str, reason: str
    ) -> "JobNotes":
        """Return what notes a job that somebody begins."""
        return JobNotes(self._audit, self._now, user, action, tenant, subject, reason)


@dataclass(frozen=True, slots=True)
class JobNotes:
    """Notes a job: that it began, what it did to each timer, how it ended."""

    audit: Audit
    now: Callable[[], datetime]
    user: User
    action: str
    tenant: TenantId | None
    subject: str
    """Which timers: their filter, as an address has it."""
    reason: str

    async def begin(self, total: int) -> int:
        """Note who begins what; a job that cannot be noted does not begin."""
        began = self._noted(f"{JOB} {self.action}", f"{BEGUN} {total}", self.tenant, self.subject, None)
        _log(began)
        return await self.audit.record(began)

    async def keep(self, job: Job, batch: Sequence[Did]) -> None:
        """Note each timer as it was, in one transaction."""
        await self.audit.record(*(self._noted_of(job, did) for did in batch))

    async def end(self, job: Job, error: Exception | None) -> None:
        """Note the ending, with the sum of what was done."""
        assert job.ending is not None
        if error is not None:
            log.error("page.job_failed", exc_info=error)
        await self.close(job.number, job.ending, job.outcomes)

    async def close(self, number: int, ending: Ending, outcomes: Mapping[str, int]) -> None:
        """Note that a job is over."""
        sums = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        ended = self._noted(ENDED, ending.value, self.tenant, sums, None, number)
        _log(ended)
        await self.audit.record(ended)

    def _noted_of(self, job: Job, did: Did) -> Action:
        tenant, subject = did.before.key
        return self._noted(self.action, did.outcome, tenant, subject, did.before, job.number, did.after)

    def _noted(
        self,
        action: str,
        outcome: str,
        tenant: TenantId | None,
        subject: str,
        before: Timer | None,
        job: int | None = None,
        after: Timer | None = None,
    ) -> Action:
        return _action(
            self.now(), self.user, action, outcome, tenant, subject, before, self.reason, job, after
        )


def _action(
    at: datetime,
    user: User,
    action: str,
    outcome: str,
    tenant: TenantId | None,
    subject: str,
    before: Timer | None,
    reason: str,
    job: int | None = None,
    after: Timer | None = None,
) -> Action:
    return Action(
        at,
        user.name[:MAX_TEXT] or "anybody on this machine",
        user.role.value if user.role else "",
        action,
        tenant,
        subject[:MAX_TEXT],
        "" if before is None else told(before),
        outcome,
        reason[:MAX_TEXT],
        job,
        _left(before, after),
    )


def _log(done: Action) -> None:
    log.info(
        "page.action",
        actor=done.actor,
        role=done.role,
        action=done.action,
        tenant=done.tenant_id,
        subject=done.subject,
        before=done.before,
        after=done.after,
        outcome=done.outcome,
        reason=done.reason,
        job=done.job,
    )


def _left(before: Timer | None, after: Timer | None) -> str:
    """Return what an action made of a timer; empty if it left it alone."""
    if after is None or (before is not None and after.version == before.version):
        return ""
    return told(after)


def told(timer: Timer) -> str:
    """Return a timer in the words of the notes."""
    due = "" if timer.due_at is None else f", due {format_time(timer.due_at)}"
    return f"{timer.state.value}{due}, generation {timer.generation}"
