"""The timer service on PostgreSQL: one, two and three instances, and many pending timers."""

import asyncio
import contextlib
import itertools
import shutil
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg
from tests.support.postgres import PostgresServer

from bench import limits, rows
from bench.harness import (
    Broker,
    Generator,
    Listener,
    Processors,
    Rig,
    TimerService,
    check_in_time,
    now_ms,
)
from bench.load import Load
from bench.report import Figure, Goal, median, percentile
from bench.scale import TURN_S, beside_smallest
from bench.workloads import (
    BURST_LEAD_S,
    DRAIN_TIMEOUT_S,
    FAR_S,
    SHARES,
    Bench,
    drain_rate,
    steady_lateness,
)
from timer_service.adapters.postgres.opening import open_postgres_store

INSTANCES: Final = (1, 2, 3)
PART: Final = "postgres"
AS_TWO: Final = Goal(0.8, 0.9, of="ratio", at_least=True)
SETTINGS: Final = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "default_transaction_isolation": "read committed",
}
"""Those of an ordinary server: the tests' own are for speed and for finding bugs."""
COLUMNS: Final = (
    *("tenant_id", "service_call_id", "state", "due_at", "registered_at", "correlation_id", "reached_at"),
    *("stream_sequence", "generation", "stream_created_us"),
)

T = TypeVar("T")
_numbers = itertools.count(1)


def measure_postgres(bench: Bench) -> Iterator[Figure]:
    """Measure ingest, burst and lateness on a PostgreSQL that shares the machine."""
    with server() as database_server:
        for measure in (_ingest, _burst):
            rates = []
            for instances in INSTANCES:
                rate, busy = measure(bench, database_server, instances)
                rates.append(rate.value)
                yield rate
                yield busy
            what = f"{_counted(2)}: {'commands' if measure is _ingest else 'timers'}, part of twice one"
            yield Figure(PART, what, rates[1], "/s", "twice one instance", 2 * rates[0], AS_TWO)
        yield from _scale(bench, database_server)


@contextlib.contextmanager
def server() -> Iterator[PostgresServer]:
    """Start a PostgreSQL that waits for the disk, in the system's folder for temporary files."""
    started = PostgresServer(**SETTINGS).start()
    try:
        yield started
    finally:
        started.remove()


@contextlib.contextmanager
def database(on: PostgresServer, template: str = "template1") -> Iterator[str]:
    """Make a database for one measurement: a copy of the template, file by file."""
    name = f"bench_{next(_numbers)}"
    made = f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"
    run(on.url(), lambda link: link.execute(made, timeout=600))
    try:
        yield on.url(name)
    finally:
        run(on.url(), lambda link: link.execute(f"DROP DATABASE {name} WITH (FORCE)"))


