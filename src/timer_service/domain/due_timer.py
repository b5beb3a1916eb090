"""A due timer, and which event its firing gets."""

from datetime import datetime, timedelta
from typing import TypeVar

from timer_service.domain.messages import (
    CorrelationId,
    DueTimeReached,
    Event,
    Keyed,
    ServiceCallId,
    TenantId,
    TimerExpired,
    Trace,
)
from timer_service.domain.timer import TimerState
from timer_service.domain.values import value

E = TypeVar("E", DueTimeReached, TimerExpired)


@value(frozen=True, slots=True)
class DueTimer(Keyed):
    """What firing needs of a due timer."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    due_at: datetime
    generation: int
    correlation_id: CorrelationId | None
    trace: Trace | None = None
    expires_after_ms: int | None = None
    verdict: TimerState | None = None

    def reached(self, at: datetime) -> DueTimeReached:
        """Return the event of this firing."""
        return self._told(DueTimeReached, at)

    def expired(self, at: datetime) -> TimerExpired:
        """Return the event in place of a firing that would have come too late."""
        return self._told(TimerExpired, at)

    def event(self, verdict: TimerState, at: datetime) -> Event:
        """Return the event that goes with the verdict."""
        if verdict is TimerState.EXPIRED:
            return self._told(TimerExpired, at)
        return self._told(DueTimeReached, at)

    def judged(self, now: datetime) -> TimerState:
        """Return the verdict that stands, or which it is if the event goes out now."""
        if self.verdict is not None:
            return self.verdict
        limit_ms = self.expires_after_ms
        is_late = limit_ms is not None and now - self.due_at > timedelta(milliseconds=limit_ms)
        return TimerState.EXPIRED if is_late else TimerState.REACHED

    def _told(self, kind: type[E], at: datetime) -> E:
        call, due_at = self.service_call_id, self.due_at
        return kind(self.tenant_id, call, due_at, at, self.generation, self.correlation_id, self.trace)
