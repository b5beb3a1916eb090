"""Now: how the service is at this moment."""

from collections.abc import Callable
from typing import Any

from timer_service.adapters.http.pages.figures import MINUTE, FiguresDesk
from timer_service.adapters.http.pages.live import Live
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.visit import Screen, Stream, Visit, address
from timer_service.ports.health import Health


class NowScreen:
    """The first screen."""

    def __init__(self, desk: FiguresDesk, live: Live, health: Callable[[], Health]) -> None:
        self._desk = desk
        self._live = live
        self._health = health

    async def show(self, visit: Visit) -> Screen:
        """Show the health in one sentence, the figures behind it, and what comes next."""
        tenants = visit.user.tenants
        figures, lists = await self._desk.figures(tenants), await self._desk.lists(tenants)
        health = self._health()
        history = list(self._live.history) if tenants is None else []
        recent = [sample.recent for sample in history if sample.recent is not None]
        model: dict[str, Any] = {
            "is_well": figures.is_well,
            "problems": health.problems,
            "warnings": health.warnings,
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
            "load": [
                {
                    "since": lists.load_from + nth * MINUTE,
                    "until": lists.load_from + (nth + 1) * MINUTE,
                    "count": count,
                }
                for nth, count in enumerate(lists.load)
            ],
            "stream": address("live"),
        }
        return Screen("now.html", model, "Now", "timer-service status")

    async def live(self, visit: Visit) -> Stream:
        """Send the figures as they change."""
        return self._live.stream(visit.user.tenants)
