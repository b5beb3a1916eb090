"""What was done on the page, as far as it can be undone."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from timer_client.wire import parse_time
from timer_service.adapters.http.pages.auditing import JOB, told
from timer_service.adapters.http.pages.visit import PageError, Visit
from timer_service.domain.messages import ServiceCallId, TimerKey
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.audit import Action, Audit
from timer_service.ports.timer_insight import TimerInsight

READ: Final = 500
"""Notes and timers that are read together."""
_DUE: Final = re.compile(r"^Scheduled, due (\S+),")
_DEEDS: Final = frozenset({"cancel", "move", "fire", "undo", "replay"})
_DID: Final = frozenset({Outcome.CANCELLED.value, Outcome.RESCHEDULED.value})


def undo_due(action: Action) -> str | None:
    """Return the due time that takes an action back; None if nothing does."""
    found = _DUE.match(action.before)
    return found[1] if found and _can_be_undone(action.action, action.outcome) else None


def is_as_left(action: Action, timer: Timer) -> bool:
    """Return whether nothing has happened to a timer since; older notes do not say how it was left."""
    return action.after in {"", told(timer)}


def _can_be_undone(action: str, outcome: str) -> bool:
    return outcome in _DID and action.partition(" ")[0] in _DEEDS


class Past:
    """The notes, and the timers that they are about."""

    def __init__(self, audit: Audit, insight: TimerInsight) -> None:
        self._audit = audit
        self._insight = insight

    async def action(self, visit: Visit, text: str) -> Action:
        """Return a note; one that is not of the visitor's tenants is not found. Raises PageError."""
        is_number = text.isascii() and text.isdigit() and len(text) < 16
        found = await self._audit.get(int(text)) if is_number else None
        tenants = visit.user.tenants
        if found is None or (tenants is not None and found.tenant_id not in tenants):
            raise PageError(404, "There is no such action or job.")
        return found

    async def job(self, visit: Visit, text: str) -> Action:
        """Return the note of a job's beginning. Raises PageError."""
        found = await self.action(visit, text)
        if not found.action.startswith(f"{JOB} "):
            raise PageError(404, "There is no such job.")
        return found

    async def changed_by(self, job: int) -> int:
        """Count what a job did that can be undone, unless something has happened since."""
        tally = await self._audit.tally(job)
        return sum(count for noted, count in tally.items() if _can_be_undone(*noted))

    async def as_left_by(self, job: int, at_most: int) -> Mapping[TimerKey, tuple[Timer, datetime]]:
        """Return timers that are still as a job left them, each with the due time that it had before."""
        found: dict[TimerKey, tuple[Timer, datetime]] = {}
        before: int | None = None
        while len(found) < at_most:
            notes = await self._audit.page(None, before, min(READ, at_most), job)
            if not notes:
                break
            before = notes[-1].number
            found |= await self._as_left([note for note in notes if undo_due(note)])
        return dict(list(found.items())[:at_most])

    async def _as_left(self, notes: list[Action]) -> dict[TimerKey, tuple[Timer, datetime]]:
        keyed = {(note.tenant_id, ServiceCallId(note.subject)): note for note in notes if note.tenant_id}
        timers = await self._insight.get([(tenant, name) for tenant, name in keyed if tenant])
        return {
            key: (timer, parse_time(undo_due(keyed[key]) or ""))
            for key, timer in timers.items()
            if is_as_left(keyed[key], timer)
        }
