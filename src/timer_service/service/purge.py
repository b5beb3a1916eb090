"""The loop that deletes what retention no longer keeps."""

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from timer_service.domain.errors import GivenUp
from timer_service.service.surroundings import Surroundings
from timer_service.workflows.purge_timers import purge_timers

PURGE_BATCH: Final = 1_000
"""Firing waits for one batch at most, about 20 ms; without a pause that makes 50,000 timers per second."""
PURGE_INTERVAL_S: Final = 60.0

log = structlog.get_logger(__name__)


class Purging:
    """Deletes old timers in batches; other work on the store runs in between."""

    def __init__(self, around: Surroundings, retention: timedelta, batch_size: int = PURGE_BATCH) -> None:
        self._store = around.store
        self._clock = around.clock
        self._metrics = around.metrics
        self._retention = retention
        self._batch_size = batch_size
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Delete until stopped, with a pause wherever nothing is left."""
        purged = 0
        while not self._stopping.is_set():
            try:
                batch = await purge_timers(
                    store=self._store, clock=self._clock, retention=self._retention, limit=self._batch_size
                )
            except GivenUp:
                return
            self._metrics.purged(batch)
            purged += batch
            more = batch == self._batch_size
            if purged and not more:
                log.info("timers.purged", timers=purged)
                purged = 0
            await self._clock.wait(0 if more else PURGE_INTERVAL_S, self._stopping)

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping.set()
