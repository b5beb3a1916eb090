"""The loops: consume commands, fire due timers; the only place that decides when to wait."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Final, TypeVar

import structlog

from timer_service.domain.errors import BusUnavailable, TransientError
from timer_service.ports.clock import Clock
from timer_service.ports.event_bus import CommandBatch, EventBus
from timer_service.ports.timer_store import TimerStore
from timer_service.workflows.fire_due_timers import FireReport, fire_due_timers
from timer_service.workflows.hold_back import HoldBack
from timer_service.workflows.schedule_timers import ScheduleReport, schedule_timers

FIRST_BACKOFF_S: Final = 0.05
LONGEST_BACKOFF_S: Final = 1.0
SHUTDOWN_GRACE_S: Final = 10.0
"""From the signal to the end: time to finish the batch in hand."""

T = TypeVar("T")
log = structlog.get_logger(__name__)


class _Stopped(Exception):
    """The service is asked to stop while a step fails again and again."""


class Service:
    """The timer service: two loops around two workflows."""

    def __init__(
        self,
        *,
        store: TimerStore,
        bus: EventBus,
        clock: Clock,
        chance: Callable[[], float],
        poll_interval_s: float,
        batch_size: int,
        precise_wakeup: bool = True,
    ) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._chance = chance
        self._poll_interval_s = poll_interval_s
        self._batch_size = batch_size
        self._precise_wakeup = precise_wakeup
        self._hold_back = HoldBack()
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._sleeps_until: datetime | None = None
        self._store_unavailable = False

    async def run(self) -> None:
        """Run both loops until stopped; the failure of one ends both."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._consume(), name="consume")
            loops.create_task(self._fire(), name="fire")

    def stop(self) -> None:
        """Ask both loops to end at their next safe point."""
        self._stopping.set()
        self._wake.set()

    async def _consume(self) -> None:
        while (batch := await self._next_batch()) is not None:
            try:
                report = await schedule_timers(
                    batch=batch, store=self._store, clock=self._clock, retry=self._retry
                )
            except _Stopped:
                return
            self._wake_for(report.nearest_due_at)
            _log_schedule(report)

    async def _next_batch(self) -> CommandBatch | None:
        """Return the next batch, or None once the service is stopping."""
        receiving = asyncio.ensure_future(self._bus.receive())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._stopping.is_set() else receiving.result()
        finally:
            receiving.cancel()
            stopping.cancel()

    async def _fire(self) -> None:
        backoff = self._backoff()
        while not self._stopping.is_set():
            # Before looking: a timer accepted from here on is either seen by the look or wakes us.
            self._wake.clear()
            self._sleeps_until = None
            try:
                report = await self._fire_batch()
            except _Stopped:
                return
            except TransientError as error:
                self._note_store_error(error)
                await self._clock.wait(next(backoff), self._stopping)
                continue
            if report.disconnected:
                await self._clock.wait(next(backoff), self._stopping)
                continue
            backoff = self._backoff()
            if not report.more:
                await self._sleep_until(report.next_due_at)

    async def _fire_batch(self) -> FireReport:
        report = await fire_due_timers(
            store=self._store,
            bus=self._bus,
            clock=self._clock,
            limit=self._batch_size,
            hold_back=self._hold_back,
            retry=self._retry,
        )
        self._note_store_works()
        _log_fire(report)
        return report

    async def _sleep_until(self, next_due_at: datetime | None) -> None:
        """Sleep until the next timer is due, a nearer one comes in, or the poll interval is over."""
        seconds = self._poll_interval_s
        if self._precise_wakeup and next_due_at is not None:
            seconds = min(seconds, max(0.0, (next_due_at - self._clock.now()).total_seconds()))
        self._sleeps_until = next_due_at
        await self._clock.wait(seconds, self._wake)

    def _wake_for(self, due_at: datetime | None) -> None:
        """Wake the worker where a timer is due before it would look again."""
        if due_at is None or not self._precise_wakeup:
            return
        if self._sleeps_until is None or due_at < self._sleeps_until:
            self._wake.set()

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step of a workflow until the store takes it."""
        backoff = self._backoff()
        while True:
            try:
                result = await step()
            except TransientError as error:
                self._note_store_error(error)
                if self._stopping.is_set():
                    raise _Stopped from error
                await self._clock.wait(next(backoff), self._stopping)
            else:
                self._note_store_works()
                return result

    def _backoff(self) -> Iterator[float]:
        """Yield growing waits, each with jitter, so that many instances do not return in step."""
        seconds = FIRST_BACKOFF_S
        while True:
            yield seconds * (0.5 + self._chance() / 2)
            seconds = min(seconds * 2, LONGEST_BACKOFF_S)

    def _note_store_error(self, error: TransientError) -> None:
        # The bus tells of its own outages.
        if not self._store_unavailable and not isinstance(error, BusUnavailable):
            self._store_unavailable = True
            log.warning("store.unavailable", kind=type(error).__name__, detail=str(error))

    def _note_store_works(self) -> None:
        if self._store_unavailable:
            self._store_unavailable = False
            log.info("store.recovered")


async def run_service(service: Service, stop: asyncio.Event) -> None:
    """Run until `stop` is set, then give the batch in hand SHUTDOWN_GRACE_S to finish."""
    running = asyncio.ensure_future(service.run())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.info("service.stopping", grace_s=SHUTDOWN_GRACE_S)
            service.stop()
            await asyncio.wait({running}, timeout=SHUTDOWN_GRACE_S)
        if running.done():
            running.result()
    finally:
        # Past the grace period: what is cut off here was not acknowledged or not marked, so it is repeated.
        running.cancel()
        stopping.cancel()
        await asyncio.wait({running})


def _log_schedule(report: ScheduleReport) -> None:
    if report.outcomes:
        outcomes = {outcome.value: count for outcome, count in sorted(report.outcomes.items())}
        log.info("commands.applied", redelivered=report.redelivered, **outcomes)
    for refusal in report.refusals:
        log.warning(
            "command.refused",
            reason=refusal.reason.value,
            detail=refusal.detail,
            subject=refusal.subject,
            sequence=refusal.sequence,
        )


def _log_fire(report: FireReport) -> None:
    if report.confirmed:
        oldest = min(event.due_at for event in report.confirmed)
        log.info(
            "batch.fired",
            timers=len(report.confirmed),
            superseded=len(report.confirmed) - report.marked,
            max_lateness_ms=round((report.confirmed_at - oldest).total_seconds() * 1000),
        )
    if report.hold_back.held:
        event, result = report.failed[0]
        log.warning(
            "publish.failed",
            timers=len(report.failed),
            kind=result.outcome.name.lower(),
            detail=result.detail,
            tenant_id=event.tenant_id,
            service_call_id=event.service_call_id,
        )
    if report.hold_back.freed:
        log.info("publish.recovered", freed=report.hold_back.freed)
