"""The loops: consume commands, fire due timers, purge old ones; the only place that waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Final, TypeVar

import structlog

from timer_service.domain.errors import BusUnavailable, TransientError
from timer_service.observability.metrics import Metrics
from timer_service.observability.work_log import WorkLog
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandBatch, CommandSource
from timer_service.ports.event_sink import EventSink
from timer_service.ports.health import Health
from timer_service.ports.timer_store import StoreCounts, TimerStore
from timer_service.waiting import Over, first_done, owned, unless
from timer_service.workflows.catch_up import CatchUp
from timer_service.workflows.fire_due_timers import FireReport, next_look, publish_due_timers
from timer_service.workflows.hold_back import HoldBack
from timer_service.workflows.purge_timers import purge_timers
from timer_service.workflows.retry import Retry
from timer_service.workflows.schedule_timers import schedule_timers

FIRST_BACKOFF_S: Final = 0.05
LONGEST_BACKOFF_S: Final = 1.0
SHUTDOWN_GRACE_S: Final = 10.0
"""From the signal to the end: time to finish the batch in hand."""
SILENT_S: Final = 30.0
"""A worker that has not polled for so long, or for two poll intervals, is taken for dead."""
LOOK_AGAIN_S: Final = 0.02
"""The pause before another look where timers are due and none of them could be claimed."""
MIN_FREE_BYTES: Final = 16 * 1024 * 1024
CATCH_UP: Final = timedelta(seconds=30)
PURGE_BATCH: Final = 1_000
"""Firing waits for one batch at most, about 20 ms; without a pause that makes 50,000 timers per second."""
PURGE_INTERVAL_S: Final = 60.0

T = TypeVar("T")
log = structlog.get_logger(__name__)


class _Stopped(Exception):
    """The service is asked to stop while a step fails again and again."""


class Service:
    """The timer service: a few loops around as many workflows."""

    def __init__(
        self,
        *,
        store: TimerStore,
        source: CommandSource,
        sink: EventSink,
        clock: Clock,
        chance: Callable[[], float],
        poll_interval_s: float,
        batch_size: int,
        metrics: Metrics,
        precise_wakeup: bool = True,
        retention: timedelta | None = None,
        catch_up: timedelta = CATCH_UP,
        other_problems: Callable[[], dict[str, str | None]] = dict,
        elapsed_s: Callable[[], float] = time.monotonic,
        warnings: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self._store = store
        self._source = source
        self._sink = sink
        self._clock = clock
        self._chance = chance
        self._poll_interval_s = poll_interval_s
        self._silent_s = max(SILENT_S, 2 * poll_interval_s)
        self._batch_size = batch_size
        self._precise_wakeup = precise_wakeup
        self._retention = retention
        self._metrics = metrics
        self._other_problems = other_problems
        self._elapsed_s = elapsed_s
        self._warnings = warnings
        self._hold_back = HoldBack()
        self._work_log = WorkLog()
        self._catch_up = CatchUp(catch_up)
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._sleeps_until: datetime | None = None
        self._open_claims = 0
        self._unmarked = 0
        """Timers that are published, confirmed and not marked yet."""
        self._mark_ended = asyncio.Event()
        self._polled_at, self._polled_s = clock.now(), elapsed_s()
        self._store_problems: dict[str, str] = {}
        self._free_bytes: int | None = None

    async def run(self) -> None:
        """Run all loops until stopped; the failure of one ends them all."""
        with closing(self._work_log):
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._consume(), name="consume")
                loops.create_task(self._fire(loops), name="fire")
                if self._retention is not None:
                    loops.create_task(self._purge(self._retention), name="purge")

    def stop(self) -> None:
        """Ask all loops to end at their next safe point."""
        self._stopping.set()
        self._wake.set()

    def health(self) -> Health:
        """Say what is wrong at this moment."""
        # Not by the wall clock: a step of it is no silence.
        silent_s = self._elapsed_s() - self._polled_s
        store_problem = next(iter(self._store_problems.values()), None)
        problems = {
            "broker": self._broker_problem(),
            "store": store_problem,
            "publish": self._hold_back.problem,
        }
        problems |= self._other_problems()
        if self._free_bytes is not None and self._free_bytes < MIN_FREE_BYTES:
            problems["disk"] = f"only {self._free_bytes} bytes are free"
        return Health(
            stuck=f"has not polled for {silent_s:.0f} s" if silent_s > self._silent_s else None,
            problems={part: problem for part, problem in problems.items() if problem is not None},
            warnings=self._warnings(),
        )

    async def _consume(self) -> None:
        while (batch := await self._next_batch()) is not None:
            try:
                report = await schedule_timers(
                    batch=batch, store=self._store, clock=self._clock, retry=self._retrying("apply")
                )
            except _Stopped:
                return
            if report.nearest_due_at is not None:
                self.wake_for(report.nearest_due_at)
            if self._catch_up.is_waiting:
                self._wake.set()
            self._metrics.scheduled(report)
            self._work_log.scheduled(report)

    async def _next_batch(self) -> CommandBatch | None:
        """Return the next batch, or None once the service is stopping."""
        if self._stopping.is_set():
            return None
        try:
            return await unless(self._stopping, self._source.receive())
        except Over:
            return None

    async def _fire(self, firings: asyncio.TaskGroup) -> None:
        """Look and publish until stopped; what is published is marked beside the next look."""
        backoff = self._backoff()
        draining = False
        while not self._stopping.is_set():
            limit = await self._room_for(draining=draining)
            # Before looking: a timer accepted from here on is either seen by the look or wakes us.
            self._wake.clear()
            self._sleeps_until = None
            self._note_poll()
            try:
                report = await self._look(firings, limit)
                draining = report.more
                next_look_at = None if draining else await self._next_look(report)
            except _Stopped:
                return
            except TransientError as error:
                self._note_store_error("poll", error)
                await self._clock.wait(next(backoff), self._stopping)
                continue
            backoff = self._backoff()
            if not draining:
                await self._sleep_until(next_look_at)
            elif not report.confirmed and not report.failed:
                # What is due is in the hands of requests: asking again at once would keep the store busy.
                await self._clock.wait(LOOK_AGAIN_S, self._stopping)

    async def _room_for(self, *, draining: bool) -> int:
        """Return how many timers the next look may take; wait for marks where too many are not marked.

        Under a backlog a look takes half of a batch: one half is marked while the other is published.
        """
        most = max(self._batch_size, 2)
        while self._unmarked >= most or self._open_claims >= self._store.max_claims:
            self._mark_ended.clear()
            await self._mark_ended.wait()
        wanted = max(1, self._batch_size // 2) if draining else self._batch_size
        return min(wanted, most - self._unmarked)

    async def _look(self, firings: asyncio.TaskGroup, limit: int) -> FireReport:
        """Publish one batch and return what came of it; its mark may still be under way."""
        published: asyncio.Future[FireReport] = asyncio.get_running_loop().create_future()
        # The claim lives in a task of its own: it is left where it was entered.
        firings.create_task(self._fire_batch(limit, published), name="firing")
        report = await published
        if report.disconnected:
            raise BusUnavailable("the connection was lost")
        # Here, because under a backlog the worker comes to no other place for a long time.
        self._note_store_works("poll")
        return report

    async def _fire_batch(self, limit: int, published: "asyncio.Future[FireReport]") -> None:
        """Publish one batch, say so, and mark it."""
        started = time.perf_counter()
        self._open_claims += 1
        unmarked = 0
        try:
            async with publish_due_timers(
                store=self._store,
                source=self._source,
                sink=self._sink,
                clock=self._clock,
                limit=limit,
                hold_back=self._hold_back,
                catch_up=self._catch_up,
            ) as batch:
                report = batch.report
                unmarked = len(report.confirmed)
                self._unmarked += unmarked
                # Nobody may look while timers that have to fire are hidden in this claim.
                if batch.is_whole and not published.done():
                    published.set_result(report)
                if unmarked:
                    report = await self._retrying("mark")(batch.mark)
        except (TransientError, _Stopped) as error:
            if not published.done():
                published.set_exception(error)
            self._wake.set()  # What could not be marked is due all the same.
            return
        finally:
            self._open_claims -= 1
            self._unmarked -= unmarked
            self._mark_ended.set()
        if report.marked < unmarked:
            self._wake.set()
        self._metrics.fired(report, time.perf_counter() - started)
        self._work_log.fired(report)
        if not published.done():
            published.set_result(report)

    async def _next_look(self, report: FireReport) -> datetime | None:
        return await next_look(
            store=self._store,
            hold_back=self._hold_back,
            catch_up=self._catch_up,
            looked_at=report.looked_at,
        )

    async def _sleep_until(self, next_due_at: datetime | None) -> None:
        """Sleep until the next timer is due, a nearer one comes in, or the poll interval is over."""
        seconds = self._poll_interval_s
        if self._precise_wakeup and next_due_at is not None:
            seconds = min(seconds, max(0.0, (next_due_at - self._clock.now()).total_seconds()))
        self._sleeps_until = next_due_at
        await self._clock.wait(seconds, self._wake)

    def wake_for(self, due_at: datetime) -> None:
        """Wake the worker where a timer is due before it would look again."""
        if self._precise_wakeup and (self._sleeps_until is None or due_at < self._sleeps_until):
            self._wake.set()

    async def _purge(self, retention: timedelta) -> None:
        """Delete old timers batch after batch; whoever else waits for the store comes in between."""
        purged = 0
        while not self._stopping.is_set():
            try:
                batch = await purge_timers(
                    store=self._store,
                    clock=self._clock,
                    retention=retention,
                    limit=PURGE_BATCH,
                    retry=self._retrying("purge"),
                )
            except _Stopped:
                return
            self._metrics.purged(batch)
            purged += batch
            more = batch == PURGE_BATCH
            if purged and not more:
                log.info("timers.purged", timers=purged)
                purged = 0
            await self._clock.wait(0 if more else PURGE_INTERVAL_S, self._stopping)

    async def observe(self) -> None:
        """Bring the gauges up to date; whoever is about to look at them asks for it."""
        self._metrics.health(
            polled_at=self._polled_at.timestamp(),
            broker=self._broker_problem() is None,
            store=not self._store_problems,
        )
        with suppress(TransientError):
            now = self._clock.now()
            counts = await self._store.count(now)
            self.note_counts(counts)
            overdue_since = counts.oldest_overdue_at or now
            self._metrics.counted(counts, (now - overdue_since).total_seconds())

    def note_counts(self, counts: StoreCounts) -> None:
        """Learn how much space is left, whoever asked for it."""
        self._free_bytes = counts.free_bytes

    def _broker_problem(self) -> str | None:
        return self._source.problem or self._sink.problem

    def _note_poll(self) -> None:
        self._polled_at, self._polled_s = self._clock.now(), self._elapsed_s()

    def _retrying(self, operation: str) -> Retry:
        """Return what repeats a step of a workflow until the store takes it."""

        async def retry(step: Callable[[], Awaitable[T]]) -> T:
            backoff = self._backoff()
            while True:
                started = time.perf_counter()
                try:
                    result = await step()
                except TransientError as error:
                    self._note_store_error(operation, error)
                    if self._stopping.is_set():
                        raise _Stopped from error
                    await self._clock.wait(next(backoff), self._stopping)
                    self._note_poll()  # Waiting for the store is not being stuck.
                else:
                    self._note_store_works(operation)
                    self._metrics.wrote(operation, time.perf_counter() - started)
                    return result

        return retry

    def _backoff(self) -> Iterator[float]:
        """Yield growing waits, each with jitter, so that many instances do not return in step."""
        seconds = FIRST_BACKOFF_S
        while True:
            yield seconds * (0.5 + self._chance() / 2)
            seconds = min(seconds * 2, LONGEST_BACKOFF_S)

    def _note_store_error(self, operation: str, error: TransientError) -> None:
        # The broker's adapter tells of its own outages.
        if isinstance(error, BusUnavailable):
            return
        if not self._store_problems:
            log.warning("store.unavailable", kind=type(error).__name__, detail=str(error))
        self._store_problems[operation] = str(error)

    def _note_store_works(self, operation: str) -> None:
        if self._store_problems.pop(operation, None) and not self._store_problems:
            log.info("store.recovered")


async def run_service(service: Service, stop: asyncio.Event) -> None:
    """Run until `stop` is set, then give the batch in hand SHUTDOWN_GRACE_S to finish."""
    # Past the grace period: what is cut off at the end of this was not acknowledged or not marked, so it is
    # repeated.
    async with owned(service.run(), stop.wait()) as (running, stopping):
        await first_done(running, stopping)
        if not running.done():
            log.info("service.stopping", grace_s=SHUTDOWN_GRACE_S)
            service.stop()
            await asyncio.wait({running}, timeout=SHUTDOWN_GRACE_S)
        if running.done():
            running.result()
