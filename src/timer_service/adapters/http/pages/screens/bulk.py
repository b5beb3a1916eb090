"""One change to many timers: looked at first, agreed to, then carried out while one watches."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

from timer_client import wire
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.past import Past
from timer_service.adapters.http.pages.places import filter_values, read_filter, read_moment
from timer_service.adapters.http.pages.rows import timer_row
from timer_service.adapters.http.pages.visit import PageError, Redirect, Screen, Visit, address
from timer_service.bulk import MAX_TIMERS, BulkDesk, Deed, TooManyJobs, Wish
from timer_service.domain.api_keys import Scope
from timer_service.domain.messages import ServiceCallId, TenantId
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.timer_insight import TimerFilter, TimerInsight

MAX_BY_OPERATOR: Final = 100
"""More than so many at once are for admins, and are confirmed by typing their number."""
MAX_PICKED: Final = 50
SAMPLE: Final = 20
_SPAN: Final = re.compile(r"([+-]?)(\d{1,9})\s*(s|min|h|d)?")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
MAX_SPAN: Final = timedelta(days=3_660)


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody wants to do to which timers."""

    deed: Deed
    by: str
    """How far, as it was written."""
    wish: Wish | None
    """None as long as it is not said how far they are to be moved."""
    tenant_id: TenantId | None
    wanted: TimerFilter
    chosen: Mapping[str, str]
    """The filter as an address has it."""
    picked: Sequence[str] = ()
    """The timers that were selected, if some were."""
    undoes: int | None = None
    """The job that is to be undone, if one is."""

    @property
    def subject(self) -> str:
        """Which timers, as it is noted."""
        if self.undoes is not None:
            return f"job {self.undoes}"
        return "selected timers" if self.picked else self.back

    @property
    def back(self) -> str:
        """Where one came from."""
        return address("timers", **self.chosen) if self.undoes is None else address("job", n=self.undoes)


@dataclass(frozen=True, slots=True)
class Found:
    """The timers of a plan at a moment."""

    count: int
    sample: Sequence[Timer]
    wish: Wish | None


