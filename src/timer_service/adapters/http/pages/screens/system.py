"""System: this instance, its store, its broker, and the settings as a person may see them."""

from collections.abc import Callable, Mapping

from timer_service.adapters.http.pages.visit import Redirect, Screen, Visit, address
from timer_service.ports.health import Health
from timer_service.timers import Timers


class SystemScreen:
    """What the service runs on."""

    def __init__(
        self,
        timers: Timers,
        health: Callable[[], Health],
        settings: Mapping[str, str],
        store: str,
        held_step_s: Callable[[], float],
    ) -> None:
        self._timers = timers
        self._health = health
        self._settings = settings
        self._store = store
        self._held_step_s = held_step_s

    async def show(self, _: Visit) -> Screen:
        """Show the parts and how they are."""
        status, health = await self._timers.status(), self._health()
        model = {
            "instance": status.instance,
            "version": status.version,
            "store": self._store,
            "store_bytes": status.store_bytes,
            "broker": status.broker,
            "problems": health.problems,
            "warnings": health.warnings,
            "held_step_s": self._held_step_s(),
            "settings": {name: value for name, value in self._settings.items() if value},
        }
        return Screen("system.html", model, "System", "timer-service status")

    async def accept_clock_step(self, _: Visit) -> Redirect:
        """Follow the machine's clock again after a leap."""
        await self._timers.accept_clock_step()
        return Redirect(address("system", done="accepted"))
