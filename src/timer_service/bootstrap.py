"""The composition root: settings in, a running service out."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from timer_service.adapters.http.server import create_app, serving
from timer_service.adapters.nats.bus import NatsEventBus, NatsOptions
from timer_service.adapters.sqlite.archive import open_sqlite_archive
from timer_service.adapters.sqlite.store import open_sqlite_store
from timer_service.adapters.system import SystemClock, chance, local_now
from timer_service.calls import Calls
from timer_service.config import Settings
from timer_service.domain.errors import InvalidConfiguration
from timer_service.observability import Metrics
from timer_service.ports.timer_archive import TimerArchive
from timer_service.ports.timer_store import TimerStore
from timer_service.service import Service


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Build the service with its real adapters; the broker may still be away."""
    clock = SystemClock(settings.max_clock_step_span)
    metrics = Metrics(tenants=settings.metrics_tenants)
    metrics.follow("timer_clock_step_held_seconds", lambda: clock.held_step_s)
    async with AsyncExitStack() as stack:
        store, listen = await stack.enter_async_context(_open_store(settings, clock, metrics))
        bus = NatsEventBus(_nats_options(settings), clock, chance, metrics.connected)
        service = Service(
            store=store,
            bus=bus,
            clock=clock,
            chance=chance,
            poll_interval_s=settings.polling_interval / 1000,
            batch_size=settings.batch_size,
            metrics=metrics,
            precise_wakeup=settings.precise_wakeup,
            retention=settings.retention_span,
            other_problems=lambda: {"clock": clock.problem},
        )
        calls = Calls(
            store=store,
            bus=bus,
            clock=clock,
            metrics=metrics,
            wake_for=service.wake_for,
            accept_clock_step=clock.accept_step,
            facts=lambda: {"broker": bus.server, "problems": service.health().problems},
        )
        if settings.http_port:
            app = create_app(observe=service.observe, health=service.health, metrics=metrics.text)
            await stack.enter_async_context(serving(app, settings.http_host, settings.http_port))
        await stack.enter_async_context(bus.running(calls))
        await stack.enter_async_context(listen(service.wake_for))
        yield service


Listen = Callable[[Callable[[datetime], None]], AbstractAsyncContextManager[None]]
"""Call back whenever another instance accepts a nearer timer."""


@asynccontextmanager
async def _open_store(
    settings: Settings, clock: SystemClock, metrics: Metrics
) -> AsyncIterator[tuple[TimerStore, Listen]]:
    if settings.postgres_url is None:
        async with open_sqlite_store(settings.sqlite_path, clock.now) as file:
            yield file, lambda _: nullcontext()
        return
    _need_postgres("TIMER_STORE_URL")
    from timer_service.adapters.postgres.store import open_postgres_store  # noqa: PLC0415

    async with open_postgres_store(
        settings.postgres_url, clock.now, statement_cache_size=settings.store_statement_cache
    ) as store:
        metrics.follow("timer_clock_skew_seconds", lambda: store.skew_s)
        yield store, store.listen


@asynccontextmanager
async def open_archives(source: str, target: str) -> AsyncIterator[tuple[TimerArchive, TimerArchive]]:
    """Open two stores that no service is using, one to be copied into the other."""
    if source == target:
        raise InvalidConfiguration("--from and --to name the same store")
    async with open_archive(source, as_source=True) as one, open_archive(target, as_source=False) as other:
        yield one, other


def open_archive(url: str, *, as_source: bool) -> AbstractAsyncContextManager[TimerArchive]:
    """Open one store that no service is using."""
    option = "--from" if as_source else "--to"
    if url.startswith("sqlite:///") and url != "sqlite:///":
        return open_sqlite_archive(Path(url.removeprefix("sqlite:///")), local_now, must_exist=as_source)
    if url.startswith(("postgresql://", "postgres://")):
        _need_postgres(option)
        from timer_service.adapters.postgres.archive import open_postgres_archive  # noqa: PLC0415

        return open_postgres_archive(url, as_source=as_source)
    raise InvalidConfiguration(
        f"{option} must be sqlite:///path or postgresql://user:password@host:port/database"
    )


def _need_postgres(named_by: str) -> None:
    # The driver is an extra: it is loaded only where it is asked for.
    if find_spec("asyncpg") is None:
        raise InvalidConfiguration(f"{named_by} names a PostgreSQL database: install timer-service[postgres]")


def _nats_options(settings: Settings) -> NatsOptions:
    return NatsOptions(
        connect=settings.nats_connect_options(),
        prefix=settings.subject_prefix,
        domain=settings.jetstream_domain,
        replicas=settings.stream_replicas,
        batch_size=settings.batch_size,
        ack_wait_s=settings.ack_wait / 1000,
    )
