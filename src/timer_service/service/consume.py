"""The loop that takes in commands."""

import asyncio
from collections.abc import Callable

from timer_service.domain.errors import GivenUp
from timer_service.observability.metrics import Metrics
from timer_service.observability.work_log import WorkLog
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandBatch, CommandSource
from timer_service.ports.timer_store import PatientStore
from timer_service.waiting import Over, unless
from timer_service.workflows.schedule_timers import ScheduleReport, schedule_timers


class Consuming:
    """Takes batch after batch from the command stream into the store."""

    def __init__(
        self,
        *,
        store: PatientStore,
        source: CommandSource,
        clock: Clock,
        metrics: Metrics,
        work_log: WorkLog,
        applied: Callable[[ScheduleReport], None],
    ) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._work_log = work_log
        self._applied = applied
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Apply batches until stopped; what is not acknowledged by then stays with the broker."""
        while (batch := await self._next_batch()) is not None:
            try:
                report = await schedule_timers(batch=batch, store=self._store, clock=self._clock)
            except GivenUp:
                return
            self._applied(report)
            self._metrics.scheduled(report)
            self._work_log.scheduled(report)

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping.set()

    async def _next_batch(self) -> CommandBatch | None:
        """Return the next batch, or None once the service is stopping."""
        if self._stopping.is_set():
            return None
        try:
            return await unless(self._stopping, self._source.receive())
        except Over:
            return None
