"""What a caller can ask for and wait for the answer."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from timer_service.domain.admission import RateLimit
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId, Trace
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.timer_store import TimerQuery


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What a call did, and the timer as it is now."""

    outcome: Outcome
    timer: Timer


class TimerCalls(Protocol):
    """Questions and commands with a definite answer. All may raise TransientError: ask again."""

    @property
    def instance(self) -> str:
        """Which of several instances this is."""
        ...

    @property
    def rate_limit(self) -> RateLimit:
        """How often each tenant may ask, over whatever way in."""
        ...

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        ...

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page of one tenant's timers."""
        ...

    async def schedule(
        self,
        tenant_id: TenantId,
        service_call_id: ServiceCallId,
        due_at: datetime,
        correlation_id: CorrelationId | None,
        trace: Trace | None,
    ) -> CallAnswer:
        """Schedule or move a timer and answer after the commit.

        The call is newer than every command in the stream at its time.
        """
        ...

    async def cancel(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> CallAnswer:
        """Cancel a timer and answer after the commit: if `cancelled`, it never fires."""
        ...

    async def status(self) -> dict[str, Any]:
        """Return how the service is, for an operator."""
        ...

    async def accept_clock_step(self) -> float:
        """Take a leap of the wall clock for right; return its seconds."""
        ...

    def called(self, endpoint: str, outcome: str, seconds: float) -> None:
        """Take note that a call was answered."""
        ...
