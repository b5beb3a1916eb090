"""Every metric of the service, in Prometheus form; docs/monitoring.md describes each."""

import time
from collections import Counter as Counted
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache, partial
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from timer_service.domain.delivery import AttemptOutcome, DeliveryState, outcome_of
from timer_service.domain.errors import RefusalReason
from timer_service.domain.messages import DueTimeReached
from timer_service.domain.timer import Outcome
from timer_service.observability.batch_histogram import BatchHistogram
from timer_service.observability.recent import RecentWork
from timer_service.ports.delivery_store import DeliveryCounts
from timer_service.ports.event_sink import Published
from timer_service.ports.health import LatenessHistory, Recent
from timer_service.ports.timer_store import StoreCounts
from timer_service.workflows.deliver_callbacks import Attempted
from timer_service.workflows.fire_due_timers import FireReport
from timer_service.workflows.schedule_timers import ScheduleReport

LATENESS_BUCKETS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0),
)
DURATION_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZE_BUCKETS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
OTHERS: Final = "other"
_ENDS: Final = [state.lower() for state in (DeliveryState.DELIVERED, DeliveryState.FAILED)]
"""How attempts end a callback; the others are abandoned."""


def _counter(name: str, text: str, *labels: str) -> Any:
    return field(default_factory=partial(Counter, name, text, labels, registry=None))


def _histogram(name: str, text: str, *labels: str, buckets: Sequence[float]) -> Any:
    return field(default_factory=partial(Histogram, name, text, labels, buckets=buckets, registry=None))


def _batch_histogram(name: str, text: str, *, buckets: Sequence[float]) -> Any:
    return field(default_factory=partial(BatchHistogram, name, text, buckets=buckets, registry=None))


def _gauge(name: str, text: str) -> Any:
    return field(default_factory=partial(Gauge, name, text, registry=None))


def _late_s(at: datetime, made: Attempted) -> float:
    return max(0.0, (at - made.finished.before.due_at).total_seconds())


@dataclass(frozen=True)
class _Table:
    """What is counted and measured."""

    commands: Counter = _counter("timer_commands_received", "Commands by type and outcome", "type", "outcome")
    letters: Counter = _counter("timer_dead_letters", "Messages refused, by reason", "reason")
    letters_dropped: Counter = _counter(
        "timer_dead_letters_dropped", "Messages refused whose letter was given up"
    )
    redeliveries: Counter = _counter("timer_redeliveries", "Messages delivered more than once")
    fired: Counter = _counter("timer_schedules_processed", "Timers fired: confirmed by the broker")
    expired: Counter = _counter("timer_schedules_expired", "Timers that expired instead of firing")
    publish_failures: Counter = _counter("timer_publish_failures", "Events not confirmed, by kind", "kind")
    lateness: BatchHistogram = _batch_histogram(
        "timer_lateness_seconds", "From the due time to the broker's confirmation", buckets=LATENESS_BUCKETS_S
    )
    tenant_lateness: Histogram = _histogram(
        "timer_tenant_lateness_seconds",
        "Lateness by tenant, where TIMER_METRICS_TENANTS asks for it",
        "tenant",
        buckets=LATENESS_BUCKETS_S,
    )
    polling: Histogram = _histogram(
        "timer_polling_duration_seconds",
        "One look for due timers, with publishing and marking",
        buckets=DURATION_BUCKETS_S,
    )
    writes: Histogram = _histogram(
        "timer_store_write_seconds", "One write transaction", "operation", buckets=DURATION_BUCKETS_S
    )
    batch_size: Histogram = _histogram(
        "timer_batch_size", "Commands or timers per batch", "kind", buckets=SIZE_BUCKETS
    )
    requests: Histogram = _histogram(
        "timer_request_duration_seconds",
        "Requests to the API by endpoint and outcome",
        "endpoint",
        "outcome",
        buckets=DURATION_BUCKETS_S,
    )
    catch_up_given_up: Counter = _counter(
        "timer_catch_up_given_up",
        "Timers fired although commands of their tenant still waited, after TIMER_CATCH_UP",
    )
    callback_attempts: Counter = _counter(
        "timer_callback_attempts", "Attempts to deliver a callback, by how they ended", "outcome"
    )
    callbacks_ended: Counter = _counter(
        "timer_callbacks_ended", "Callbacks delivered or given up, by state", "state"
    )
    callback_sent: BatchHistogram = _batch_histogram(
        "timer_callback_sent_lateness_seconds",
        "From the due time to the first attempt",
        buckets=LATENESS_BUCKETS_S,
    )
    callback_delivered: BatchHistogram = _batch_histogram(
        "timer_callback_delivered_lateness_seconds",
        "From the due time to the receiver's answer that ended the delivery",
        buckets=LATENESS_BUCKETS_S,
    )
    origin_attempts: Counter = _counter(
        "timer_callback_origin_attempts",
        "The same attempts by receiver, where TIMER_METRICS_ORIGINS asks for it",
        "origin",
        "outcome",
    )
    purged: Counter = _counter("timer_purged", "Ended timers deleted by retention")
    connects: Counter = _counter("timer_broker_connects", "Sessions with the broker, the first one included")

    def __post_init__(self) -> None:
        """Begin at zero: of a series that begins with its first count Prometheus sees no increase."""
        known = (
            (self.letters, RefusalReason),
            (
                self.publish_failures,
                [each.name.lower() for each in Published if each is not Published.CONFIRMED],
            ),
            (self.callback_attempts, AttemptOutcome),
            (self.callbacks_ended, _ENDS),
        )
        for counter, values in known:
            for value in values:
                counter.labels(value)
        self.commands.labels("ScheduleTimer", Outcome.SCHEDULED.value)


