"""Timer: all that is known of one timer, and what can be done with it."""

import shlex
from datetime import datetime, timedelta
from typing import Any, Final

from timer_client import wire
from timer_service.adapters.http.callbacks import delivery_view
from timer_service.adapters.http.pages.auditing import Auditor
from timer_service.adapters.http.pages.letter_desk import LetterDesk, letter_view
from timer_service.adapters.http.pages.past import Past, is_as_left, undo_due
from timer_service.adapters.http.pages.places import read_moment
from timer_service.adapters.http.pages.render import late
from timer_service.adapters.http.pages.rows import lateness_s, timer_row
from timer_service.adapters.http.pages.visit import PageError, Redirect, Screen, Visit, address
from timer_service.bulk import rescheduled
from timer_service.deliveries import Deliveries
from timer_service.domain.callback import Sink
from timer_service.domain.delivery import DeliveryState
from timer_service.domain.errors import TimerFiring, TimerNotFound
from timer_service.domain.messages import CancelTimer, Command, ServiceCallId, TenantId, TimerKey
from timer_service.domain.spoken import count_text
from timer_service.domain.timer import Timer, TimerState
from timer_service.explanations import Explanations
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.timers import NEWEST, Timers

_MS: Final = timedelta(milliseconds=1)
MAX_DELAY: Final = timedelta(days=3_660)
LOOK_S: Final = 0.01
"""How long a visit waits for the letters that name a timer; a visitor who asks for them waits longer."""
LOOK_LONGER_S: Final = 5.0


class TimerScreen:
    """One timer."""

    def __init__(
        self,
        timers: Timers,
        deliveries: Deliveries,
        explanations: Explanations,
        letters: LetterDesk,
        past: Past,
        auditor: Auditor,
    ) -> None:
        self._timers = timers
        self._deliveries = deliveries
        self._explanations = explanations
        self._letters = letters
        self._past = past
        self._auditor = auditor

    async def show(self, visit: Visit) -> Screen:
        """Show a timer, why it is as it is, its history and its callback."""
        tenant, name = visit.key(visit.query)
        sees_all = visit.user.tenants is None
        found = await self._explanations.explain(tenant, name, for_operator=sees_all)
        timer, record = found.facts.timer, found.facts.record
        looks_longer = visit.query.get("letters") == "all"
        letters = await self._letters.naming((tenant, name), LOOK_LONGER_S if looks_longer else LOOK_S)
        named = {
            "letters": None if letters is None else [letter_view(letter) for letter in letters],
            "look_longer": address("timer", tenant=tenant, id=name, letters="all"),
        }
        command = shlex.join(["timer-service", "explain", "--tenant", tenant, "--id", name])
        if timer is None:
            return Screen("absent.html", {"text": found.text, **named}, "Not found", command, 404)
        if record is None and timer.sink is Sink.HTTP:
            record = (await self._deliveries.records([timer.key])).get(timer.key)
        model = {
            "timer": {**timer_row(timer), **_fields(timer)},
            "explanation": {
                "text": found.text,
                "cause": found.cause,
                "is_well": found.is_well,
                "detail": found.detail if sees_all else None,
                "unknown": found.facts.unknown,
            },
            "timeline": _timeline(timer, record),
            "callback": None if record is None else _callback(record),
            "version": timer.version,
            **named,
        }
        return Screen("timer.html", model, "Timer", command)

    async def cancel(self, visit: Visit) -> Redirect:
        """Cancel: if the answer is `cancelled`, it never fires."""
        key = visit.form_key()
        before = await self._get(*key)
        return await self._carry_out(visit, "cancel", before, CancelTimer(*key, NEWEST, _expected(visit)))

    async def move(self, visit: Visit) -> Redirect:
        """Give it another due time, or schedule it again."""
        return await self._schedule(visit, "move", read_due(visit))

    async def fire(self, visit: Visit) -> Redirect:
        """Make it due now: the next generation, with an event id of its own."""
        return await self._schedule(visit, "fire", visit.now)

    async def undo(self, visit: Visit) -> Redirect:
        """Schedule it as it was before an action, unless something has happened to it since."""
        action = await self._past.action(visit, visit.field("n"))
        due_at = undo_due(action)
        if due_at is None or action.tenant_id is None:
            raise PageError(409, "This cannot be undone.")
        timer = await self._get(action.tenant_id, ServiceCallId(action.subject))
        if not is_as_left(action, timer):
            tenant, name = timer.key
            return Redirect(address("timer", tenant=tenant, id=name, done="changed"))
        request = rescheduled(timer, wire.parse_time(due_at), frozenset({timer.version}))
        return await self._carry_out(visit, "undo", timer, request)

    async def retry(self, visit: Visit) -> Redirect:
        """Send its callback again."""
        tenant, name = visit.form_key()
        was = await self._callback_of(tenant, name)
        delivery, count = await self._deliveries.retry(tenant, name)
        if delivery is None:
            raise PageError(409, "This timer has not fired yet: there is nothing to send again.")
        outcome = "retried" if count else "unchanged"
        await self._auditor.note(visit.user, "retry", outcome, tenant=tenant, subject=name, was=was)
        return Redirect(address("timer", tenant=tenant, id=name, done=outcome))

    async def abandon(self, visit: Visit) -> Redirect:
        """Make no further attempt of its callback."""
        tenant, name = visit.form_key()
        was = await self._callback_of(tenant, name)
        delivery = await self._deliveries.abandon(tenant, name)
        is_abandoned = delivery is not None and delivery.state is DeliveryState.ABANDONED
        outcome = "abandoned" if is_abandoned else "unchanged"
        await self._auditor.note(visit.user, "abandon", outcome, tenant=tenant, subject=name, was=was)
        return Redirect(address("timer", tenant=tenant, id=name, done=outcome))

    async def _schedule(self, visit: Visit, action: str, due_at: datetime) -> Redirect:
        timer = await self._get(*visit.form_key())
        return await self._carry_out(visit, action, timer, rescheduled(timer, due_at, _expected(visit)))

    async def _carry_out(self, visit: Visit, action: str, before: Timer, request: Command) -> Redirect:
        tenant, name = request.key
        try:
            settled = await self._timers.carry_out(request)
            outcome, after = settled.outcome.value, settled.timer
        except TimerFiring:
            # A result, not an error: whether its event is out is not known yet.
            outcome, after = "firing", before
        await self._auditor.note(
            visit.user,
            action,
            outcome,
            tenant=tenant,
            subject=name,
            before=before,
            after=after,
            reason=visit.field("reason"),
        )
        return Redirect(address("timer", tenant=tenant, id=name, done=outcome))

    async def _callback_of(self, *key: *TimerKey) -> str:
        """Return how far a timer's callback is, in the words of the notes."""
        record = (await self._deliveries.records([key])).get(key)
        delivery = None if record is None else record.delivery
        if delivery is None:
            return ""
        return f"callback {delivery.state.value} after {count_text(delivery.attempts, 'attempt')}"

    async def _get(self, tenant_id: TenantId, name: ServiceCallId) -> Timer:
        try:
            return await self._timers.get(tenant_id, name)
        except TimerNotFound as error:
            raise PageError(404, f"This tenant has no timer {name!r}.") from error


