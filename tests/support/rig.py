"""A whole service on memory adapters and a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from tests.support import messages
from tests.support.fakes import FragileStore, RecordingBus
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME, at, call, schedule
from timer_client.subjects import Subjects
from timer_service.adapters.retrying import RetryingStore
from timer_service.domain.lanes import MAX_QUEUED
from timer_service.domain.messages import Command
from timer_service.domain.timer import TimerState
from timer_service.observability.metrics import Metrics
from timer_service.service.purge import PURGE_BATCH
from timer_service.service.run import Service
from timer_service.service.surroundings import Surroundings
from timer_service.testing import ManualClock, MemoryEventBus, ScriptedSender
from timer_service.workflows.hold_back import MAX_ENTRIES

POLL_S = 5.0


def backlog(count: int) -> list[Command]:
    """Return this many commands whose timers are due already."""
    return [schedule(f"order-{n}", -9 + n / 100, number=n) for n in range(1, count + 1)]


class Rig:
    """The service, its surroundings, and what they have seen."""

    def __init__(
        self,
        *,
        batch_size: int = 100,
        precise_wakeup: bool = True,
        chance: float = 1.0,
        store: FragileStore | None = None,
        bus: type[RecordingBus] = RecordingBus,
        retention: timedelta | None = None,
        purge_batch: int = PURGE_BATCH,
        max_held_back: int = MAX_ENTRIES,
        sender: ScriptedSender | None = None,
        gives_way_s: float = 0.005,
        spares_receivers: bool = True,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.clock = ManualClock()
        self.store = store or FragileStore()
        self.broker = MemoryEventBus(self.clock, Subjects("timer"), batch_size=batch_size)
        self.bus = bus(self.broker)
        self.metrics = Metrics()
        self.around = Surroundings(
            store=RetryingStore(
                self.store, clock=self.clock, chance=lambda: chance, wrote=self.metrics.wrote
            ),
            source=self.bus,
            sink=self.bus,
            clock=self.clock,
            chance=lambda: chance,
            metrics=self.metrics,
            deliveries=self.store.deliveries,
            sender=sender,
            gives_way_s=gives_way_s,
            spares_receivers=spares_receivers,
            max_queued=max_queued,
            elapsed_s=lambda: self.clock.elapsed_s,
        )
        self.service = Service(
            self.around,
            poll_interval_s=POLL_S,
            batch_size=batch_size,
            precise_wakeup=precise_wakeup,
            retention=retention,
            purge_batch=purge_batch,
            max_held_back=max_held_back,
        )

    async def keep(self, *commands: Command) -> None:
        """Put timers into the store as if they had been kept before the start."""
        await self.store.apply(commands, self.clock.now())
        self.store.calls.clear()

    def send(self, name: str, due_s: float) -> None:
        """Send a ScheduleTimer through the broker."""
        envelope = messages.schedule("acme", name, at(due_s))
        self.broker.send("timer.commands.acme.ScheduleTimer", messages.encode(envelope))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Run the service; at the end stop it and wait until it has."""
        task = asyncio.ensure_future(self.service.run())
        try:
            yield task
            self.service.stop()
            async with asyncio.timeout(PATIENCE_S):
                await task
        finally:
            task.cancel()

    def fired(self) -> list[list[str]]:
        """Return the names of what was handed to the broker, batch by batch."""
        return [[event.service_call_id for event in batch] for batch in self.bus.published]

    def state(self, name: str) -> TimerState:
        return self.store.timers[ACME, call(name)].state

    async def until_kept(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.store.timers) < count or self.broker.pending:
                await asyncio.sleep(0)
