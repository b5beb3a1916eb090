"""System: the instances, the store, the broker with its streams and readers, and the settings."""

from collections.abc import Callable, Mapping

from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.broker_desk import BrokerDesk
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
        *,
        has_broker: bool,
        broker: BrokerDesk,
        auditor: Auditor,
    ) -> None:
        self._timers = timers
        self._health = health
        self._settings = settings
        self._store = store
        self._held_step_s = held_step_s
        self._has_broker = has_broker
        self._broker = broker
        self._auditor = auditor

    async def show(self, _: Visit) -> Screen:
        """Show the parts and how they are."""
        status, health, around = await self._timers.status(), self._health(), await self._broker.around()
        model = {
            "instance": status.instance,
            "version": status.version,
            "store": self._store,
            "store_bytes": status.store_bytes,
            "broker": status.broker,
            "has_broker": self._has_broker,
            "problems": health.problems,
            "warnings": health.warnings,
            "around": around,
            "held_step_s": self._held_step_s(),
            "settings": {name: value for name, value in self._settings.items() if value},
        }
        # Others take a moment to answer; where nobody can, that is said.
        is_asking = around.instances is None and not around.trouble
        refresh = {"refresh": "1"} if is_asking else {}
        return Screen("system.html", model, "System", "timer-service status", headers=refresh)

    async def accept_clock_step(self, visit: Visit) -> Redirect:
        """Follow the machine's clock again after a leap."""
        step_s = await self._timers.accept_clock_step()
        await self._auditor.note(visit.user, "accept clock step", "accepted", subject=f"{step_s:+.3f} s")
        return Redirect(address("system", done="accepted"))
