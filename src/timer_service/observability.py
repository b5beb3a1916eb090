"""What an operator sees: logs on stderr and metrics in Prometheus form."""

import logging
import sys
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Final

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from timer_service.domain.messages import TenantId
from timer_service.ports.timer_store import StoreCounts
from timer_service.printable import printable, printable_lines
from timer_service.workflows.fire_due_timers import FireReport
from timer_service.workflows.schedule_timers import ScheduleReport

LATENESS_BUCKETS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
DURATION_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZE_BUCKETS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
RECENT_S: Final = 60.0
OTHER_TENANTS: Final = "other"
_SEVERAL_LINES: Final = frozenset({"exception", "stack"})


def configure_logging(level: str, log_format: str) -> None:
    """Send our events, and the libraries' warnings, to stderr in one form."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    # JSON escapes by itself what would steer a terminal.
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()] if as_json else [_escape, structlog.dev.ConsoleRenderer()]
    )
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)


def _escape(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape what others could put into a line; a traceback keeps its lines. repr shows what is not text."""
    return {
        name: (printable_lines if name in _SEVERAL_LINES else printable)(value)
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }


class Metrics:
    """Every metric of the service; docs/events.md describes each."""

    def __init__(self, *, tenants: int = 0) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._max_tenants = tenants
        self._tenants: set[TenantId] = set()
        self._recent: deque[tuple[float, int, Tally[int]]] = deque()
        self._commands = Counter(
            "timer_commands_received", "Commands by type and outcome", ["type", "outcome"], registry=registry
        )
        self._letters = Counter(
            "timer_dead_letters", "Messages refused, by reason", ["reason"], registry=registry
        )
        self._letters_dropped = Counter(
            "timer_dead_letters_dropped", "Messages refused whose letter was given up", registry=registry
        )
        self._redeliveries = Counter(
            "timer_redeliveries", "Messages delivered more than once", registry=registry
        )
        self._fired = Counter(
            "timer_schedules_processed", "Timers fired: confirmed by the broker", registry=registry
        )
        self._failures = Counter(
            "timer_publish_failures", "Events not confirmed, by kind", ["kind"], registry=registry
        )
        self._lateness = Histogram(
            "timer_lateness_seconds",
            "From the due time to the broker's confirmation",
            buckets=LATENESS_BUCKETS_S,
            registry=registry,
        )
        self._tenant_lateness = Histogram(
            "timer_tenant_lateness_seconds",
            "Lateness by tenant, where TIMER_METRICS_TENANTS asks for it",
            ["tenant"],
            buckets=LATENESS_BUCKETS_S,
            registry=registry,
        )
        self._polling = Histogram(
            "timer_polling_duration_seconds",
            "One look for due timers, with publishing and marking",
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self._writes = Histogram(
            "timer_store_write_seconds",
            "One write transaction",
            ["operation"],
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self._batches = Histogram(
            "timer_batch_size",
            "Commands or timers a batch",
            ["kind"],
            buckets=SIZE_BUCKETS,
            registry=registry,
        )
        self._calls = Histogram(
            "timer_call_duration_seconds",
            "Calls of the API by endpoint and outcome",
            ["endpoint", "outcome"],
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        # Kept at hand: to find it by its labels takes longer than all else about a request that is refused.
        self._calls_of = cache(self._calls.labels)
        self._let_go = Counter(
            "timer_catch_up_given_up",
            "Timers fired although commands of their tenant still waited, after TIMER_CATCH_UP",
            registry=registry,
        )
        self._purged = Counter("timer_purged", "Ended timers deleted by retention", registry=registry)
        self._connects = Counter(
            "timer_broker_connects", "Sessions with the broker, the first one included", registry=registry
        )
        self._gauges = {
            name: Gauge(name, text, registry=registry)
            for name, text in (
                ("timer_pending", "Scheduled timers, due or not"),
                ("timer_backlog", "Timers that are due and not fired yet"),
                ("timer_oldest_overdue_seconds", "How long the oldest of them has been due"),
                ("timer_tenants_waiting", "Tenants whose due timers wait for commands in the stream"),
                ("timer_last_poll_timestamp_seconds", "When the worker last looked for due timers"),
                ("timer_broker_connected", "1 while the broker, its streams and the consumer are there"),
                ("timer_dead_letters_waiting", "Refused messages that wait for their letters"),
                ("timer_store_available", "1 while the store takes writes"),
                ("timer_store_file_bytes", "Size of the database file"),
                ("timer_store_wal_bytes", "Size of the write-ahead log"),
                ("timer_store_free_bytes", "Space left on the store's disk"),
                ("timer_clock_step_held_seconds", "Leap of the wall clock that waits to be confirmed"),
                (
                    "timer_stream_tail_lost",
                    "1 for a day after the broker came back without its newest commands",
                ),
                ("timer_clock_skew_seconds", "How far the clock is ahead of the database server's"),
            )
        }

    def scheduled(self, report: ScheduleReport) -> None:
        """Take note of a batch of commands."""
        for (command_type, outcome), count in report.commands.items():
            self._commands.labels(command_type, outcome.value).inc(count)
        for refusal in report.refusals:
            self._letters.labels(refusal.reason.value).inc()
        self._redeliveries.inc(report.redelivered)
        self._batches.labels("commands").observe(report.commands.total())
        self._remember(report.commands.total(), Tally())

    def fired(self, report: FireReport, seconds: float) -> None:
        """Take note of one look for due timers."""
        self._polling.observe(seconds)
        self._gauges["timer_tenants_waiting"].set(report.catch_up.waiting)
        self._let_go.inc(report.catch_up.let_go)
        for _, result in report.failed:
            self._failures.labels(result.outcome.name.lower()).inc()
        if not report.confirmed:
            return
        self._fired.inc(len(report.confirmed))
        self._batches.labels("timers").observe(len(report.confirmed))
        tally: Tally[int] = Tally()
        for event in report.confirmed:
            lateness_s = max(0.0, (report.confirmed_at - event.due_at).total_seconds())
            self._lateness.observe(lateness_s)
            tally[bisect_left(LATENESS_BUCKETS_S, lateness_s)] += 1
            if self._max_tenants:
                self._tenant_lateness.labels(self._tenant_label(event.tenant_id)).observe(lateness_s)
        self._remember(0, tally)

    def wrote(self, operation: str, seconds: float) -> None:
        """Take note of a write transaction."""
        self._writes.labels(operation).observe(seconds)

    def called(self, endpoint: str, outcome: str, seconds: float) -> None:
        """Take note of a call of the API."""
        self._calls_of(endpoint, outcome).observe(seconds)

    def purged(self, count: int) -> None:
        """Take note of what retention deleted."""
        self._purged.inc(count)

    def connected(self) -> None:
        """Take note of a session with the broker."""
        self._connects.inc()

    def letter_dropped(self) -> None:
        """Take note of a refused message that gets no letter."""
        self._letters_dropped.inc()

    def counted(self, counts: StoreCounts, oldest_overdue_s: float) -> None:
        """Take note of what the store holds."""
        self._gauges["timer_pending"].set(counts.pending)
        self._gauges["timer_backlog"].set(counts.overdue)
        self._gauges["timer_oldest_overdue_seconds"].set(oldest_overdue_s)
        self._gauges["timer_store_file_bytes"].set(counts.file_bytes)
        self._gauges["timer_store_wal_bytes"].set(counts.log_bytes)
        self._gauges["timer_store_free_bytes"].set(counts.free_bytes)

    def health(self, *, polled_at: float, broker: bool, store: bool) -> None:
        """Take note of what works."""
        self._gauges["timer_last_poll_timestamp_seconds"].set(polled_at)
        self._gauges["timer_broker_connected"].set(broker)
        self._gauges["timer_store_available"].set(store)

    def follow(self, gauge: str, value: Callable[[], float]) -> None:
        """Ask for the value of a gauge whenever it is looked at."""
        self._gauges[gauge].set_function(value)

    def recent(self) -> dict[str, float | None]:
        """Return rates and lateness of the last minute, for `timer-service status`."""
        self._forget()
        commands = sum(count for _, count, _ in self._recent)
        lateness: Tally[int] = Tally()
        for _, _, tally in self._recent:
            lateness += tally
        return {
            "commandsPerSecond": round(commands / RECENT_S, 2),
            "firedPerSecond": round(lateness.total() / RECENT_S, 2),
            "latenessP50Seconds": _quantile(lateness, 0.5),
            "latenessP99Seconds": _quantile(lateness, 0.99),
        }

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self._registry)

    def _tenant_label(self, tenant_id: TenantId) -> str:
        if tenant_id not in self._tenants and len(self._tenants) < self._max_tenants:
            self._tenants.add(tenant_id)
        return tenant_id if tenant_id in self._tenants else OTHER_TENANTS

    def _remember(self, commands: int, lateness: Tally[int]) -> None:
        second = float(int(time.monotonic()))
        if self._recent and self._recent[-1][0] == second:
            _, count, tally = self._recent.pop()
            commands, lateness = commands + count, tally + lateness
        self._recent.append((second, commands, lateness))
        self._forget()

    def _forget(self) -> None:
        oldest = time.monotonic() - RECENT_S
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()


def _quantile(tally: Tally[int], share: float) -> float | None:
    """Return the upper bound of the bucket that holds the quantile."""
    rank, seen = share * tally.total(), 0
    for bucket in sorted(tally):
        seen += tally[bucket]
        if seen >= rank:
            return LATENESS_BUCKETS_S[min(bucket, len(LATENESS_BUCKETS_S) - 1)]
    return None