@dataclass(frozen=True)
class Gauges:
    """What has a value at any moment: it is set, or a function returns it."""

    pending: Gauge = _gauge("timer_pending", "Scheduled timers, due or not")
    backlog: Gauge = _gauge("timer_backlog", "Timers that are due and not fired yet")
    oldest_overdue_s: Gauge = _gauge(
        "timer_oldest_overdue_seconds", "How long the oldest of them has been due"
    )
    tenants_waiting: Gauge = _gauge(
        "timer_tenants_waiting", "Tenants whose due timers wait for commands in the stream"
    )
    callbacks_waiting: Gauge = _gauge("timer_callbacks_waiting", "Callbacks that wait for an attempt")
    callbacks_overdue: Gauge = _gauge(
        "timer_callbacks_overdue", "Callbacks whose next attempt should have begun"
    )
    oldest_callback_overdue_s: Gauge = _gauge(
        "timer_oldest_callback_overdue_seconds", "For how long the first of these should have begun"
    )
    callbacks_under_way: Gauge = _gauge("timer_callbacks_under_way", "Callbacks that are being sent")
    open_breakers: Gauge = _gauge(
        "timer_callback_breakers_open", "Receivers that are given nothing for a while, tenant by tenant"
    )
    last_poll_timestamp_s: Gauge = _gauge(
        "timer_last_poll_timestamp_seconds", "When the worker last looked for due timers"
    )
    broker_connected: Gauge = _gauge(
        "timer_broker_connected", "1 while the broker, its streams and the consumer are there"
    )
    dead_letters_waiting: Gauge = _gauge(
        "timer_dead_letters_waiting", "Refused messages that wait for their letters"
    )
    store_available: Gauge = _gauge("timer_store_available", "1 while the store takes writes")
    store_file_bytes: Gauge = _gauge("timer_store_file_bytes", "Size of the database file")
    store_wal_bytes: Gauge = _gauge("timer_store_wal_bytes", "Size of the write-ahead log")
    store_free_bytes: Gauge = _gauge("timer_store_free_bytes", "Space left on the store's disk")
    clock_step_held_s: Gauge = _gauge(
        "timer_clock_step_held_seconds", "Leap of the wall clock that waits to be confirmed"
    )
    stream_tail_lost: Gauge = _gauge(
        "timer_stream_tail_lost", "1 for a day after the broker came back without its newest commands"
    )
    clock_skew_s: Gauge = _gauge(
        "timer_clock_skew_seconds", "How far the clock is ahead of the database server's"
    )


