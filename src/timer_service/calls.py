"""Answer callers, over whatever they call."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from timer_service import __version__
from timer_service.domain.admission import RateLimit
from timer_service.domain.messages import (
    CancelTimer,
    CorrelationId,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    Trace,
)
from timer_service.domain.timer import Timer
from timer_service.observability.metrics import Metrics
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandSource
from timer_service.ports.timer_calls import CallAnswer
from timer_service.ports.timer_store import StoreCounts, TimerQuery, TimerStore
from timer_service.workflows.answer_requests import RequestDesk

_NEWEST: Final = Position(0, 0)
"""Stands in until the request's place among all commands is known."""


class Calls:
    """The answers to get, list, schedule, cancel and status."""

    def __init__(
        self,
        *,
        store: TimerStore,
        source: CommandSource,
        clock: Clock,
        metrics: Metrics,
        wake_for: Callable[[datetime], None],
        facts: Callable[[], dict[str, Any]],
        accept_clock_step: Callable[[], float],
        counted: Callable[[StoreCounts], None],
        instance: str,
        rate_limit: RateLimit,
    ) -> None:
        self.instance = instance
        self.rate_limit = rate_limit
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._wake_for = wake_for
        self._facts = facts
        self._counted = counted
        self._accept_clock_step = accept_clock_step
        self._desk = RequestDesk(store=store, source=source, clock=clock)
        self.called = metrics.called

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        return await self._store.get(tenant_id, service_call_id)

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page of one tenant's timers."""
        return await self._store.list_timers(query)

    async def schedule(
        self,
        tenant_id: TenantId,
        service_call_id: ServiceCallId,
        due_at: datetime,
        correlation_id: CorrelationId | None,
        trace: Trace | None,
    ) -> CallAnswer:
        """Schedule or move a timer, and wake the worker for it."""
        answer = await self._desk.answer(
            ScheduleTimer(tenant_id, service_call_id, due_at, correlation_id, _NEWEST, trace)
        )
        self._wake_for(due_at)
        return answer

    async def cancel(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> CallAnswer:
        """Cancel a timer."""
        return await self._desk.answer(CancelTimer(tenant_id, service_call_id, _NEWEST))

    async def accept_clock_step(self) -> float:
        """Follow the wall clock again, and look for due timers at once."""
        step_s = self._accept_clock_step()
        self._wake_for(self._clock.now())
        return step_s

    async def status(self) -> dict[str, Any]:
        """Return how the service is: what it holds, how fast and how late it is, what is wrong."""
        now = self._clock.now()
        counts = await self._store.count(now)
        self._counted(counts)
        overdue = counts.oldest_overdue_at
        recent = self._metrics.recent()
        facts = {
            "instance": self.instance,
            "version": __version__,
            **self._facts(),
            "pending": counts.pending,
            "backlog": counts.overdue,
            "oldestOverdueSeconds": (now - overdue).total_seconds() if overdue else 0,
            "nextDueAt": _shown(counts.next_due_at),
            "databaseBytes": counts.file_bytes,
            "commandsPerSecond": recent.commands_per_s,
            "firedPerSecond": recent.fired_per_s,
            "latenessP50Seconds": recent.lateness_p50_s,
            "latenessP99Seconds": recent.lateness_p99_s,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


def _shown(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
