"""What the service does with commands and requests, in memory and at a time that a test sets."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import NAMESPACE_OID, uuid5

from timer_client import wire
from timer_client.errors import RequestRefused, TimerNotFound
from timer_client.subjects import Subjects
from timer_client.testing.memory_broker import Answer, MemoryBroker

Key = tuple[str, str]

_CAUSES: Final = {
    "Scheduled": "not_due",
    "Reached": "fired",
    "Cancelled": "cancelled",
    "Expired": "expired",
}
_ENDED: Final = {"Reached": "already_reached", "Expired": "already_expired"}


class MemoryService:
    """The timers of all tenants; they fire as soon as they are due."""

    def __init__(self, prefix: str, now: datetime) -> None:
        self.now = now
        self.timers: dict[Key, wire.TimerView] = {}
        self._expires_ms: dict[Key, int | None] = {}
        self._subjects = Subjects(prefix)
        self.broker = MemoryBroker(lambda: self.now, self._serve)
        self._endpoints: dict[str, Callable[[str, bytes], wire.Model]] = {
            "get": self._get,
            "explain": self._explain,
            "list": self._list,
            "schedule": self._schedule,
            "cancel": self._cancel,
        }

    def scheduled(self, tenant: str) -> list[wire.TimerView]:
        """Return what a tenant has scheduled, by due time."""
        return self._by_due_time(tenant, lambda timer: timer.state == "Scheduled")

    def next_at(self) -> datetime | None:
        """Return when something happens next."""
        due = [timer.due_at for timer in self.timers.values() if timer.state == "Scheduled"]
        return min((at for at in (*due, self.broker.next_at()) if at is not None), default=None)

    def fire_due(self) -> None:
        """Fire all that is due, the oldest first."""
        due = [
            (timer.due_at, key)
            for key, timer in self.timers.items()
            if timer.state == "Scheduled" and timer.due_at is not None and timer.due_at <= self.now
        ]
        for due_at, key in sorted(due):
            limit = self._expires_ms[key]
            self._end(
                key, due_at, expired=limit is not None and self.now - due_at > timedelta(milliseconds=limit)
            )

    def _end(self, key: Key, due_at: datetime, *, expired: bool) -> None:
        kind = wire.TIMER_EXPIRED if expired else wire.DUE_TIME_REACHED
        at = {"expired_at" if expired else "reached_at": self.now}
        timer = self.timers[key] = self.timers[key].model_copy(
            update={"state": "Expired" if expired else "Reached", **at}
        )
        identity = (
            f"{kind}\n{timer.tenant_id}\n{timer.service_call_id}\n{timer.generation}\n{due_at.isoformat()}"
        )
        event = wire.write_event(
            kind,
            message_id=str(uuid5(NAMESPACE_OID, identity)),
            timestamp_ms=round(self.now.timestamp() * 1000),
            tenant_id=timer.tenant_id,
            service_call_id=timer.service_call_id,
            due_at=due_at,
            at=self.now,
            generation=timer.generation,
            correlation_id=timer.correlation_id,
        )
        subject = self._subjects.event(timer.tenant_id)
        self.broker.store(subject.replace(wire.DUE_TIME_REACHED, kind), event)

    def _serve(self, subject: str, body: bytes) -> Answer:
        """Carry out a command or answer a request, and fire what that has made due."""
        _, tenant, what = subject.rsplit(".", 2)
        try:
            if what in self._endpoints:
                answer = wire.write_model(self._endpoints[what](tenant, body))
            else:
                self._command(tenant, body)
                answer = b""
        except RequestRefused as error:
            return b"", {"Nats-Service-Error": error.description, "Nats-Service-Error-Code": error.code}
        self.fire_due()
        return answer, None

    def _command(self, tenant: str, body: bytes) -> None:
        envelope = wire.read_envelope(body)
        payload = wire.read_payload(envelope)
        key = tenant, payload.service_call_id
        if isinstance(payload, wire.ScheduleTimerPayload):
            self._apply(key, payload, envelope.correlation_id)
        else:
            self._give_up(key)

    def _schedule(self, tenant: str, body: bytes) -> wire.Model:
        request = wire.read_request(wire.ScheduleRequest, body)
        key = tenant, request.service_call_id
        outcome = self._apply(key, request, request.correlation_id)
        return wire.ScheduleAnswer.model_construct(outcome=outcome, timer=self.timers[key])

    def _cancel(self, tenant: str, body: bytes) -> wire.Model:
        key = tenant, wire.read_request(wire.GetRequest, body).service_call_id
        outcome = self._give_up(key)
        return wire.CancelAnswer.model_construct(outcome=outcome, timer=self.timers[key])

    def _get(self, tenant: str, body: bytes) -> wire.Model:
        name = wire.read_request(wire.GetRequest, body).service_call_id
        if (tenant, name) not in self.timers:
            raise TimerNotFound("404", f"no timer {name!r}")
        return wire.GetAnswer.model_construct(timer=self.timers[tenant, name])

    def _explain(self, tenant: str, body: bytes) -> wire.Model:
        timer = self.timers.get((tenant, wire.read_request(wire.ExplainRequest, body).service_call_id))
        cause = "not_found" if timer is None else _CAUSES[timer.state]
        return wire.ExplainAnswer.model_construct(
            cause=cause, text=cause.replace("_", " "), is_well=timer is not None, at=self.now, timer=timer
        )

    def _list(self, tenant: str, body: bytes) -> wire.Model:
        request = wire.read_request(wire.ListRequest, body)
        found = self._by_due_time(tenant, lambda timer: _is_asked_for(timer, request))
        start = int(request.cursor or 0)
        end = start + request.limit
        return wire.ListAnswer.model_construct(
            timers=found[start:end], cursor=str(end) if end < len(found) else None
        )

    def _apply(self, key: Key, wanted: wire.Wanted, correlation_id: str | None) -> str:
        timer, due_at = self.timers.get(key), wanted.due_from(self.now)
        if timer is None:
            timer = self._unknown(key)
        elif timer.state in _ENDED:
            return _ENDED[timer.state]
        elif wanted.if_absent:
            return "already_cancelled" if timer.state == "Cancelled" else "unchanged"
        moved = timer.state != "Scheduled" or timer.due_at != due_at
        outcome = "unchanged" if not moved else "rescheduled" if timer.state == "Scheduled" else "scheduled"
        self._expires_ms[key] = wanted.expires_after_ms
        self.timers[key] = timer.model_copy(
            update={
                "state": "Scheduled",
                "due_at": due_at,
                "generation": timer.generation + moved,
                "cancelled_at": None,
                "correlation_id": correlation_id or timer.correlation_id,
            }
        )
        return outcome

    def _give_up(self, key: Key) -> str:
        timer, outcome = self.timers.get(key), "cancelled"
        if timer is None:
            timer, outcome = self._unknown(key), "not_found"
        elif timer.state in _ENDED:
            return _ENDED[timer.state]
        self.timers[key] = timer.model_copy(update={"state": "Cancelled", "cancelled_at": self.now})
        return outcome

    def _unknown(self, key: Key) -> wire.TimerView:
        """Return what a timer is before anything is known of it."""
        tenant, name = key
        return wire.TimerView.model_construct(
            tenant_id=tenant, service_call_id=name, state="Cancelled", generation=0, registered_at=self.now
        )

    def _by_due_time(self, tenant: str, wanted: Callable[[wire.TimerView], bool]) -> list[wire.TimerView]:
        found = [
            (timer.due_at, name, timer)
            for (owner, name), timer in self.timers.items()
            if owner == tenant and timer.due_at is not None and wanted(timer)
        ]
        return [timer for *_, timer in sorted(found, key=lambda each: each[:2])]


def _is_asked_for(timer: wire.TimerView, request: wire.ListRequest) -> bool:
    assert timer.due_at is not None
    return (
        request.state in (None, timer.state)
        and request.correlation_id in (None, timer.correlation_id)
        and (request.due_from is None or timer.due_at >= request.due_from)
        and (request.due_before is None or timer.due_at < request.due_before)
    )
