"""Timers: lists over tenants, page by page, and ways to one timer."""

import shlex
from typing import Final

from timer_client import wire
from timer_service.adapters.http.pages.places import filter_values, read_filter, read_place, write_place
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.visit import PageError, Redirect, Screen, Visit, address
from timer_service.domain.messages import ServiceCallId
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.timer_insight import TimerFilter, TimerInsight

PAGE: Final = 50
MAX_COUNTED: Final = 10_000
MAX_FOUND: Final = 50


class TimersScreen:
    """The lists."""

    def __init__(self, insight: TimerInsight) -> None:
        self._insight = insight

    async def show(self, visit: Visit) -> Screen:
        """Show a page of what the address asks for."""
        values = visit.query
        wanted = read_filter(visit, values)
        after, before = read_place(values.get("after")), read_place(values.get("before"))
        if after is not None and before is not None:
            raise PageError(400, "Only one of after and before says where to go on.")
        page = await self._insight.page(wanted, PAGE, after=after, before=before)
        chosen = filter_values(values)
        model = {
            "filter": {name: values.get(name, "") for name in ("tenant", "from", "to", "correlation")},
            "state": wanted.state.value,
            "states": [(state.value, _in_state(chosen, state)) for state in TimerState],
            "by_end": wanted.by_end,
            "count": await self._insight.count(wanted, MAX_COUNTED),
            "max_counted": MAX_COUNTED,
            "timers": [timer_row(timer) for timer in page.timers],
            "previous": page.before and address("timers", **chosen, before=write_place(page.before)),
            "next": page.after and address("timers", **chosen, after=write_place(page.after)),
            "first": address("timers", **chosen) if after or before else None,
        }
        return Screen("timers.html", model, "Timers", _command(wanted))

    async def find(self, visit: Visit) -> Screen | Redirect:
        """Go to the timer of an id, or show what there is."""
        name = visit.query.get("id", "").strip()
        if not wire.is_service_call_id(name):
            raise PageError(400, "An id has 1 to 255 characters, none of them white space or control.")
        found = await self._insight.find(ServiceCallId(name), visit.user.tenants, MAX_FOUND)
        if len(found) == 1:
            return Redirect(address("timer", tenant=found[0].tenant_id, id=name))
        similar: list[Timer] = []
        if not found and visit.user.tenants is not None:
            for tenant in sorted(visit.user.tenants):
                similar += await self._insight.search(tenant, name, MAX_FOUND)
        model = {
            "id": name,
            "timers": [timer_row(timer) for timer in found],
            "similar": [timer_row(timer) for timer in similar[:MAX_FOUND]],
        }
        return Screen("find.html", model, "Find", status=200 if found or similar else 404)


def _in_state(chosen: dict[str, str], state: TimerState) -> str:
    return address("timers", **{**chosen, "state": state.value})


def _command(wanted: TimerFilter) -> str:
    """Return the command for the same list; there is one for each tenant only."""
    if wanted.tenants is None or len(wanted.tenants) != 1:
        return "timer-service list --tenant TENANT --state " + wanted.state.value
    words = ["timer-service", "list", "--tenant", *wanted.tenants, "--state", wanted.state.value]
    if wanted.correlation_id is not None:
        words += ["--correlation-id", wanted.correlation_id]
    for option, moment in (("--due-from", wanted.since), ("--due-before", wanted.until)):
        if moment is not None:
            words += [option, wire.format_time(moment)]
    return shlex.join([*words, "--limit", str(PAGE)])
