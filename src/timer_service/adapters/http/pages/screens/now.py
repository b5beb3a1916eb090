"""Now: how the service is at this moment."""

from collections.abc import Callable

from timer_service.adapters.http.pages.visit import Screen, Visit
from timer_service.ports.health import Health
from timer_service.timers import Status, Timers


class NowScreen:
    """The first screen."""

    def __init__(self, timers: Timers, health: Callable[[], Health]) -> None:
        self._timers = timers
        self._health = health

    async def show(self, _: Visit) -> Screen:
        """Show the health in one sentence, and the figures behind it."""
        status, health = await self._timers.status(), self._health()
        model = {
            "sentence": _sentence(status, health),
            "problems": health.problems,
            "warnings": health.warnings,
            "pending": status.pending,
            "overdue": status.overdue,
            "oldest_overdue_s": status.oldest_overdue_s,
            "commands_per_s": status.recent.commands_per_s,
            "fired_per_s": status.recent.fired_per_s,
            "late_p50_s": status.recent.lateness_p50_s,
            "late_p99_s": status.recent.lateness_p99_s,
        }
        return Screen("now.html", model, "Now", "timer-service status")


def _sentence(status: Status, health: Health) -> str:
    if health.stuck is not None:
        return f"The worker is stuck: it {health.stuck}. Restart the service."
    if health.problems:
        return "Timers wait: " + "; ".join(f"{part}: {text}" for part, text in health.problems.items())
    if status.overdue:
        return f"All parts work; {status.overdue:,} timers are due and on their way."
    return "All is well: nothing is overdue."