def run(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Do something on a connection of its own."""

    async def connected() -> T:
        link = await asyncpg.connect(url)
        try:
            return await work(link)
        finally:
            await link.close()

    return asyncio.run(connected())


class OnPostgres(TimerService):
    """The real process on a database that others may share."""

    def __init__(
        self, folder: Path, broker: Broker, url: str, log_level: str, settings: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        super().__init__(
            folder, broker, folder / "unused.db", log_level, {**settings, "TIMER_STORE_URL": url}
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """One broker and several instances on one database."""

    broker: Broker
    services: Sequence[TimerService]
    url: str

    def start_ready(self) -> None:
        for service in self.services:
            service.start_ready()


@contextlib.contextmanager
def cluster(
    bench: Bench,
    on: PostgresServer,
    instances: int,
    settings: Mapping[str, str] | None = None,
    template: str = "template1",
) -> Iterator[Cluster]:
    """Set up a broker and instances that are not started yet."""
    folder = bench.new_folder()
    folder.mkdir(parents=True)
    with database(on, template) as url:
        broker = Broker(folder / "broker")
        services = [
            OnPostgres(folder / f"instance{number}", broker, url, bench.log_level, settings or {})
            for number in range(instances)
        ]
        try:
            yield Cluster(broker, services, url)
        finally:
            for service in services:
                service.stop()
            broker.stop()
            shutil.rmtree(folder)


def fill(url: str, lot: Iterable[rows.Row]) -> None:
    """Make the tables by the service's own migrations, and write timers straight into them."""

    def record(row: rows.Row) -> tuple[object, ...]:
        tenant, call, state, due, registered, correlation, reached, number = row
        ended = None if reached is None else datetime.fromisoformat(reached)
        moments = (datetime.fromisoformat(due), datetime.fromisoformat(registered))
        return tenant, call, state, *moments, correlation, ended, number, 1, 1

    async def copy(link: Any) -> None:
        async with open_postgres_store(url, lambda: datetime.now(UTC)):
            pass
        await link.copy_records_to_table(
            "timer_schedules", records=map(record, lot), columns=COLUMNS, timeout=600
        )
        await link.execute("VACUUM ANALYZE timer_schedules", timeout=600)
        await link.execute("CHECKPOINT", timeout=600)  # What the loading left to write is not the service's.

    run(url, copy)


def _ingest(bench: Bench, on: PostgresServer, instances: int) -> tuple[Figure, Figure]:
    count, rates, busy, processors = bench.plan.ingest[0], [], [], Processors()
    for _ in range(bench.plan.repeats):
        bench.limits.try_again(limits.PLAIN_READ)
        with cluster(bench, on, instances) as parts:
            parts.services[0].start_ready().stop()  # It creates the streams and the table.
            Generator(Load(parts.broker.port, count, now_ms() + FAR_S * 1000, 1_000)).seconds()
            for service in parts.services:
                service.start()
            rates.append(drain_rate(parts.broker, count, processors.since_now))
            busy.append(processors.busy_percent())
    name = f"{_counted(instances)}: backlog of {count:,} commands"
    limit = limits.PLAIN_READ
    return Figure(PART, name, median(rates), "/s", limit, bench.limits.rate(limit)), _busy(name, busy)


def _burst(bench: Bench, on: PostgresServer, instances: int) -> tuple[Figure, Figure]:
    count, rates, busy, processors = bench.plan.burst[0], [], [], Processors()
    for _ in range(bench.plan.repeats):
        bench.limits.try_again(limits.PLAIN_PUBLISH)
        with cluster(bench, on, instances) as parts:
            due_ms = now_ms() + int(BURST_LEAD_S * 1000) + 3_000 * instances + count // 10
            fill(parts.url, rows.due_together(count, due_ms))
            parts.start_ready()
            listener = Listener(parts.broker, count, DRAIN_TIMEOUT_S)
            check_in_time(due_ms)
            time.sleep(max(0.0, (due_ms - now_ms()) / 1000))
            processors.since_now()
            last_ms = max(arrival.received_ms for arrival in listener.arrivals())
            busy.append(processors.busy_percent())
            rates.append(count / (last_ms - due_ms) * 1000)
    name = f"{_counted(instances)}: {count:,} at one instant"
    limit = limits.PLAIN_PUBLISH
    return Figure(PART, name, median(rates), "/s", limit, bench.limits.rate(limit)), _busy(name, busy)


def _busy(name: str, percents: Sequence[float]) -> Figure:
    """Return how much of the machine was in use: where nothing is left, another instance brings nothing."""
    return Figure(PART, f"{name}: all cores busy", median(percents), "%")


def _scale(bench: Bench, on: PostgresServer) -> Iterator[Figure]:
    """Measure lateness with few and with many pending timers, in turns as the part "scale" does."""
    smallest: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        filled = {pending: stack.enter_context(database(on)) for pending in bench.plan.pending[:2]}
        for pending, url in filled.items():
            fill(url, rows.pending(pending))
            size = run(url, lambda link: link.fetchval(_SIZE))
            yield Figure(PART, f"{pending:,} pending: disk per timer", size / pending, "B")
        for figure in _lateness(bench, on, filled):
            yield beside_smallest(figure, smallest, f"with {bench.plan.pending[0]:,} pending")


def _lateness(bench: Bench, on: PostgresServer, filled: Mapping[int, str]) -> Iterator[Figure]:
    rate, turns = bench.plan.rates[0], defaultdict[int, list[list[float]]](list)
    for _ in range(bench.plan.repeats):
        for pending, url in filled.items():
            template = url.rpartition("/")[2]
            with cluster(bench, on, 1, template=template) as parts:
                parts.start_ready()
                instance = Rig(bench.folder, parts.broker, parts.services[0])
                turns[pending].append(steady_lateness(instance, rate, min(bench.plan.steady_s, TURN_S)))
    for pending, measured in turns.items():
        for label, share in SHARES.items():
            value = median([percentile(lateness, share) for lateness in measured])
            yield Figure(PART, f"{pending:,} pending: {rate:,}/s {label}", value, "ms")


_SIZE: Final = "SELECT pg_total_relation_size('timer_schedules')"


def _counted(instances: int) -> str:
    return "1 instance" if instances == 1 else f"{instances} instances"
