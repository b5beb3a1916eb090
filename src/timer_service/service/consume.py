"""The loop that takes in commands."""

import asyncio
from collections.abc import Callable

from timer_service.domain.errors import GivenUp
from timer_service.ports.command_source import CommandBatch
from timer_service.service.surroundings import Surroundings
from timer_service.waiting import Over, unless
from timer_service.workflows.schedule_timers import ScheduleReport, schedule_timers


class Consuming:
    """Takes batch after batch from the command stream into the store."""

    def __init__(self, around: Surroundings, applied: Callable[[ScheduleReport], None]) -> None:
        self._store = around.store
        self._source = around.source
        self._clock = around.clock
        self._questions = around.questions
        self._metrics = around.metrics
        self._work_log = around.work_log
        self._applied = applied
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Apply batches until stopped; what is not acknowledged by then stays with the broker."""
        while (batch := await self._next_batch()) is not None:
            try:
                report = await schedule_timers(
                    batch=batch, store=self._store, clock=self._clock, questions=self._questions
                )
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
