"""The loop that fires due timers: it looks and publishes, and marks beside the next look."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from timer_service.domain.errors import BusUnavailable, TransientError
from timer_service.domain.messages import Event, TimerKey
from timer_service.ports.command_source import CommandBacklog
from timer_service.ports.event_sink import EventSink
from timer_service.ports.explanation import Obstacle
from timer_service.ports.timer_store import DueTimers
from timer_service.service.pauses import BatchTimes, Pauses
from timer_service.service.surroundings import Surroundings
from timer_service.waiting import Backoff, Over, unless
from timer_service.workflows.catch_up import CatchUp
from timer_service.workflows.fire_due_timers import FireReport, next_look, publish_due_timers
from timer_service.workflows.hand_over import CommandsIfAnswered, HandOver, HttpTimers
from timer_service.workflows.hold_back import HoldBack
from timer_service.workflows.schedule_timers import ScheduleReport

LOOK_AGAIN_S: Final = 0.02
"""The pause before another look if timers are due and none of them could be claimed."""
HAND_OVER_PAUSE_S: Final = 0.003
"""After callbacks were handed over, where one writer serves all: those due meanwhile share the next look."""
MIN_UNMARKED: Final = 2
"""However small a batch is, one timer can be published while another is marked."""


class Unmarked:
    """What is published and not marked yet: together one batch at most, so that a crash repeats no more."""

    def __init__(self, batch_size: int, max_claims: int) -> None:
        self._batch_size = batch_size
        self._max_timers = max(batch_size, MIN_UNMARKED)
        self._max_claims = max_claims
        self._timers = 0
        self._claims = 0
        self._ended = asyncio.Event()

    async def room(self, *, draining: bool) -> int:
        """Return how many timers the next look may take; wait for marks if there is no room.

        Under a backlog a look takes half of a batch: one half is marked while the other is published.
        """
        while self._timers >= self._max_timers or self._claims >= self._max_claims:
            self._ended.clear()
            await self._ended.wait()
        wanted = max(1, self._batch_size // 2) if draining else self._batch_size
        return min(wanted, self._max_timers - self._timers)

    async def none(self) -> None:
        """Wait until all that is published is marked."""
        while self._claims:
            self._ended.clear()
            await self._ended.wait()

    @contextmanager
    def claim(self) -> Iterator[Callable[[int], None]]:
        """Count a claim while the block runs, and as many timers as it says are published."""
        published = 0

        def count(timers: int) -> None:
            nonlocal published
            published += timers
            self._timers += timers

        self._claims += 1
        try:
            yield count
        finally:
            self._claims -= 1
            self._timers -= published
            self._ended.set()


@dataclass(frozen=True, slots=True)
class Route:
    """Which timers are fired, and where to."""

    timers: DueTimers
    source: CommandBacklog
    sink: EventSink
    fired: Callable[[FireReport, float], None]
    """Told of each batch, and of the seconds that it took."""
    goes_first: bool
    """Whether others give way to what is due now."""
    pause_s: float = 0.0
    """Between two batches."""


def over_the_bus(around: Surroundings) -> Route:
    """Return the way of timers that become events."""

    def fired(report: FireReport, seconds: float) -> None:
        around.metrics.fired(report, seconds)
        around.work_log.fired(report)

    return Route(around.store, around.source, around.sink, fired, goes_first=True)


def over_http(around: Surroundings, handed_over: Callable[[Sequence[Event]], None]) -> Route:
    """Return the way of timers that have a callback; it is told which firings have opened a delivery."""

    def fired(report: FireReport, _seconds: float) -> None:
        if report.confirmed:
            around.metrics.handed_over(report)
            handed_over(report.confirmed)

    gathers = around.deliveries is not None and around.deliveries.gathers_s
    return Route(
        HttpTimers(around.store),
        CommandsIfAnswered(around.source),
        HandOver(),
        fired,
        goes_first=False,
        pause_s=HAND_OVER_PAUSE_S if gathers else 0.0,
    )


class Tasks(Protocol):
    """What owns the batches that are under way."""

    def create_task(self, work: Coroutine[Any, Any, None], /, *, name: str) -> object:
        """Begin a task."""
        ...


class Firing:
    """Fires what is due, at the moment at which it is due."""

    def __init__(
        self,
        around: Surroundings,
        *,
        poll_interval_s: float,
        batch_size: int,
        precise_wakeup: bool,
        catch_up: timedelta,
        hold_back: HoldBack,
        looking: Callable[[], None],
        route: Route | None = None,
    ) -> None:
        route = route or over_the_bus(around)
        self._store = route.timers
        self._source = route.source
        self._sink = route.sink
        self._fired = route.fired
        self._goes_first = route.goes_first
        self._batch = BatchTimes(route.pause_s)
        self._clock = around.clock
        self._questions = around.questions
        self._right_of_way, self._bus_first = around.right_of_way, around.before_callbacks
        self._backoff = Backoff(around.chance)
        self._precise_wakeup = precise_wakeup
        self._pauses = Pauses(around, poll_interval_s=poll_interval_s, is_expected=route.goes_first)
        self._looking = looking
        self._hold_back = hold_back
        self._catch_up = CatchUp(catch_up)
        self._unmarked = Unmarked(batch_size, route.timers.max_claims)
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._sleeps_until: datetime | None = None
        self._nothing_to_come = False
        self._asking = False
        self._elapsed_s = around.elapsed_s

    @property
    def warnings(self) -> dict[str, str]:
        """What works, but not as it should."""
        warning = self._catch_up.warning
        return {} if warning is None else {"command stream": warning}

    @property
    def problem(self) -> str | None:
        """Why nothing is published, or only little of it."""
        return self._hold_back.problem

    def obstacle(self, key: TimerKey) -> Obstacle | None:
        """Return why a due timer is passed over; None if it is not, as far as this instance knows."""
        return self._hold_back.obstacle(key, self._clock.now()) or self._catch_up.obstacle(key[0])

    async def run(self, firings: Tasks) -> None:
        """Look and publish until stopped; each batch is a task of the group until it is marked."""
        draining = False
        while not self._stopping.is_set():
            limit = await self._unmarked.room(draining=draining)
            # Before looking: a timer accepted from here on is either seen by the look or wakes us.
            self._wake.clear()
            self._sleeps_until, self._nothing_to_come = None, False
            self._looking()
            try:
                with self._right_of_way.taken(), self._before_callbacks(draining=draining):
                    report = await self._look(firings, limit)
                    self._pauses.looked(report.looked_at, read_ahead=report.read_ahead)
                    draining = report.more
                    next_look_at = None if draining else await self._next_look(report)
                if draining and self._batch.pause_s:
                    next_due_at = await self._store.next_due_at(report.looked_at)
                    await self._pauses.make_way(next_due_at, self._batch, self._unmarked.none, self._stopping)
            except TransientError:
                await self._clock.wait(self._backoff.next_s(), self._stopping)
                continue
            self._backoff.reset()
            if report.confirmed and not draining and self._batch.pause_s:
                # Not by our clock: a virtual one stands still while there is something to do.
                await asyncio.sleep(self._batch.pause_s)
            if not draining:
                await self._sleep_until(next_look_at)
            elif not report.confirmed and not report.failed:
                # What is due is in the hands of requests: asking again at once would keep the store busy.
                await self._clock.wait(LOOK_AGAIN_S, self._stopping)

    def _before_callbacks(self, *, draining: bool) -> AbstractContextManager[None]:
        """Go before others, but not with a backlog: that is not a matter of milliseconds either."""
        return self._bus_first.taken() if self._goes_first and not draining else nullcontext()

    def stop(self) -> None:
        """End after the batch in hand."""
        self._stopping.set()
        self._wake.set()

    def wake_for(self, due_at: datetime) -> None:
        """Wake the worker if a timer is due before it would look again."""
        if self._precise_wakeup and (self._sleeps_until is None or due_at < self._sleeps_until):
            self._wake.set()

    def wake_before(self, due_at: datetime) -> None:
        """Wake the worker only if a timer is known that comes later: with nothing to come it sleeps on."""
        if not self._nothing_to_come:
            self.wake_for(due_at)

    def commands_applied(self, report: ScheduleReport, *, only_before: bool = False) -> None:
        """Look for what commands have made due, and for what has waited for them."""
        if report.nearest_due_at is not None:
            wake = self.wake_before if only_before else self.wake_for
            wake(report.nearest_due_at)
        if self._catch_up.is_waiting:
            self._wake.set()

    async def _look(self, firings: Tasks, limit: int) -> FireReport:
        """Publish one batch and return what came of it; its mark may still be under way."""
        published: asyncio.Future[FireReport] = asyncio.get_running_loop().create_future()
        # The claim lives in a task of its own: it is left where it was entered.
        firings.create_task(self._fire_batch(limit, published), name="firing")
        report = await published
        if self._catch_up.asks_beside and not self._asking:
            firings.create_task(self._ask_beside(), name="ask")
        if report.disconnected:
            raise BusUnavailable("the connection was lost")
        return report

    async def _ask_beside(self) -> None:
        """Ask a command stream that has not answered for long; no look waits for that."""
        self._asking = True
        try:
            await unless(self._stopping, self._source.backlog({}))
        except (BusUnavailable, Over):
            return
        finally:
            self._asking = False
        self._catch_up.ask_again()
        self._wake.set()

    async def _fire_batch(self, limit: int, published: "asyncio.Future[FireReport]") -> None:
        """Publish one batch, say so, and mark it."""
        started, began_s = time.perf_counter(), self._elapsed_s()
        try:
            with self._unmarked.claim() as count:
                async with publish_due_timers(
                    store=self._store,
                    source=self._source,
                    sink=self._sink,
                    clock=self._clock,
                    limit=limit,
                    hold_back=self._hold_back,
                    catch_up=self._catch_up,
                    questions=self._questions,
                ) as batch:
                    count(len(batch.report.confirmed))
                    # Nobody may look while timers that have to fire are hidden in this claim.
                    if batch.is_whole and not published.done():
                        published.set_result(batch.report)
                    report = await batch.mark()
        except TransientError as error:
            if not published.done():
                published.set_exception(error)
            self._wake.set()  # What could not be marked is due all the same.
            return
        if report.marked < len(report.confirmed):
            self._wake.set()
        if len(report.confirmed) == limit:
            self._batch.took(self._elapsed_s() - began_s)
        self._fired(report, time.perf_counter() - started)
        if not published.done():
            published.set_result(report)

    async def _next_look(self, report: FireReport) -> datetime | None:
        return await next_look(
            store=self._store,
            hold_back=self._hold_back,
            catch_up=self._catch_up,
            looked_at=report.looked_at,
        )

    async def _sleep_until(self, next_look_at: datetime | None) -> None:
        """Sleep until the next timer is due, a nearer one comes in, or the poll interval is over."""
        self._sleeps_until, self._nothing_to_come = next_look_at, next_look_at is None
        await self._pauses.sleep(next_look_at if self._precise_wakeup else None, self._wake)
