"""The service on a virtual clock: everything else about it is real."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

import nats
from nats.aio.client import Client

from timer_service.adapters.nats.bus import NatsBus, NatsMeans
from timer_service.adapters.nats.sink import NatsEventSink
from timer_service.bootstrap import REAL_PARTS, Parts, open_service
from timer_service.config import Settings, nats_connect_options
from timer_service.ports.time_travel import Travelled
from timer_service.service.run import Service
from timer_service.testing.api_keys import MemoryApiKeys
from timer_service.testing.audit import MemoryAudit
from timer_service.testing.clock_requests import clock_requests
from timer_service.testing.hostile import HostileEventSink
from timer_service.testing.secrets import MemorySecretStore
from timer_service.testing.settling import Settling
from timer_service.testing.store import MemoryTimerStore
from timer_service.testing.virtual_clock import VirtualClock
from timer_service.testing.walk import USUAL_LIMITS, NotSettled, Walk, Walked, WalkLimits
from timer_service.wiring.stores import OpenedStore, Store

MAX_TRAVEL_S: Final = 5.0
"""Of real time for one form of the page: it then shows how far time has come."""


def in_memory(parts: Parts = REAL_PARTS) -> Parts:
    """Keep timers in memory: nothing is left of them at the end."""
    return replace(parts, open_store=_open_in_memory)


def hostile(parts: Parts = REAL_PARTS) -> Parts:
    """Publish every event twice, out of order, and with stale generations."""
    return replace(parts, make_bus=partial(NatsBus, means=NatsMeans(make_sink=HostileEventSink)))


def _on(clock: VirtualClock, parts: Parts, *, hostile_delivery: bool) -> Parts:
    """Take all time from the clock: a delay counts from when the service takes the command.

    That is when it was sent, because time does not move while commands wait.
    """
    make_sink = HostileEventSink if hostile_delivery else NatsEventSink
    means = NatsMeans(delays_from=clock.delays_from, make_sink=make_sink)
    return replace(parts, make_clock=lambda _: clock, make_bus=partial(NatsBus, means=means))


@asynccontextmanager
async def _open_in_memory(_: Settings, __: Callable[[], datetime]) -> AsyncIterator[OpenedStore]:
    yield OpenedStore(MemoryTimerStore(), MemorySecretStore(), MemoryApiKeys(), MemoryAudit())


@dataclass(frozen=True, slots=True)
class VirtualService:
    """A service whose time is moved by `walk`."""

    service: Service
    walk: Walk
    store: Store


@asynccontextmanager
async def open_virtual_service(
    settings: Settings,
    instance: str,
    clock: VirtualClock,
    parts: Parts = REAL_PARTS,
    limits: WalkLimits = USUAL_LIMITS,
    *,
    hostile_delivery: bool = False,
) -> AsyncIterator[VirtualService]:
    """Build the service with this clock, and serve the requests that move it."""
    opened: list[Store] = []

    @asynccontextmanager
    async def open_and_keep(chosen: Settings, now: Callable[[], datetime]) -> AsyncIterator[OpenedStore]:
        async with parts.open_store(chosen, now) as store:
            opened.append(store.store)
            yield store

    travel = _Travel()
    virtual = _on(clock, parts, hostile_delivery=hostile_delivery)
    virtual = replace(virtual, open_store=open_and_keep, travel=travel)
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(open_service(settings, instance, virtual))
        client = await stack.enter_async_context(_connection(settings))
        settling = Settling(client, settings.subject_prefix, opened[0], clock)
        walk = Walk(clock, settling, lambda: service.health().problems, limits)
        travel.walk = walk
        await stack.enter_async_context(clock_requests(client, settings.subject_prefix, walk))
        yield VirtualService(service, walk, opened[0])


class _Travel:
    """Moves the clock for the page, which is there before the walk is."""

    walk: Walk | None = None

    async def go_to(self, target: datetime) -> Travelled:
        """Go from due time to due time until the target, or for some seconds of real time."""
        return await self._go(lambda walk: walk.advance_to(target, MAX_TRAVEL_S))

    async def go_to_next(self) -> Travelled:
        """Go to the next due time."""
        return await self._go(Walk.advance_to_next)

    async def _go(self, step: Callable[[Walk], Awaitable[Walked]]) -> Travelled:
        if self.walk is None:
            raise ValueError("the service has not started yet: try again in a moment")
        try:
            walked = await step(self.walk)
        except NotSettled as failure:
            raise ValueError(str(failure)) from failure
        return Travelled(walked.now, walked.published, walked.arrived)


@asynccontextmanager
async def _connection(settings: Settings) -> AsyncIterator[Client]:
    """Connect beside the service, whose own connection does nothing but its work."""
    client = await nats.connect(
        **nats_connect_options(settings), name="timer-service-clock", max_reconnect_attempts=-1
    )
    try:
        yield client
    finally:
        await client.close()
