"""The composition root: settings in, a running service out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from timer_service.adapters.nats.bus import NatsOptions, open_nats_bus
from timer_service.adapters.sqlite.store import open_sqlite_store
from timer_service.adapters.system import SystemClock, chance
from timer_service.config import Settings
from timer_service.service import Service


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Build the service with its real adapters; the broker may still be away."""
    clock = SystemClock()
    options = NatsOptions(
        connect=settings.nats_connect_options(),
        prefix=settings.subject_prefix,
        domain=settings.jetstream_domain,
        replicas=settings.stream_replicas,
        batch_size=settings.batch_size,
        ack_wait_s=settings.ack_wait / 1000,
    )
    async with (
        open_sqlite_store(settings.db_path, clock.now) as store,
        open_nats_bus(options, clock, chance) as bus,
    ):
        yield Service(
            store=store,
            bus=bus,
            clock=clock,
            chance=chance,
            poll_interval_s=settings.polling_interval / 1000,
            batch_size=settings.batch_size,
            precise_wakeup=settings.precise_wakeup,
        )
