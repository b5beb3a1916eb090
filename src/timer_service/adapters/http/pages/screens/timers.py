"""Timers: lists over tenants, page by page, and ways to one timer."""

import shlex
from collections.abc import Mapping
from typing import Final

from timer_client import wire
from timer_service.adapters.http.pages.places import (
    WRONG_ID,
    filter_values,
    read_filter,
    read_place,
    write_place,
)
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.screens.bulk import links
from timer_service.adapters.http.pages.visit import PageError, Redirect, Screen, Visit, address, by_curl
from timer_service.bulk import BulkDesk
from timer_service.domain.api_keys import Scope
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.timer_insight import Insight, TimerFilter

PAGE: Final = 50
MAX_COUNTED: Final = 10_000
MAX_FOUND: Final = 50
MAX_SEARCHED: Final = 100
"""Tenants among whose ids a beginning is looked for."""


class TimersScreen:
    """The lists."""

    def __init__(self, insight: Insight, desk: BulkDesk) -> None:
        self._insight = insight
        self._desk = desk

    async def show(self, visit: Visit) -> Screen | Redirect:
        """Show a page of what the address asks for; an id is looked up instead."""
        values = visit.query
        if values.get("id", "").strip():
            chosen = {name: values.get(name, "").strip() for name in ("id", "tenant")}
            return Redirect(address("find", **chosen))
        wanted = read_filter(visit, values)
        after, before = read_place(values.get("after")), read_place(values.get("before"))
        if after is not None and before is not None:
            raise PageError(400, "Only one of after and before may be given.")
        page = await self._insight.page(wanted, PAGE, after=after, before=before)
        chosen = filter_values(values)
        model = {
            "filter": {name: values.get(name, "") for name in ("tenant", "from", "to", "correlation")},
            "state": wanted.state.value,
            "states": [(state.value, _in_state(chosen, state)) for state in TimerState],
            "by_end": wanted.by_end,
            "can_change": wanted.state is TimerState.SCHEDULED and Scope.WRITE in visit.user.scopes,
            "bulk": [*reversed(links(chosen))],
            "jobs": [
                {"number": job.number, "done": job.done, "total": job.total}
                for job in self._desk.under_way()
                if visit.user.tenants is None or job.tenant_id in visit.user.tenants
            ],
            # Of what is over, some are looked through for each page: to count those would say nothing.
            "count": None if wanted.by_end else await self._insight.count(wanted, MAX_COUNTED),
            "max_counted": MAX_COUNTED,
            "timers": [timer_row(timer) for timer in page.timers],
            "previous": page.before and address("timers", **chosen, before=write_place(page.before)),
            "next": page.after and address("timers", **chosen, after=write_place(page.after)),
            "first": address("timers", **chosen) if after or before else None,
        }
        place = {name: values.get(name) for name in ("after", "before")}
        return Screen("timers.html", model, "Timers", _command(wanted, chosen, place))

    async def find(self, visit: Visit) -> Screen | Redirect:
        """Go to the timer of an id, or show what there is."""
        name = visit.query.get("id", "").strip()
        if not wire.is_service_call_id(name):
            raise PageError(400, WRONG_ID)
        tenant = visit.tenant(visit.query.get("tenant", "").strip())
        whose = visit.user.tenants if tenant is None else frozenset({tenant})
        found = await self._insight.find(ServiceCallId(name), whose, MAX_FOUND)
        if len(found) == 1:
            return Redirect(address("timer", tenant=found[0].tenant_id, id=name))
        similar = [] if found else await self._similar(name, whose)
        model = {
            "id": name,
            "timers": [timer_row(timer) for timer in found],
            "similar": [timer_row(timer) for timer in similar],
        }
        command = by_curl("find", id=name, tenant=tenant)
        return Screen("find.html", model, "Find", command, 200 if found or similar else 404)

    async def _similar(self, prefix: str, tenants: frozenset[TenantId] | None) -> list[Timer]:
        """Return timers whose ids begin so, tenant by tenant, of a bounded number of tenants."""
        found: list[Timer] = []
        names = await self._insight.tenants(MAX_SEARCHED) if tenants is None else sorted(tenants)
        for tenant in names[:MAX_SEARCHED]:
            found += await self._insight.search(tenant, prefix, MAX_FOUND - len(found))
            if len(found) >= MAX_FOUND:
                break
        return found


def _in_state(chosen: dict[str, str], state: TimerState) -> str:
    return address("timers", **{**chosen, "state": state.value})


def _command(wanted: TimerFilter, chosen: Mapping[str, str], place: Mapping[str, str | None]) -> str:
    """Return the command for the same list; where the command line has none, the request.

    It lists one tenant's timers, by due time and from the first one on.
    """
    is_listed = wanted.tenants is not None and len(wanted.tenants) == 1 and not wanted.by_end
    if wanted.tenants is None or not is_listed or any(place.values()):
        return by_curl("timers", **chosen, **place)
    words = ["timer-service", "list", "--tenant", *wanted.tenants, "--state", wanted.state.value]
    if wanted.correlation_id is not None:
        words += ["--correlation-id", wanted.correlation_id]
    for option, moment in (("--due-from", wanted.since), ("--due-before", wanted.until)):
        if moment is not None:
            words += [option, wire.format_time(moment)]
    return shlex.join([*words, "--limit", str(PAGE)])
