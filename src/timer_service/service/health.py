"""What is wrong with the service at this moment."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from timer_service.domain.errors import TransientError
from timer_service.ports.health import Health
from timer_service.ports.timer_store import StoreCounts
from timer_service.service.surroundings import Surroundings

SILENT_S: Final = 30.0
"""The worker counts as stuck after this long without a poll (or two poll intervals, if longer)."""
MIN_FREE_BYTES: Final = 16 * 1024 * 1024


class Watch:
    """Knows when the worker last looked, and asks the parts what is wrong with them."""

    def __init__(
        self,
        around: Surroundings,
        *,
        poll_interval_s: float,
        problems: Callable[[], dict[str, str | None]],
        warnings: Callable[[], dict[str, str]],
    ) -> None:
        self._store = around.store
        self._source = around.source
        self._sink = around.sink
        self._clock = around.clock
        self._elapsed_s = around.elapsed_s
        self._metrics = around.metrics
        self._max_silent_s = max(SILENT_S, 2 * poll_interval_s)
        self._problems = problems
        self._warnings = warnings
        self._free_bytes: int | None = None
        self._polled_at, self._polled_s = around.clock.now(), around.elapsed_s()

    def note_poll(self) -> None:
        """Know that the worker looks, or waits for the store."""
        self._polled_at, self._polled_s = self._clock.now(), self._elapsed_s()

    def note_counts(self, counts: StoreCounts) -> None:
        """Record how much space is left, as somebody has measured it."""
        self._free_bytes = counts.free_bytes

    def health(self) -> Health:
        """Say what is wrong at this moment."""
        # Not by the wall clock: a step of it is not silence.
        silent_s = self._elapsed_s() - self._polled_s
        problems = {"broker": self._broker_problem(), "store": self._store.problem, **self._problems()}
        if self._free_bytes is not None and self._free_bytes < MIN_FREE_BYTES:
            problems["disk"] = f"only {self._free_bytes} bytes are free"
        return Health(
            stuck=f"has not polled for {silent_s:.0f} s" if silent_s > self._max_silent_s else None,
            problems={part: problem for part, problem in problems.items() if problem is not None},
            warnings=self._warnings(),
        )

    async def observe(self) -> None:
        """Bring the gauges up to date before they are read."""
        self._metrics.health(
            polled_at=self._polled_at.timestamp(),
            broker=self._broker_problem() is None,
            store=self._store.problem is None,
        )
        with suppress(TransientError):
            now = self._clock.now()
            counts = await self._store.count(now)
            self.note_counts(counts)
            overdue_since = counts.oldest_overdue_at or now
            self._metrics.counted(counts, (now - overdue_since).total_seconds())

    def _broker_problem(self) -> str | None:
        return self._source.problem or self._sink.problem
