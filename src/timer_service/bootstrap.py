"""The composition root: settings and parts in, a running service out."""

import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from timer_client.subjects import Subjects
from timer_service.adapters.http.listening import listen
from timer_service.adapters.nats.bus import NatsBus
from timer_service.adapters.nats.options import NatsOptions
from timer_service.adapters.nats.requests import RequestApi, request_api
from timer_service.adapters.no_broker import NoBroker
from timer_service.adapters.retrying import RetryingStore
from timer_service.adapters.system import SystemClock, chance
from timer_service.config import Settings, nats_connect_options
from timer_service.deliveries import Deliveries
from timer_service.domain.admission import RateLimit
from timer_service.explanations import Explanations, Loops
from timer_service.observability.metrics import Metrics
from timer_service.ports.callback_sender import CallbackSender
from timer_service.ports.clock import GuardedClock
from timer_service.ports.delivery_store import DeliveryStore
from timer_service.ports.time_travel import TimeTravel
from timer_service.ports.timer_store import PatientStore, TimerStore
from timer_service.service.run import Service
from timer_service.service.surroundings import Surroundings
from timer_service.timers import Timers
from timer_service.wiring.senders import open_callback_sender, resealing
from timer_service.wiring.stores import OpenedStore, open_store

Bus = NatsBus | NoBroker
"""Where commands come from and events go to."""
HTTP_REMEDY: Final = "set TIMER_HTTP_HOST and TIMER_HTTP_PORT, or TIMER_HTTP_PORT=0 to disable it"


def _rest_api(settings: Settings, **parts: Any) -> AbstractAsyncContextManager[None]:
    # Here, because what it needs takes a while to load.
    from timer_service.wiring.rest_api import RestParts, rest_api  # noqa: PLC0415

    return rest_api(settings, RestParts(**parts))


