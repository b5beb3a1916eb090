"""A job: how far it is, what it did to each timer, and how to stop it."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from timer_service.adapters.http.pages.auditing import BEGUN, ENDED, JOB, Auditor
from timer_service.adapters.http.pages.live import Live
from timer_service.adapters.http.pages.past import Past
from timer_service.adapters.http.pages.render import number
from timer_service.adapters.http.pages.screens.activity import action_view
from timer_service.adapters.http.pages.screens.bulk import undo_link
from timer_service.adapters.http.pages.visit import (
    PageError,
    Redirect,
    Screen,
    Stream,
    Visit,
    address,
    by_curl,
)
from timer_service.bulk import BATCH, BulkDesk, Ending
from timer_service.ports.audit import Action, Audit

PAGE: Final = 50
RUNNING: Final = "running"
UNKNOWN: Final = "unknown"
_TOTAL: Final = re.compile(rf"{BEGUN} (\d+)")
_SENTENCES: Final = {
    RUNNING: ("plain", "It is running. It goes on when you leave this page."),
    Ending.FINISHED: ("good", "Finished: every timer has its outcome."),
    Ending.STOPPED: ("warn", "Stopped: what has no outcome was not touched."),
    Ending.INTERRUPTED: (
        "warn",
        "Interrupted: the service stopped meanwhile. What has no outcome was not touched. Begin another one.",
    ),
    Ending.FAILED: ("bad", "It failed; the log says why. What has no outcome may not have been touched."),
    UNKNOWN: (
        "warn",
        (
            "No ending is noted, and this instance does not run it: another one does, or the service ended "
            f"before the job. Then up to {BATCH} more than those below were changed, and the others not."
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, as far as it is known here."""

    state: str
    total: int
    outcomes: Mapping[str, int]
    waits_for: str = ""

    def texts(self) -> dict[str, str]:
        """Return what the screen shows of it, and shows again when it has changed."""
        done = sum(self.outcomes.values())
        sums = ", ".join(f"{number(count)} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return {
            "state": self.state,
            "sentence": _SENTENCES[self.state][1],
            "done": number(done),
            "progress": str(done),
            "outcomes": sums or "–",
            "waits": f"Waits for: {self.waits_for}." if self.waits_for else "",
        }


class JobScreens:
    """Jobs that run here, and jobs of the past."""

    def __init__(self, desk: BulkDesk, live: Live, audit: Audit, past: Past, auditor: Auditor) -> None:
        self._desk = desk
        self._live = live
        self._audit = audit
        self._past = past
        self._auditor = auditor

    async def show(self, visit: Visit) -> Screen:
        """Show a job and the newest of what it did."""
        began = await self._past.job(visit, visit.query.get("n", ""))
        progress = await self._progress(began)
        before = visit.query.get("before", "")
        older = int(before) if before.isascii() and before.isdigit() and len(before) < 16 else None
        found = await self._audit.page(None, older, PAGE, began.number)
        model = {
            "job": {
                "number": began.number,
                "action": began.action.removeprefix(f"{JOB} "),
                "tenant_id": began.tenant_id,
                "at": began.at,
                "actor": began.actor,
                "role": began.role,
                "reason": began.reason,
                "subject": began.subject,
                "total": progress.total,
                "outcomes": [
                    {"outcome": outcome, "count": count}
                    for outcome, count in sorted(progress.outcomes.items())
                ],
                "is_running": progress.state == RUNNING,
            },
            "undo": await self._undo(began, progress),
            "texts": progress.texts(),
            "tone": _SENTENCES[progress.state][0],
            "actions": [action_view(action) for action in found if action.action != ENDED],
            "older": address("job", n=began.number, before=found[-1].number) if len(found) == PAGE else None,
            **({"stream": address("job-live", n=began.number)} if progress.state == RUNNING else {}),
        }
        return Screen("job.html", model, f"Job {began.number}", by_curl("job", n=began.number))

    async def live(self, visit: Visit) -> Stream:
        """Send how far it is."""
        began = await self._past.job(visit, visit.query.get("n", ""))

        async def measure() -> Mapping[str, str]:
            return (await self._progress(began)).texts()

        return self._live.follow(("job", began.number), measure)

    async def stop(self, visit: Visit) -> Redirect:
        """Have a job end after the batch that is under way."""
        began = await self._past.job(visit, visit.field("n"))
        job = self._desk.find(began.number)
        if job is None or job.ending is not None:
            raise PageError(409, "This instance is not running this job: there is nothing to stop.")
        job.stop.set()
        subject = f"job {began.number}"
        await self._auditor.note(
            visit.user, "stop", "stopping", tenant=began.tenant_id, subject=subject, was=RUNNING
        )
        return Redirect(address("job", n=began.number, done="stopping"))

    async def _undo(self, began: Action, progress: Progress) -> dict[str, Any] | None:
        """Return what of it can be undone, once it has ended, and where."""
        changed = 0 if progress.state == RUNNING else await self._past.changed_by(began.number)
        return {"changed": changed, "link": undo_link(began.number)} if changed else None

    async def _progress(self, began: Action) -> Progress:
        job = self._desk.find(began.number)
        if job is not None:
            state = RUNNING if job.ending is None else job.ending.value
            return Progress(state, job.total, dict(job.outcomes), job.waits_for)
        total = _TOTAL.match(began.outcome)
        sums, ending = Counter[str](), UNKNOWN
        for (action, outcome), count in (await self._audit.tally(began.number)).items():
            if action == ENDED:
                ending = outcome
            else:
                sums[outcome] += count
        return Progress(ending, int(total[1]) if total else 0, sums)