class Metrics:
    """What happens, counted; what is, measured."""

    def __init__(
        self, *, tenants: int = 0, origins: int = 0, elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.gauges = Gauges()
        self._table = _Table()
        self._registry = CollectorRegistry()
        for table in (self._table, self.gauges):
            for metric in fields(table):
                self._registry.register(getattr(table, metric.name))
        # Kept at hand: to find it by its labels takes longer than all else about a request that is refused.
        self._requests_of = cache(self._table.requests.labels)
        self._recent = RecentWork(LATENESS_BUCKETS_S, elapsed_s)
        self._tenants = _Names(tenants)
        self._origins = _Names(origins)

    def scheduled(self, report: ScheduleReport) -> None:
        """Record a batch of commands."""
        for (command_type, outcome), count in report.commands.items():
            self._table.commands.labels(command_type, outcome.value).inc(count)
        for refusal in report.refusals:
            self._table.letters.labels(refusal.reason.value).inc()
        self._table.redeliveries.inc(report.redelivered)
        self._table.batch_size.labels("commands").observe(report.commands.total())
        self._recent.scheduled(report.commands.total())

    def fired(self, report: FireReport, seconds: float) -> None:
        """Record one look for due timers."""
        table = self._table
        table.polling.observe(seconds)
        self.gauges.tenants_waiting.set(report.catch_up.waiting)
        table.catch_up_given_up.inc(report.catch_up.let_go)
        for _, result in report.failed:
            table.publish_failures.labels(result.outcome.name.lower()).inc()
        if not report.confirmed:
            return
        # What has expired is late by what its sender asked for.
        reached = [event for event in report.confirmed if isinstance(event, DueTimeReached)]
        table.fired.inc(len(reached))
        table.expired.inc(len(report.confirmed) - len(reached))
        table.batch_size.labels("timers").observe(len(report.confirmed))
        confirmed_at = report.confirmed_at
        lateness_s = [max(0.0, (confirmed_at - event.due_at).total_seconds()) for event in reached]
        table.lateness.observe_all(self._recent.fired(lateness_s), sum(lateness_s))
        if self._tenants.are_wanted:
            for event, late_s in zip(reached, lateness_s, strict=True):
                table.tenant_lateness.labels(self._tenants.label(event.tenant_id)).observe(late_s)

    def handed_over(self, report: FireReport) -> None:
        """Record due timers whose deliveries were opened."""
        self._table.fired.inc(len(report.confirmed))
        self._table.batch_size.labels("callbacks").observe(len(report.confirmed))

    def delivered(self, group: Sequence[Attempted]) -> None:
        """Record attempts whose outcomes are kept, all of them in a few steps."""
        table = self._table
        made = [each for each in group if each.result is not None]
        outcomes = [outcome_of(each.result).value for each in made if each.result is not None]
        for outcome, count in Counted(outcomes).items():
            table.callback_attempts.labels(outcome).inc(count)
        if self._origins.are_wanted:
            for each, outcome in zip(made, outcomes, strict=True):
                table.origin_attempts.labels(self._origins.label(each.finished.before.origin), outcome).inc()
        first = [each for each in made if not each.finished.before.attempts]
        table.callback_sent.observe_many(_late_s(each.started_at, each) for each in first)
        for state, count in Counted(each.finished.after.state for each in group).items():
            if state is not DeliveryState.WAITING:
                table.callbacks_ended.labels(str(state).lower()).inc(count)
        ended = [each for each in group if each.finished.after.state is DeliveryState.DELIVERED]
        table.callback_delivered.observe_many(_late_s(each.ended_at, each) for each in ended)

    def delivering(self, *, under_way: int, open_breakers: int) -> None:
        """Record what is being sent, and to whom nothing is."""
        self.gauges.callbacks_under_way.set(under_way)
        self.gauges.open_breakers.set(open_breakers)

    def deliveries_counted(self, counts: DeliveryCounts, now: datetime) -> None:
        """Record what waits to be delivered."""
        self.gauges.callbacks_waiting.set(counts.waiting)
        self.gauges.callbacks_overdue.set(counts.overdue)
        overdue_since = counts.oldest_overdue_at or now
        self.gauges.oldest_callback_overdue_s.set((now - overdue_since).total_seconds())

    def wrote(self, operation: str, seconds: float) -> None:
        """Record a write transaction."""
        self._table.writes.labels(operation).observe(seconds)

    def request_answered(self, endpoint: str, outcome: str, seconds: float) -> None:
        """Record an answered request of the API."""
        self._requests_of(endpoint, outcome).observe(seconds)

    def purged(self, count: int) -> None:
        """Record what retention deleted."""
        self._table.purged.inc(count)

    def connected(self) -> None:
        """Record a session with the broker."""
        self._table.connects.inc()

    def letter_dropped(self) -> None:
        """Record a refused message that gets no letter."""
        self._table.letters_dropped.inc()

    def counted(self, counts: StoreCounts, oldest_overdue_s: float) -> None:
        """Record what the store holds."""
        self.gauges.pending.set(counts.pending)
        self.gauges.backlog.set(counts.overdue)
        self.gauges.oldest_overdue_s.set(oldest_overdue_s)
        self.gauges.store_file_bytes.set(counts.file_bytes)
        self.gauges.store_wal_bytes.set(counts.log_bytes)
        self.gauges.store_free_bytes.set(counts.free_bytes)

    def health(self, *, polled_at: float, broker: bool, store: bool) -> None:
        """Record what works."""
        self.gauges.last_poll_timestamp_s.set(polled_at)
        self.gauges.broker_connected.set(broker)
        self.gauges.store_available.set(store)

    def lateness_history(self) -> LatenessHistory:
        """Return how late timers were, minute by minute."""
        return self._recent.history()

    def recent(self) -> Recent:
        """Return rates and lateness of the last minute, for `timer-service status`."""
        return self._recent.summary()

    def text(self) -> bytes:
        """Return everything in the Prometheus text format."""
        return generate_latest(self._registry)


class _Names:
    """Names that become labels: a bounded number, then one label for all others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    @property
    def are_wanted(self) -> bool:
        return self._limit > 0

    def label(self, name: str) -> str:
        if name not in self._known and len(self._known) < self._limit:
            self._known.add(name)
        return name if name in self._known else OTHERS