def read_due(visit: Visit) -> datetime:
    """Return the due time of a form: a moment, or a delay from now by the server's clock."""
    delay = visit.field("delay").strip()
    if delay:
        try:
            span = timedelta(seconds=float(delay))
        except (ValueError, OverflowError) as error:
            raise PageError(400, "A delay is a number of seconds.") from error
        if not timedelta() <= span <= MAX_DELAY:
            raise PageError(400, "A delay is from 0 s to 10 years.")
        return visit.now + span
    if not visit.field("due").strip():
        raise PageError(400, "Say when: a time, or a delay in seconds.")
    return read_moment(visit.field("due"), visit.look.zone)


def _expected(visit: Visit) -> frozenset[str] | None:
    """Return the version that was looked at: what has changed since then is not touched."""
    version = visit.field("version")
    return frozenset({version}) if version else None


def _fields(timer: Timer) -> dict[str, Any]:
    return {
        "generation": timer.generation,
        "registered_at": timer.registered_at,
        "reached_at": timer.reached_at,
        "cancelled_at": timer.cancelled_at,
        "expired_at": timer.expired_at,
        "expires_after_ms": timer.expires_after_ms,
        "traceparent": None if timer.trace is None else timer.trace.parent,
        "is_pending": timer.state is TimerState.SCHEDULED,
        "is_cancelled": timer.state is TimerState.CANCELLED,
    }


def _timeline(timer: Timer, record: CallbackRecord | None) -> list[dict[str, Any]]:
    """Return what happened and what is ahead, in order."""
    late_s = lateness_s(timer)
    happened = [
        (timer.registered_at, "Registered", ""),
        (timer.due_at, "Due", f"generation {timer.generation}"),
        (timer.reached_at, "Fired", "" if late_s is None else f"{late(late_s)} after its due time"),
        (timer.cancelled_at, "Cancelled", ""),
        (timer.expired_at, "Expired", "its event would have come too late to be of use"),
    ]
    if record is not None:
        happened += [
            (
                attempt.started_at,
                f"Attempt {attempt.number} failed",
                attempt.error or f"answer {attempt.status}",
            )
            for attempt in record.attempts
        ]
        delivery = record.delivery
        if delivery is not None:
            happened.append((delivery.ended_at, f"Callback {delivery.state.value.lower()}", ""))
            happened.append((delivery.next_attempt_at, "Next attempt", f"number {delivery.attempts + 1}"))
    known = [(at, what, more) for at, what, more in happened if at is not None]
    return [{"at": at, "what": what, "more": more} for at, what, more in sorted(known)]


def _callback(record: CallbackRecord) -> dict[str, Any]:
    """Return what may be seen of a callback: no header values, which may be secret."""
    callback = record.callback
    return {
        "url": callback.url,
        "method": callback.method.value,
        "header_names": [name for name, _ in callback.headers],
        "delivery": None if record.delivery is None else delivery_view(record.delivery),
        "attempts": [
            {
                "number": attempt.number,
                "started_at": attempt.started_at,
                "duration_ms": attempt.duration // _MS,
                "status": attempt.status,
                "error": attempt.error,
                "answer": attempt.answer,
            }
            for attempt in record.attempts
        ],
    }
