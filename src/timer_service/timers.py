"""The use cases: what anybody can ask of the service, whatever way the request came in."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timer_service import __version__
from timer_service.domain.callback import Callback, NoCallback, Sink
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import (
    CancelTimer,
    Command,
    CorrelationId,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    Trace,
)
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandSource
from timer_service.ports.explanation import Explanation
from timer_service.ports.health import Health, Recent
from timer_service.ports.timer_store import StoreCounts, TimerQuery, TimerStore
from timer_service.workflows.decide_timer import RequestDesk, Settled, SettledTogether

NEWEST: Final = Position(0, 0)
"""Stands in until the request's place among all commands is known."""


@dataclass(frozen=True, slots=True)
class Status:
    """How one instance is: what it holds, how fast and how late it is, what is wrong."""

    instance: str
    version: str
    broker: str | None
    """The server that it is connected to."""
    problems: dict[str, str]
    pending: int
    overdue: int
    oldest_overdue_s: float
    next_due_at: datetime | None
    store_bytes: int
    recent: Recent


class Timers:
    """Questions and commands with a definite answer. All may raise TransientError: ask again."""

    def __init__(
        self,
        *,
        instance: str,
        store: TimerStore,
        source: CommandSource,
        clock: Clock,
        wake_for: Callable[[datetime, Sink], None],
        accept_clock_step: Callable[[], float],
        broker: Callable[[], str | None],
        health: Callable[[], Health],
        recent: Callable[[], Recent],
        counted: Callable[[StoreCounts], None],
        explain: Callable[[TenantId, ServiceCallId], Awaitable[Explanation]],
    ) -> None:
        self.instance = instance
        self._store = store
        self._clock = clock
        self._wake_for = wake_for
        self._accept_clock_step = accept_clock_step
        self._broker = broker
        self._health = health
        self._recent = recent
        self._counted = counted
        self._explain = explain
        self._desk = RequestDesk(store=store, source=source, clock=clock)

    def delays_from(self) -> datetime:
        """Return the moment, by the service's clock, from which a delay counts."""
        return self._clock.delays_from()

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer:
        """Return one timer, or raise TimerNotFound."""
        timer = await self._store.get(tenant_id, service_call_id)
        if timer is None:
            raise TimerNotFound(service_call_id)
        return timer

    async def explain(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Explanation:
        """Say why a timer is as it is, also where there is none."""
        return await self._explain(tenant_id, service_call_id)

    async def list(self, query: TimerQuery) -> list[Timer]:
        """Return a page of one tenant's timers."""
        return await self._store.list_timers(query)

    async def schedule(
        self,
        tenant_id: TenantId,
        service_call_id: ServiceCallId,
        due_at: datetime,
        correlation_id: CorrelationId | None,
        trace: Trace | None,
        callback: Callback | NoCallback | None = None,
        *,
        if_absent: bool = False,
        expires_after_ms: int | None = None,
    ) -> Settled:
        """Schedule or move a timer, wake the worker for it, and answer after the commit.

        The request is newer than every command in the stream at its time. Without a callback the timer
        keeps the one that it has.
        """
        settled = await self._desk.decide(
            ScheduleTimer(
                tenant_id,
                service_call_id,
                due_at,
                correlation_id,
                NEWEST,
                trace,
                callback,
                if_absent=if_absent,
                expires_after_ms=expires_after_ms,
            )
        )
        self._wake_for(due_at, settled.timer.sink)
        return settled

    async def cancel(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Settled:
        """Cancel a timer and answer after the commit: if `cancelled`, it never fires."""
        return await self._desk.decide(CancelTimer(tenant_id, service_call_id, NEWEST))

    async def carry_out(self, request: Command) -> Settled:
        """Carry out a request of a way in that needs no broker, and answer after the commit.

        Its position does not count: it is newer than every command in the stream at its time. While the
        broker is away only what was seen of the stream is known, and the answer says so.
        """
        settled = await self._desk.decide(request, without_broker=True)
        self._wake_after([settled.timer])
        return settled

    async def carry_out_all(self, requests: Sequence[Command]) -> SettledTogether:
        """Carry out requests for different timers in one transaction.

        An outcome of DUE or SUPERSEDED means that nothing was changed and that it may work again soon.
        """
        settled = await self._desk.decide_all(requests)
        self._wake_after([each.timer for each in settled.decided])
        return settled

    def _wake_after(self, timers: Sequence[Timer | None]) -> None:
        pending = [timer for timer in timers if timer is not None and timer.state is TimerState.SCHEDULED]
        for sink in {timer.sink for timer in pending}:
            due_times = (timer.due_at for timer in pending if timer.sink is sink)
            self._wake_for(min(due_at for due_at in due_times if due_at is not None), sink)

    async def accept_clock_step(self) -> float:
        """Accept a leap of the wall clock, look for due timers at once, and return its seconds."""
        step_s = self._accept_clock_step()
        for sink in Sink:
            self._wake_for(self._clock.now(), sink)
        return step_s

    async def status(self) -> Status:
        """Return the state of this instance, for an operator."""
        now = self._clock.now()
        counts = await self._store.count(now)
        self._counted(counts)
        overdue_at = counts.oldest_overdue_at
        return Status(
            instance=self.instance,
            version=__version__,
            broker=self._broker(),
            problems=self._health().problems,
            pending=counts.pending,
            overdue=counts.overdue,
            oldest_overdue_s=(now - overdue_at).total_seconds() if overdue_at else 0.0,
            next_due_at=counts.next_due_at,
            store_bytes=counts.file_bytes,
            recent=self._recent(),
        )
