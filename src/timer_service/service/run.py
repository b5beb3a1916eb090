"""The whole service: its loops from the start to the stop."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from timer_service.domain.callback import Sink
from timer_service.domain.errors import CriticalError
from timer_service.domain.lanes import Lane
from timer_service.domain.timer import Timer
from timer_service.ports.explanation import Obstacle
from timer_service.ports.health import Health
from timer_service.ports.timer_store import StoreCounts
from timer_service.service.callbacks import Callbacks
from timer_service.service.consume import Consuming
from timer_service.service.deliver import Delivering
from timer_service.service.fire import Firing, Route, over_http
from timer_service.service.health import Watch
from timer_service.service.purge import PURGE_BATCH, Purging
from timer_service.service.surroundings import Surroundings
from timer_service.waiting import first_done, owned
from timer_service.workflows.hand_over import MAX_HANDED_OVER
from timer_service.workflows.hold_back import MAX_ENTRIES, HoldBack
from timer_service.workflows.schedule_timers import ScheduleReport

SHUTDOWN_GRACE_S: Final = 10.0
"""From the signal to the end: time to finish the batch in hand."""
CATCH_UP: Final = timedelta(seconds=30)

log = structlog.get_logger(__name__)


class FiringPace(NamedTuple):
    """How often and how much is fired."""

    poll_interval_s: float
    batch_size: int
    precise_wakeup: bool
    catch_up: timedelta
    max_held_back: int


class Service:
    """The timer service: a few loops around as many workflows."""

    def __init__(
        self,
        around: Surroundings,
        *,
        poll_interval_s: float,
        batch_size: int,
        precise_wakeup: bool = True,
        retention: timedelta | None = None,
        purge_batch: int = PURGE_BATCH,
        catch_up: timedelta = CATCH_UP,
        max_held_back: int = MAX_ENTRIES,
        other_problems: Callable[[], dict[str, str | None]] = dict,
        warnings: Callable[[], dict[str, str]] = dict,
    ) -> None:
        pace = FiringPace(poll_interval_s, batch_size, precise_wakeup, catch_up, max_held_back)
        self._store, self._work_log = around.store, around.work_log
        self.right_of_way = around.right_of_way
        self._watch = Watch(
            around,
            poll_interval_s=poll_interval_s,
            problems=lambda: {
                "publish": self._firing.problem,
                "deliveries": self._callbacks.delivering.problem if self._callbacks else None,
                **other_problems(),
            },
            warnings=lambda: {**warnings(), **self._firing.warnings},
        )
        self._firing = _firing(around, pace, self._watch.note_poll)
        self._callbacks: Callbacks | None = None
        if around.deliveries is not None and around.sender is not None:
            delivering = Delivering(around, around.deliveries, around.sender)
            route = over_http(around, delivering.handed_over)
            few = pace._replace(batch_size=min(batch_size, MAX_HANDED_OVER))
            self._callbacks = Callbacks(around, _firing(around, few, route=route), delivering)
        self._consuming = Consuming(around, self._commands_applied)
        self._purging = None if retention is None else Purging(around, retention, purge_batch)
        self._failure: CriticalError | None = None
        self._over = asyncio.Event()
        around.store.on_wait = self._watch.note_poll
        around.store.on_failure = self.fail

    @property
    def callbacks(self) -> Callbacks | None:
        """What fires over HTTP; None if nothing does."""
        return self._callbacks

    async def run(self) -> None:
        """Run all loops until stopped; the failure of one ends them all."""
        with closing(self._work_log):
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._consuming.run(), name="consume")
                loops.create_task(self._firing.run(loops), name="fire")
                if self._callbacks is not None:
                    self._callbacks.start(loops)
                if self._purging is not None:
                    loops.create_task(self._purging.run(), name="purge")
                loops.create_task(self._end_with_the_store(), name="end")

    def stop(self) -> None:
        """Ask all loops to end at their next safe point."""
        for part in (self._store, self._consuming, self._firing, self._callbacks, self._purging):
            if part is not None:
                part.stop()
        self._over.set()

    def health(self) -> Health:
        """Say what is wrong at this moment."""
        return self._watch.health()

    async def observe(self) -> None:
        """Bring the gauges up to date before they are read."""
        await self._watch.observe()
        if self._callbacks is not None:
            await self._callbacks.delivering.observe()

    def note_counts(self, counts: StoreCounts) -> None:
        """Record how much space is left, as somebody has measured it."""
        self._watch.note_counts(counts)

    def obstacle(self, timer: Timer) -> Obstacle | None:
        """Return why this instance passes a due timer over; None if it does not."""
        if timer.sink is Sink.BUS:
            return self._firing.obstacle(timer.key)
        return None if self._callbacks is None else self._callbacks.obstacle(timer.key)

    def receiver_back_at(self, lane: Lane) -> datetime | None:
        """Return when a receiver that counts as gone is tried again; None if it counts as there."""
        return None if self._callbacks is None else self._callbacks.delivering.receiver_back_at(lane)

    def wake_for(self, due_at: datetime, sink: Sink = Sink.BUS) -> None:
        """Wake the worker of a sink if a timer is due before it would look again."""
        if sink is Sink.BUS:
            self._firing.wake_for(due_at)
        elif self._callbacks is not None:
            self._callbacks.wake_for(due_at)

    def deliver_from(self, moment: datetime) -> None:
        """Look at once for callbacks that wait again since a moment."""
        if self._callbacks is not None:
            self._callbacks.delivering.wait_again(moment)

    def heard_of(self, due_at: datetime) -> None:
        """Wake the loops that a timer accepted by another instance may concern."""
        self._firing.wake_for(due_at)
        if self._callbacks is not None:
            self._callbacks.wake_before(due_at)

    def fail(self, error: CriticalError) -> None:
        """End all loops with an error of the store that somebody else has met."""
        self._failure = error
        self._over.set()

    async def _end_with_the_store(self) -> None:
        """Raise what has ended the store for somebody who waits for an answer: no loop may go on."""
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    def _commands_applied(self, report: ScheduleReport) -> None:
        self._firing.commands_applied(report)
        if self._callbacks is not None:
            self._callbacks.commands_applied(report)


def _firing(
    around: Surroundings,
    pace: FiringPace,
    looking: Callable[[], None] = lambda: None,
    route: Route | None = None,
) -> Firing:
    return Firing(
        around,
        poll_interval_s=pace.poll_interval_s,
        batch_size=pace.batch_size,
        precise_wakeup=pace.precise_wakeup,
        catch_up=pace.catch_up,
        hold_back=HoldBack(pace.max_held_back),
        looking=looking,
        route=route,
    )


async def run_service(service: Service, stop: asyncio.Event, grace_s: float = SHUTDOWN_GRACE_S) -> None:
    """Run until `stop` is set, then give the batch in hand the grace period to finish."""
    # Past the grace period: what is cut off at the end of this was not acknowledged or not marked, so it is
    # repeated.
    async with owned(service.run(), stop.wait()) as (running, stopping):
        await first_done(running, stopping)
        if not running.done():
            log.info("service.stopping", grace_s=grace_s)
            service.stop()
            await asyncio.wait({running}, timeout=grace_s)
        if running.done():
            running.result()