class BulkScreens:
    """Looks, and begins."""

    def __init__(self, desk: BulkDesk, insight: TimerInsight, past: Past, auditor: Auditor) -> None:
        self._desk = desk
        self._insight = insight
        self._past = past
        self._auditor = auditor

    async def preview(self, visit: Visit) -> Screen:
        """Show what would be done, to how many timers, and the first of them; nothing is changed."""
        return await self._shown(visit, await self._plan(visit))

    async def start(self, visit: Visit) -> Redirect | Screen:
        """Begin a job for what was agreed to; if more timers match by now, ask again."""
        plan = await self._plan(visit)
        agreed = _agreed(visit)
        if plan.wish is None:
            return await self._shown(visit, plan, "Say how far they are to be moved.")
        await self._check_right(visit, agreed)
        if agreed > MAX_BY_OPERATOR and _digits(visit.field("confirm")) != str(agreed):
            return await self._shown(visit, plan, f"Type {agreed} to confirm that you mean all of them.")
        reason = visit.field("reason").strip()
        if not reason:
            return await self._shown(visit, plan, "Say why: the reason is kept with what is done.")
        wish, timers = await self._matched(visit, plan, plan.wish, agreed + 1)
        if len(timers) > agreed:
            return await self._shown(visit, plan, "More timers match than when you looked: look again.")
        if not timers:
            raise PageError(409, "None of these timers is left as you saw it: nothing was done.")
        what = plan.deed.value + (f" by {plan.by}" if plan.by else "")
        notes = self._auditor.of_job(visit.user, what, plan.tenant_id, plan.subject, reason)
        try:
            job = await self._desk.start(wish, timers, plan.tenant_id, notes)
        except TooManyJobs as error:
            raise PageError(409, "A job of this kind is running: wait for it, or stop it.") from error
        return Redirect(address("job", n=job.number))

    async def _check_right(self, visit: Visit, agreed: int) -> None:
        if agreed > MAX_TIMERS:
            raise PageError(400, f"A job has at most {MAX_TIMERS:,} timers: narrow the filter.")
        if agreed > MAX_BY_OPERATOR and Scope.ADMIN not in visit.user.scopes:
            why = f"To change more than {MAX_BY_OPERATOR} timers at once is for admins."
            await self._auditor.refused(visit, "bulk-start", why)
            raise PageError(403, why)

    async def _plan(self, visit: Visit) -> Plan:
        values = _values(visit)
        if values.get("action") != Deed.UNDO:
            return _plan(visit, values)
        began = await self._past.job(visit, values.get("job", ""))
        running = self._desk.find(began.number)
        if running is not None and running.ending is None:
            raise PageError(409, "The job is running: stop it, or wait for its end.")
        chosen = {"job": str(began.number)}
        wish, whose = Wish(Deed.UNDO), TimerFilter()
        return Plan(Deed.UNDO, "", wish, began.tenant_id, whose, chosen, undoes=began.number)

    async def _matched(
        self, visit: Visit, plan: Plan, wish: Wish, at_most: int
    ) -> tuple[Wish, Sequence[Timer]]:
        if plan.undoes is not None:
            return await self._undone(wish, plan.undoes, at_most)
        if plan.picked:
            return wish, await self._picked(visit, plan)
        as_of = read_moment(visit.field("as_of") or wire.format_time(visit.now), None)
        return wish, await self._desk.matched(plan.wanted, as_of, at_most)

    async def _undone(self, wish: Wish, job: int, at_most: int) -> tuple[Wish, Sequence[Timer]]:
        found = await self._past.as_left_by(job, at_most)
        wish = replace(wish, back_to={key: due_at for key, (_, due_at) in found.items()})
        return wish, [timer for timer, _ in found.values()]

    async def _picked(self, visit: Visit, plan: Plan) -> Sequence[Timer]:
        """Return those that are still as they were when they were selected."""
        picks = {
            visit.key({"tenant": tenant, "id": name}): version
            for version, tenant, name in map(_pick, plan.picked)
        }
        found = await self._insight.get([*picks])
        return [
            timer
            for key, version in picks.items()
            if (timer := found.get(key)) is not None
            and timer.version == version
            and timer.state is TimerState.SCHEDULED
        ]

    async def _shown(self, visit: Visit, plan: Plan, problem: str = "") -> Screen:
        found, as_of = await self._look(visit, plan), wire.format_time(visit.now)
        may = found.count <= MAX_BY_OPERATOR or Scope.ADMIN in visit.user.scopes
        model = {
            "action": plan.deed.value,
            "by": plan.by,
            "needs_span": plan.deed is Deed.MOVE,
            "problem": problem,
            "count": found.count,
            "is_too_many": found.count > MAX_TIMERS,
            "max_timers": MAX_TIMERS,
            "needs_admin": not may,
            "needs_number": found.count > MAX_BY_OPERATOR,
            "can_start": plan.wish is not None and may and 0 < found.count <= MAX_TIMERS,
            "as_of": as_of,
            "filter": plan.chosen,
            "picked": plan.picked,
            "reason": visit.field("reason"),
            "undoes": plan.undoes,
            "sample": [_moved(timer, found.wish, visit.now) for timer in found.sample],
            "actions": [] if plan.undoes or plan.picked else links(plan.chosen),
            "back": plan.back,
        }
        command = _command(plan, found.count, as_of)
        return Screen("bulk.html", model, _TITLES[plan.deed], command, 400 if problem else 200)

    async def _look(self, visit: Visit, plan: Plan) -> Found:
        if plan.undoes is not None:
            wish, timers = await self._undone(Wish(Deed.UNDO), plan.undoes, SAMPLE)
            timers = sorted(timers, key=lambda timer: timer.due_at or visit.now)
            return Found(await self._past.changed_by(plan.undoes), timers, wish)
        if plan.picked:
            timers = await self._picked(visit, plan)
            return Found(len(timers), timers, plan.wish)
        count = await self._insight.count(plan.wanted, MAX_TIMERS + 1)
        return Found(count, (await self._insight.page(plan.wanted, SAMPLE)).timers, plan.wish)


_TITLES: Final = {
    Deed.CANCEL: "Cancel timers",
    Deed.FIRE: "Fire timers now",
    Deed.MOVE: "Move timers",
    Deed.UNDO: "Undo a job",
}
_OF_A_FILTER: Final = (Deed.CANCEL, Deed.FIRE, Deed.MOVE)


