"""The composition root: settings in, a running service out."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from timer_client.subjects import Subjects
from timer_service.adapters.nats.bus import NatsEventBus, NatsOptions
from timer_service.adapters.nats.requests import request_api
from timer_service.adapters.system import SystemClock, chance
from timer_service.config import Settings, nats_connect_options
from timer_service.domain.admission import RateLimit
from timer_service.observability.metrics import Metrics
from timer_service.service import Service
from timer_service.stores import open_store
from timer_service.timers import Timers


@asynccontextmanager
async def open_service(settings: Settings, instance: str = "timer-service") -> AsyncIterator[Service]:
    """Build the service with its real adapters; the broker may still be away."""
    clock = SystemClock(settings.max_clock_step_span)
    metrics = Metrics(tenants=settings.metrics_tenants)
    metrics.gauges.clock_step_held_s.set_function(lambda: clock.held_step_s)
    async with AsyncExitStack() as stack:
        store, listen, meet_history = await stack.enter_async_context(
            open_store(settings, clock.now, metrics)
        )
        bus = NatsEventBus(
            _nats_options(settings),
            clock,
            chance,
            store,
            metrics.connected,
            metrics.letter_dropped,
            meet_history=meet_history,
        )
        metrics.gauges.dead_letters_waiting.set_function(lambda: bus.letters.waiting)
        metrics.gauges.stream_tail_lost.set_function(lambda: bus.positions.warning is not None)
        service = Service(
            store=store,
            source=bus,
            sink=bus,
            clock=clock,
            chance=chance,
            poll_interval_s=settings.polling_interval / 1000,
            batch_size=settings.batch_size,
            metrics=metrics,
            precise_wakeup=settings.precise_wakeup,
            retention=settings.retention_span,
            catch_up=settings.catch_up_span,
            other_problems=lambda: {"clock": clock.problem},
            warnings=lambda: bus.warnings,
        )
        timers = Timers(
            instance=instance,
            store=store,
            source=bus,
            clock=clock,
            wake_for=service.wake_for,
            accept_clock_step=clock.accept_step,
            broker=lambda: bus.server,
            health=service.health,
            recent=metrics.recent,
            counted=service.note_counts,
        )
        api = request_api(
            timers,
            Subjects(settings.subject_prefix),
            rate_limit=RateLimit(settings.request_rate, settings.request_burst),
            answered=metrics.request_answered,
        )
        if settings.http_port:
            # Here, because to load FastAPI takes a quarter of the whole start.
            from timer_service.adapters.http.server import create_app, serving  # noqa: PLC0415

            app = create_app(observe=service.observe, health=service.health, metrics=metrics.text)
            await stack.enter_async_context(serving(app, settings.http_host, settings.http_port))
        await stack.enter_async_context(bus.running())
        # Inside: what is under way at the end is answered over the connection that the bus then closes.
        bus.attach(await stack.enter_async_context(api))
        await stack.enter_async_context(listen(service.wake_for))
        yield service


def _nats_options(settings: Settings) -> NatsOptions:
    return NatsOptions(
        connect=nats_connect_options(settings),
        prefix=settings.subject_prefix,
        domain=settings.jetstream_domain,
        replicas=settings.stream_replicas,
        batch_size=settings.batch_size,
        ack_wait_s=settings.ack_wait / 1000,
    )
