"""Now: how the service is at this moment."""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any, Final

from timer_service.adapters.http.pages.counting import Due, DueDesk
from timer_service.adapters.http.pages.figures import FiguresDesk
from timer_service.adapters.http.pages.live import Live
from timer_service.adapters.http.pages.refused_today import RefusedToday
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.visit import Screen, Stream, Visit, address
from timer_service.domain.forecast import Span
from timer_service.ports.health import Health

HEADINGS: Final = {
    "worker": "TimerWorkerSilent",
    "broker": "TimerBrokerDisconnected",
    "store": "TimerStoreUnavailable",
    "disk": "TimerDiskFillsUp",
    "publish": "TimerPublishFailures",
    "deliveries": "TimerCallbacksOverdue",
    "clock": "TimerClockStepHeld",
    "command stream": "Commands pile up in TIMER_COMMANDS",
}
"""Part to the heading of docs/runbook.md that helps."""
OTHERWISE: Final = "It starts, but is not ready"


class NowScreen:
    """The first screen."""

    def __init__(
        self,
        desk: FiguresDesk,
        due: DueDesk,
        live: Live,
        health: Callable[[], Health],
        refused: RefusedToday,
    ) -> None:
        self._desk = desk
        self._due = due
        self._live = live
        self._health = health
        self._refused = refused

    async def show(self, visit: Visit) -> Screen:
        """Show the health in one sentence, the figures behind it, and what comes next."""
        tenants = visit.user.tenants
        figures, lists = await self._desk.figures(tenants), await self._desk.lists(tenants)
        due = await self._due.due(visit.now, Span.HOUR, tenants)
        health = self._health()
        history = list(self._live.history) if tenants is None else []
        recent = [sample.recent for sample in history if sample.recent is not None]
        model: dict[str, Any] = {
            "is_well": figures.is_well,
            # What to do about them is for those who run the service: others are told in the sentence.
            "problems": [*_problems(health)] if tenants is None else [],
            "refused": await self._refused_today(visit),
            "figures": figures.texts(),
            "has_rates": figures.recent is not None,
            "history": {
                "commandsPerS": [minute.commands_per_s for minute in recent],
                "firedPerS": [minute.fired_per_s for minute in recent],
                "lateP50": [minute.lateness_p50_s for minute in recent],
                "lateP99": [minute.lateness_p99_s for minute in recent],
                "pending": [sample.pending for sample in history],
            },
            "next_due": [timer_row(timer) for timer in lists.next_due],
            "last_fired": [timer_row(timer) for timer in lists.last_fired],
            "fired_is_cut": lists.is_cut,
            "load": [] if due is None else _minutes(due),
            "stream": address("live"),
        }
        refresh = {"refresh": "1"} if due is None else {}
        return Screen("now.html", model, "Now", "timer-service status", headers=refresh)

    async def _refused_today(self, visit: Visit) -> dict[str, Any] | None:
        """Return what was refused since midnight of the zone that is shown; None if that is not known."""
        local = visit.now.astimezone(visit.look.zone or UTC)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        found = await self._refused.count(visit.user.tenants, midnight)
        if found is None:
            return None
        reasons = [{"reason": reason, "count": count} for reason, count in found.by_reason.items()]
        return {"reasons": reasons, "count": sum(found.by_reason.values()), "is_capped": found.is_capped}

    async def live(self, visit: Visit) -> Stream:
        """Send the figures as they change."""
        return self._live.stream(visit.user.tenants)


def _problems(health: Health) -> Iterator[dict[str, str]]:
    """Return what is wrong, each with the heading of the documents that helps."""
    stuck = {} if health.stuck is None else {"worker": f"it {health.stuck}"}
    for part, text in {**stuck, **health.problems, **health.warnings}.items():
        heading = HEADINGS.get(part, OTHERWISE)
        yield {"part": part, "text": text, "heading": heading, "anchor": anchor_of(heading)}


def anchor_of(heading: str) -> str:
    """Return where the runbook has a heading."""
    kept = "".join(each for each in heading.lower() if each.isalnum() or each in " -_")
    return "docs/runbook.md#" + kept.replace(" ", "-")


def _minutes(due: Due) -> list[dict[str, Any]]:
    spans = zip(itertools.pairwise(due.edges), due.totals, strict=True)
    return [{"since": since, "until": until, "count": count} for (since, until), count in spans]
