"""The real service inside a test: on a virtual clock, with its timers in memory and a prefix of its own."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from threading import Thread
from typing import Any, Final, NamedTuple, Self, TypeVar

import nats
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from timer_client import Timers
from timer_client.requests import Timer
from timer_client.subjects import StreamNames
from timer_client.testing.assertions import TimerAssertions, target_of
from timer_service.adapters.codec import timer_view
from timer_service.config import Settings
from timer_service.domain.timer import TimerState
from timer_service.service.run import run_service
from timer_service.testing.clock import START
from timer_service.testing.settling import ANSWER_TIMEOUT_S
from timer_service.testing.store import MemoryTimerStore
from timer_service.testing.virtual import VirtualService, in_memory, open_virtual_service
from timer_service.testing.virtual_clock import VirtualClock
from timer_service.testing.walk import USUAL_LIMITS, Walk, WalkLimits
from timer_service.waiting import first_done, owned

TENANT: Final = "test"
"""Whose timers they are if a test says nothing else."""
READY_TIMEOUT_S: Final = 30.0
"""Only for a broker that does not answer."""

T = TypeVar("T")


@asynccontextmanager
async def running_service(
    broker_url: str,
    prefix: str,
    *,
    starts_at: datetime = START,
    hostile_delivery: bool = False,
    limits: WalkLimits = USUAL_LIMITS,
) -> AsyncIterator[VirtualService]:
    """Run the service in this event loop until the block ends; inside, it takes commands and requests."""
    settings = _settings(broker_url=broker_url, subject_prefix=prefix, http_port=0)
    clock, stop = VirtualClock(starts_at), asyncio.Event()
    async with (
        open_virtual_service(
            settings, f"{prefix}-test", clock, in_memory(), limits, hostile_delivery=hostile_delivery
        ) as virtual,
        owned(run_service(virtual.service, stop), _until_ready(virtual)) as (running, ready),
    ):
        await first_done(running, ready)
        (running if running.done() else ready).result()
        yield virtual
        stop.set()
        await running


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    walk: Walk
    store: MemoryTimerStore


class TimerServiceKit(TimerAssertions):
    """The service in a thread of its own, so that it works whatever event loop a test has."""

    def __init__(
        self,
        broker_url: str,
        prefix: str,
        *,
        starts_at: datetime = START,
        hostile: bool = False,
        settle_timeout: timedelta = timedelta(seconds=USUAL_LIMITS.settle_timeout_s),
    ) -> None:
        self.broker_url = broker_url
        self.prefix = prefix
        self.tenant = TENANT
        self._options: dict[str, Any] = {
            "starts_at": starts_at,
            "hostile_delivery": hostile,
            "limits": WalkLimits(settle_timeout_s=settle_timeout.total_seconds()),
        }
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Walk, MemoryTimerStore]] = (
            Future()
        )
        self._ended: Future[None] = Future()
        self._thread = Thread(target=self._run, name=f"timer-service {prefix}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._stop, self._walk, self._store = self._ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended.done():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._ended.result()

    def now(self) -> datetime:
        """Return the time of the service."""
        return self._walk.now()

    async def advance(
        self, span: timedelta | None = None, *, to: datetime | None = None, **parts: float
    ) -> datetime:
        """Let time pass by a span, by `days=3` and the like, or to a moment; return what time it is then.

        Time stops at every due time until the event is acknowledged by every durable consumer.
        """
        target = target_of(self.now(), span, to, parts)
        return (await self._in_service(self._walk.advance_to(target))).now

    async def advance_to_next(self) -> datetime:
        """Let time pass until the next timer is due, and return what time it is then."""
        return (await self._in_service(self._walk.advance_to_next())).now

    async def settle(self) -> None:
        """Wait, without moving time, until commands are taken and events acknowledged."""
        await self._in_service(self._walk.settle())

    async def fire_now(self, service_call_id: str, *, tenant: str | None = None) -> None:
        """Move a scheduled timer to the present moment and wait until its event is acknowledged."""
        await self.assert_scheduled(service_call_id, tenant=tenant)
        async with self.timers(tenant) as timers:
            await timers.schedule(service_call_id, self.now())
        await self.settle()

    async def all_scheduled(self, *, tenant: str | None = None) -> list[Timer]:
        """Return a tenant's scheduled timers by due time, with those whose commands are on their way."""
        return await self._in_service(self._scheduled(tenant or self.tenant))

    @asynccontextmanager
    async def timers(self, tenant: str | None = None) -> AsyncIterator[Timers]:
        """Connect as a tenant."""
        async with self.connect() as connection:
            timers = Timers(connection, tenant=tenant or self.tenant, prefix=self.prefix)
            timers.stopwatch = lambda: self.now().timestamp()
            yield timers

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Client]:
        """Connect to the broker, for whatever the code under test needs a connection for."""
        connection = await nats.connect(self.broker_url)
        try:
            yield connection
        finally:
            await connection.close()

    async def _scheduled(self, tenant: str) -> list[Timer]:
        await self._walk.settle()
        found = [
            (timer.due_at, timer_view(timer))
            for timer in self._store.timers.values()
            if timer.tenant_id == tenant and timer.state is TimerState.SCHEDULED and timer.due_at is not None
        ]
        return [view for _, view in sorted(found, key=lambda each: (each[0], each[1].service_call_id))]

    async def _in_service(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the event loop of the service."""
        if self._ended.done():
            work.close()
            raise RuntimeError("the service has ended") from self._ended.exception()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            (self._ended if self._ready.done() else self._ready).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        async with running_service(self.broker_url, self.prefix, **self._options) as virtual:
            assert isinstance(virtual.store, MemoryTimerStore)
            loop = asyncio.get_running_loop()
            self._ready.set_result(_Running(loop, stop, virtual.walk, virtual.store))
            await stop.wait()
        await self._remove_streams()

    async def _remove_streams(self) -> None:
        names = StreamNames.of(self.prefix)
        async with self.connect() as connection:
            for stream in (names.commands, names.events, names.dead_letters):
                try:
                    await connection.jetstream(timeout=ANSWER_TIMEOUT_S).delete_stream(stream)
                except NotFoundError:
                    pass  # The test has deleted it.


def _settings(**chosen: Any) -> Settings:
    """Return settings that neither the environment nor a `.env` has a say in."""
    defaults = {name: field.get_default() for name, field in Settings.model_fields.items()}
    return Settings(_env_file=None, **defaults | chosen)


async def _until_ready(virtual: VirtualService) -> None:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while virtual.service.health().problems:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
