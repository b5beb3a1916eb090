"""A process that works on durable functions, on a loop where it can be killed or stopped at any step."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import PubAck

import timer_client.flows
from tests.simulation.awaits import Place, frames_of, places_of
from tests.simulation.flow_databases import Database
from tests.simulation.loop import PROCESS, VirtualLoop
from timer_client import Timers
from timer_client.flows import Flows, Worker
from timer_client.flows.flows import Observer
from timer_client.testing import FakeTimers
from timer_client.testing.memory_broker import MemoryBroker, Subscription

PACKAGE = Path(timer_client.flows.__file__).parent
NAME = "shop"
ACK = "$JS.ACK."
NEVER = timedelta(days=1)
"""Leases count by the clock on the wall, which must not decide anything here."""

T = TypeVar("T")


class Process:
    """One process: its worker, its connections, and whatever a caller does in it."""

    def __init__(
        self,
        loop: VirtualLoop,
        database: Database,
        broker: MemoryBroker,
        timers: FakeTimers,
        define: Callable[[Flows], None],
        observer: Observer | None = None,
        *,
        answers_late: bool = True,
    ) -> None:
        """Open it; `answers_late`: what it says of a firing counts also after that was delivered again."""
        self.dead = False
        self.frozen = False
        self.parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.worker: Worker | None = None
        self.inboxes: set[str] = set()
        """Where messages for it go."""
        self._loop = loop
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        self._stop = asyncio.Event()
        journal, self._close = database.open(self)
        line = _Line(broker, self, answers_late=answers_late)
        own = Timers(cast(Client, line), tenant=timers.tenant)
        own.stopwatch = timers.stopwatch
        self.flows = Flows(own, journal, name=NAME, observer=observer)
        define(self.flows)
        self.main = self.start(self._live())

    async def _live(self) -> None:
        async with self.flows.worker(concurrency=4, ack_wait=NEVER) as self.worker:
            await self._stop.wait()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do something in this process."""
        return self._loop.create_task(work, context=self._context)

    def soon(self, callback: Callable[[], None]) -> None:
        """Do something at its next step."""
        self._loop.call_soon(callback, context=self._context)

    @property
    def is_stopping(self) -> bool:
        """Return whether it was asked to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask it to end, as SIGTERM does."""
        self._stop.set()

    def kill(self) -> None:
        """End it at once: nothing that it still tries has any effect."""
        if not self.dead:
            self.dead = True
            self.thaw()
            self._close()
            for task in self.tasks:
                task.cancel()

    def freeze(self) -> None:
        """Stop, as SIGSTOP does."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on, as after SIGCONT."""
        self.frozen = False
        self._loop._ready.extend(self.parked)
        self.parked.clear()

    def places(self) -> set[Place]:
        """Return where it waits now."""
        return places_of(self.tasks, PACKAGE)

    def holds_a_lock(self) -> bool:
        """Return whether others have to wait until it goes on: it is inside a transaction."""
        return any(
            frame.f_code.co_name == "perform" or frame.f_code.co_filename.endswith("postgres.py")
            for task in self.tasks
            if not task.done()
            for frame in frames_of(task.get_coro())
        )


class _Line:
    """The connection of a process to the broker, which is silent when the process is dead."""

    is_connected = True
    is_closed = False
    last_error = None

    def __init__(self, broker: MemoryBroker, process: Process, *, answers_late: bool) -> None:
        self._broker = broker
        self._answers_late = answers_late
        self._process = process
        self._world = copy_context()
        self.new_inbox = broker.new_inbox
        self.consumer_info, self.add_consumer = broker.consumer_info, broker.add_consumer

    def jetstream(self, **_: object) -> "_Line":
        return self

    async def publish(self, subject: str, body: bytes, **options: Any) -> PubAck:
        if self._process.dead or self._is_lost(subject):
            return PubAck("", 0)
        return await self._outside(self._broker.publish(subject, body, **options))

    def _is_lost(self, subject: str) -> bool:
        """Return whether this answers for a firing that was delivered again since, to whomever.

        The broker waits longer than a lease counts: unless it stops just before it says so, a worker is
        silent by then.
        """
        if self._answers_late or not subject.startswith(ACK):
            return False
        _, _, _, durable, times, number, *_ = subject.split(".")
        return int(times) < self._broker.durables[durable].deliveries[int(number)]

    async def request(self, subject: str, body: bytes, **options: Any) -> Msg:
        if self._process.dead:
            raise asyncio.CancelledError
        return await self._outside(self._broker.request(subject, body, **options))

    async def flush(self, _: float = 0) -> None:
        await self._outside(self._broker.flush())

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> "_Listening":
        subscription = await self._broker.subscribe(subject)
        self._process.inboxes.add(subject)
        return _Listening(subscription, cb, self._process)

    async def _outside(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the broker do something, which it ends also if the process does not live to see it."""
        task = asyncio.get_running_loop().create_task(work, context=self._world)
        return await asyncio.shield(task)


class _Listening:
    """What a process hears, and when it gets around to it."""

    def __init__(
        self, subscription: Subscription, cb: Callable[[Msg], Awaitable[None]], process: Process
    ) -> None:
        self._subscription = subscription
        self._cb = cb
        self._is_idle = asyncio.Event()
        self._reading = process.start(self._read())

    async def drain(self) -> None:
        """Take what is on its way, then listen no longer."""
        await self._subscription.unsubscribe()
        while not (self._subscription.queue.empty() and self._is_idle.is_set()):
            await asyncio.sleep(0)
        self._reading.cancel()

    async def _read(self) -> None:
        while True:
            if self._subscription.queue.empty():
                self._is_idle.set()
            message = await self._subscription.queue.get()
            self._is_idle.clear()
            await self._cb(message)