def _page(settings: Settings, **parts: Any) -> AbstractAsyncContextManager[None]:
    # Here, as above.
    from timer_service.wiring.page import PageParts, page  # noqa: PLC0415

    return page(settings, PageParts(**parts))


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service is built from; by default, the real parts."""

    make_clock: Callable[[timedelta | None], GuardedClock] = SystemClock
    """Given the largest leap that is followed."""
    chance: Callable[[], float] = chance
    elapsed_s: Callable[[], float] = time.monotonic
    open_store: Callable[[Settings, Callable[[], datetime]], AbstractAsyncContextManager[OpenedStore]] = (
        open_store
    )
    make_bus: Callable[..., NatsBus] = NatsBus
    """Commands in and events out, over one connection; not asked for where the settings name no broker."""
    open_sender: Callable[..., AbstractAsyncContextManager[CallbackSender]] = open_callback_sender
    """What sends callbacks."""
    serve_api: Callable[..., AbstractAsyncContextManager[None]] = _rest_api
    """What takes requests over HTTP."""
    serve_page: Callable[..., AbstractAsyncContextManager[None]] = _page
    """What people look at."""
    listener: socket.socket | None = None
    """Where health and metrics are served; None listens as the settings say."""
    api_listener: socket.socket | None = None
    """Where the REST API is served; None listens as the settings say."""
    page_listener: socket.socket | None = None
    """Where the page is served; None listens as the settings say."""
    is_dev: bool = False
    """Whether somebody tries the service out."""
    travel: TimeTravel | None = None
    """What moves the clock, where that is possible."""

    def of_page(self) -> dict[str, Any]:
        """Return those of them that only the page needs."""
        return {
            "chance": self.chance,
            "is_dev": self.is_dev,
            "travel": self.travel,
            "listener": self.page_listener,
        }


REAL_PARTS: Final = Parts()


@asynccontextmanager
async def open_service(
    settings: Settings, instance: str = "timer-service", parts: Parts = REAL_PARTS
) -> AsyncIterator[Service]:
    """Build the service from its parts; the broker may still be away."""
    clock = parts.make_clock(settings.max_clock_step_span)
    metrics = _metrics(settings, parts)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(parts.open_store(settings, clock.now))
        nats = _nats(settings, parts, opened, clock, metrics) if settings.has_broker else None
        bus = nats or NoBroker(opened.store)
        metrics.gauges.clock_step_held_s.set_function(lambda: clock.held_step_s)
        metrics.gauges.clock_skew_s.set_function(opened.clock_skew_s)
        store = RetryingStore(opened.store, clock=clock, chance=parts.chance, wrote=metrics.wrote)
        sender = await stack.enter_async_context(_sender(settings, parts, opened, clock))
        callbacks = (opened.store.deliveries, sender)
        service = _service(settings, parts, store, bus, callbacks, clock, metrics)
        explanations = _explanations(settings, opened, store, bus, clock, metrics, service)
        timers = _timers(instance, store, bus, clock, metrics, service, explanations)
        rate_limit = RateLimit(settings.request_rate, settings.request_burst)
        for way_in in _ways_in(
            settings, parts, opened, bus, timers, explanations, service, clock, metrics, rate_limit
        ):
            await stack.enter_async_context(way_in)
        headers = opened.store.sealed_headers
        await stack.enter_async_context(resealing(settings, opened.secrets, headers, clock.now))
        await stack.enter_async_context(bus.running())
        if nats is not None:
            # Inside: what is under way at the end is answered over the connection that the bus then closes.
            nats.attach(await stack.enter_async_context(_request_api(settings, timers, metrics, rate_limit)))
        await stack.enter_async_context(opened.listen(service.heard_of))
        yield service


def _ways_in(
    settings: Settings,
    parts: Parts,
    opened: OpenedStore,
    bus: Bus,
    timers: Timers,
    explanations: Explanations,
    service: Service,
    clock: GuardedClock,
    metrics: Metrics,
    rate_limit: RateLimit,
) -> Iterator[AbstractAsyncContextManager[None]]:
    """Yield what is served over HTTP, as far as it is wanted."""
    if settings.http_port:
        yield _http(settings, parts, service, metrics)
    deliveries = Deliveries(
        *(opened.store.deliveries, opened.store.callback_list, clock), service.deliver_from, service.fail
    )
    common: dict[str, Any] = {"opened": opened, "timers": timers, "deliveries": deliveries, "clock": clock}
    common["elapsed_s"] = parts.elapsed_s
    if settings.api_port:
        yield parts.serve_api(
            settings,
            **common,
            rate_limit=rate_limit,
            answered=metrics.request_answered,
            listener=parts.api_listener,
        )
    if settings.page_port:
        yield parts.serve_page(
            settings,
            **common,
            explanations=explanations,
            letters=bus.letter_box,
            broker=bus.view,
            recent=metrics.recent,
            lateness_history=metrics.lateness_history,
            health=service.health,
            right_of_way=service.right_of_way,
            **parts.of_page(),
        )


def _sender(
    settings: Settings, parts: Parts, opened: OpenedStore, clock: GuardedClock
) -> AbstractAsyncContextManager[CallbackSender]:
    # Where callbacks can be asked for, a missing key is said at the start.
    at_once = settings.api_port > 0
    return parts.open_sender(settings, opened.secrets, clock.now, parts.elapsed_s, at_once=at_once)


def _metrics(settings: Settings, parts: Parts) -> Metrics:
    return Metrics(
        tenants=settings.metrics_tenants, origins=settings.metrics_origins, elapsed_s=parts.elapsed_s
    )


def _nats(
    settings: Settings, parts: Parts, opened: OpenedStore, clock: GuardedClock, metrics: Metrics
) -> NatsBus:
    bus = parts.make_bus(
        _nats_options(settings),
        clock,
        parts.chance,
        opened.store,
        connected=metrics.connected,
        letters_dropped=metrics.letter_dropped,
        meet_history=opened.meet_history,
    )
    metrics.gauges.dead_letters_waiting.set_function(lambda: bus.letters.waiting)
    metrics.gauges.stream_tail_lost.set_function(lambda: bus.positions.warning is not None)
    return bus


def _request_api(
    settings: Settings, timers: Timers, metrics: Metrics, rate_limit: RateLimit
) -> AbstractAsyncContextManager[RequestApi]:
    return request_api(
        timers,
        Subjects(settings.subject_prefix),
        rate_limit=rate_limit,
        answered=metrics.request_answered,
    )


def _service(
    settings: Settings,
    parts: Parts,
    store: PatientStore,
    bus: Bus,
    callbacks: tuple[DeliveryStore, CallbackSender],
    clock: GuardedClock,
    metrics: Metrics,
) -> Service:
    deliveries, sender = callbacks
    return Service(
        Surroundings(
            store=store,
            source=bus.source,
            sink=bus.sink,
            clock=clock,
            chance=parts.chance,
            metrics=metrics,
            deliveries=deliveries,
            sender=sender,
            elapsed_s=parts.elapsed_s,
            # On a clock that somebody moves, time would wait for the rest, and the rest for time.
            spares_receivers=parts.travel is None,
        ),
        poll_interval_s=settings.polling_interval / 1000,
        batch_size=settings.batch_size,
        precise_wakeup=settings.precise_wakeup,
        retention=settings.retention_span,
        catch_up=settings.catch_up_span,
        other_problems=lambda: {"clock": clock.problem},
        warnings=lambda: bus.warnings,
    )


def _timers(
    instance: str,
    store: TimerStore,
    bus: Bus,
    clock: GuardedClock,
    metrics: Metrics,
    service: Service,
    explanations: Explanations,
) -> Timers:
    return Timers(
        instance=instance,
        store=store,
        source=bus.source,
        clock=clock,
        wake_for=service.wake_for,
        accept_clock_step=clock.accept_step,
        broker=lambda: bus.server,
        health=service.health,
        recent=metrics.recent,
        counted=service.note_counts,
        explain=explanations.explain,
    )


def _explanations(
    settings: Settings,
    opened: OpenedStore,
    store: PatientStore,
    bus: Bus,
    clock: GuardedClock,
    metrics: Metrics,
    service: Service,
) -> Explanations:
    return Explanations(
        store=store,
        deliveries=opened.store.deliveries,
        source=bus.source,
        clock=clock,
        letters=bus.letter_box,
        trail=bus.event_trail,
        loops=Loops(
            health=service.health,
            recent=metrics.recent,
            since=lambda: {"broker": bus.away_since, "store": store.problem_since},
            obstacle=service.obstacle,
            receiver_back_at=service.receiver_back_at,
        ),
        has_broker=settings.has_broker,
    )


def _http(
    settings: Settings, parts: Parts, service: Service, metrics: Metrics
) -> AbstractAsyncContextManager[None]:
    # Here, as above.
    from timer_service.adapters.http.server import create_app, serving  # noqa: PLC0415

    app = create_app(observe=service.observe, health=service.health, metrics=metrics.text)
    listener = parts.listener or listen(settings.http_host, settings.http_port, remedy=HTTP_REMEDY)
    return serving(app, listener, ws="none")


def _nats_options(settings: Settings) -> NatsOptions:
    return NatsOptions(
        connect=nats_connect_options(settings),
        prefix=settings.subject_prefix,
        domain=settings.jetstream_domain,
        replicas=settings.stream_replicas,
        batch_size=settings.batch_size,
        ack_wait_s=settings.ack_wait / 1000,
    )