def links(chosen: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what can be done to all that a filter matches, each with its address."""
    return [(deed.value, address("bulk", action=deed.value, **chosen)) for deed in _OF_A_FILTER]


def undo_link(job: int) -> str:
    """Return where the undoing of a job begins."""
    return address("bulk", action=Deed.UNDO.value, job=job)


def _values(visit: Visit) -> Mapping[str, str]:
    return {name: each[0] for name, each in visit.form.items()} or visit.query


def _plan(visit: Visit, values: Mapping[str, str]) -> Plan:
    """Return what an address or a form asks for, within what the visitor may change. Raises PageError."""
    action, by = values.get("action", Deed.CANCEL.value), values.get("by", "").strip()
    if action not in _OF_A_FILTER:
        raise PageError(400, f"The action must be one of {', '.join(Deed)}.")
    deed, picked = Deed(action), tuple(visit.form.get("pick", ()))
    if len(picked) > MAX_PICKED:
        raise PageError(400, f"At most {MAX_PICKED} timers can be selected.")
    wanted = read_filter(visit, values)
    if wanted.state is not TimerState.SCHEDULED:
        raise PageError(
            400, "Only scheduled timers can be changed together: a timer that has ended is final."
        )
    whose = frozenset(TenantId(tenant) for _, tenant, _ in map(_pick, picked)) or wanted.tenants
    if whose is not None and len(whose) != 1 and visit.user.tenants is not None:
        raise PageError(400, "A job is for one tenant: choose one of yours.")
    tenant_id = next(iter(whose)) if whose is not None and len(whose) == 1 else None
    wish = Wish(deed) if deed is not Deed.MOVE else Wish(deed, _span(by)) if by else None
    by = by if deed is Deed.MOVE else ""
    return Plan(deed, by, wish, tenant_id, wanted, filter_values(values), picked)


def _pick(text: str) -> tuple[str, str, str]:
    """Return version, tenant and id of a timer that was selected; the id is percent-encoded."""
    version, _, key = text.partition(" ")
    tenant, _, encoded = key.partition(" ")
    name = unquote(encoded)
    if not wire.is_tenant_id(tenant) or not wire.is_service_call_id(name):
        raise PageError(400, "A selected timer must be named as the list of timers names it.")
    return version, tenant, ServiceCallId(name)


def _span(text: str) -> timedelta:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise PageError(400, "The span must look like 90s, 15min, +2h or -1d.")
    seconds = int(found[2]) * _SECONDS[found[3] or "s"]
    if timedelta(seconds=min(seconds, 10**12)) > MAX_SPAN:
        raise PageError(400, "Timers can be moved by at most 10 years.")
    return timedelta(seconds=-seconds if found[1] == "-" else seconds)


def _agreed(visit: Visit) -> int:
    digits = _digits(visit.field("count"))
    if not digits or len(digits) > 9:
        raise PageError(400, "The form must say how many timers you agreed to (count).")
    return int(digits)


def _digits(text: str) -> str:
    """Return a number as it may be typed, with separators or without; empty if it is none."""
    plain = re.sub(r"[\s,.'’]", "", text)
    return plain if plain.isascii() and plain.isdigit() else ""


def _moved(timer: Timer, wish: Wish | None, now: datetime) -> dict[str, Any]:
    """Return what the list shows, and when it would be due."""
    is_moved = wish is not None and wish.deed in {Deed.MOVE, Deed.UNDO}
    becomes = wish.due_at(timer, now) if wish and is_moved else None
    return {**timer_row(timer), "becomes_due_at": becomes}


def _command(plan: Plan, count: int, as_of: str) -> str:
    """Return the request that begins the same job from a shell."""
    values = {"action": plan.deed.value, "by": plan.by, **plan.chosen, "count": count, "confirm": count}
    pairs = [f"{name}={value}" for name, value in {**values, "as_of": as_of}.items() if value != ""]
    pairs += [f"pick={each}" for each in plan.picked]
    words = [word for pair in pairs for word in ("--data-urlencode", pair)]
    key = '-H "Authorization: Bearer $KEY" "$PAGE/bulk-start?format=json"'
    return f"curl {key} {shlex.join([*words, '--data-urlencode', 'reason=…'])}"
