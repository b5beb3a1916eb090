"""Dev: move the virtual clock, see what fires, schedule something. Only in `timer-service dev`."""

from datetime import datetime, timedelta
from typing import Final

from timer_client import wire
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.places import WRONG_CORRELATION, WRONG_ID, read_moment
from timer_service.adapters.http.pages.render import span
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.screens.timer import read_due
from timer_service.adapters.http.pages.visit import PageError, Redirect, Screen, Visit, address
from timer_service.domain.messages import CorrelationId, ScheduleTimer, ServiceCallId, TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.time_travel import TimeTravel
from timer_service.ports.timer_insight import TimerFilter, TimerInsight
from timer_service.timers import NEWEST, Timers

TAPE: Final = 30
STEPS: Final = {"1s": 1, "1min": 60, "1h": 3_600, "1d": 86_400}
"""How far one step goes, in seconds."""


class DevScreen:
    """For those who try the service out."""

    def __init__(
        self, timers: Timers, insight: TimerInsight, travel: TimeTravel | None, auditor: Auditor
    ) -> None:
        self._timers = timers
        self._insight = insight
        self._travel = travel
        self._auditor = auditor

    async def show(self, visit: Visit) -> Screen:
        """Show the clock, what comes next and the tape of what fired."""
        pending = await self._insight.page(TimerFilter(), 10)
        tape = await self._insight.page(TimerFilter(state=TimerState.REACHED), TAPE)
        model = {
            "is_virtual": self._travel is not None,
            "steps": {step: span(seconds) for step, seconds in STEPS.items()},
            "clock": visit.now,
            "next_due": [timer_row(timer) for timer in pending.timers],
            "tape": [timer_row(timer) for timer in tape.timers],
            "fired_is_cut": tape.after is not None,
        }
        command = "timer-service clock advance --next" if self._travel else "timer-service watch"
        return Screen("dev.html", model, "Dev", command)

    async def move_clock(self, visit: Visit) -> Redirect:
        """Step, jump to the next due time, or run until a moment."""
        if self._travel is None:
            raise PageError(409, "Only `timer-service dev --clock virtual` has a clock to move.")
        step, until = visit.field("step"), visit.field("until")
        try:
            if step == "next":
                await self._travel.go_to_next()
            else:
                await self._travel.go_to(_target(step, until, visit))
        except ValueError as error:
            raise PageError(409, str(error)) from error
        was = f"clock at {wire.format_time(visit.now)}"
        await self._auditor.note(visit.user, "move clock", "moved", subject=step or until, was=was)
        return Redirect(address("dev", done="moved"))

    async def schedule(self, visit: Visit) -> Redirect:
        """Schedule a timer."""
        tenant, name = visit.field("tenant").strip(), visit.field("id").strip()
        correlation = visit.field("correlation").strip() or None
        if not wire.is_tenant_id(tenant):
            raise PageError(400, f"The tenant must be {wire.TENANT_RULE}.")
        if not wire.is_service_call_id(name):
            raise PageError(400, WRONG_ID)
        if correlation is not None and not wire.is_correlation_id(correlation):
            raise PageError(400, WRONG_CORRELATION)
        key = TenantId(tenant), ServiceCallId(name)
        request = CorrelationId(correlation) if correlation else None
        before = (await self._insight.get([key])).get(key)
        settled = await self._timers.carry_out(ScheduleTimer(*key, read_due(visit), request, NEWEST))
        outcome = settled.outcome.value
        await self._auditor.note(
            visit.user,
            "schedule",
            outcome,
            tenant=key[0],
            subject=name,
            before=before,
            after=settled.timer,
        )
        return Redirect(address("dev", done=outcome))


def _target(step: str, until: str, visit: Visit) -> datetime:
    if step in STEPS:
        return visit.now + timedelta(seconds=STEPS[step])
    if not until.strip():
        raise PageError(400, "Say how far: a step, the next due time, or a moment.")
    return read_moment(until, visit.look.zone)
