"""One change to many timers: a job that works in small batches, tells how far it is, and can be stopped.

A job goes through the same use cases as a single request. It has a list of timers as they were when it began:
what has changed since then is left alone, and what came since then is not in it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from timer_service.domain.errors import TransientError
from timer_service.domain.messages import CancelTimer, Command, ScheduleTimer, TenantId, TimerKey
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.timer_insight import Place, TimerFilter, TimerInsight
from timer_service.ports.timer_store import Decided
from timer_service.right_of_way import GIVE_WAY_S, RightOfWay, in_turns
from timer_service.timers import NEWEST, Timers
from timer_service.waiting import Backoff, Over, unless

MAX_TIMERS: Final = 10_000
"""Of one job."""
MAX_RUNNING: Final = 8
MAX_REMEMBERED: Final = 50
"""Jobs that are over and whose figures are still at hand."""
BATCH: Final = 25
"""Timers in one transaction: a firing that waits behind it waits for a millisecond or two."""
SMALL_BATCH: Final = 10
"""The same while timers fire: no step of it takes longer than half a millisecond."""
PAUSE_S: Final = 0.02
MAX_PAUSE_S: Final = 0.25
SHARE: Final = 4
"""A job pauses this many times as long as its last batch took: the store belongs to the firing."""
TRIES: Final = 5
"""For a timer that is just being fired, with TRY_AGAIN_S between them."""
TRY_AGAIN_S: Final = 0.5
READ: Final = 100
"""Timers that are read together."""
GRACE_S: Final = 0.5
"""How long a service that stops waits for the batches under way."""

_UNSETTLED: Final[dict[str, str]] = {Outcome.DUE: "firing", Outcome.SUPERSEDED: "overtaken"}
"""Nothing was changed, and it may work again soon; the words for it if it does not."""
OUT_OF_RANGE: Final = "out_of_range"
"""The outcome of a move to a year that there is not."""

T = TypeVar("T")


class Deed(StrEnum):
    """What is done to each timer."""

    CANCEL = "cancel"
    FIRE = "fire"
    MOVE = "move"
    UNDO = "undo"
    """Give each the due time back that it had before another job."""


class Ending(StrEnum):
    """How a job ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    """The service stopped meanwhile."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job is to do."""

    deed: Deed
    by: timedelta = timedelta()
    """How far the due times are moved; may be negative."""
    back_to: Mapping[TimerKey, datetime] = field(default_factory=dict)
    """The due times that are given back."""

    def request(self, timer: Timer, now: datetime) -> Command | None:
        """Return the request for one timer; None if it would be due in a year that there is not."""
        expected = frozenset({timer.version})
        if self.deed is Deed.CANCEL:
            return CancelTimer(*timer.key, NEWEST, expected)
        due_at = self.due_at(timer, now)
        return None if due_at is None else rescheduled(timer, due_at, expected)

    def due_at(self, timer: Timer, now: datetime) -> datetime | None:
        """Return when a timer would be due; None if in a year that there is not."""
        if self.deed is Deed.FIRE or timer.due_at is None:
            return now
        if self.deed is Deed.UNDO:
            return self.back_to.get(timer.key, timer.due_at)
        try:
            return timer.due_at + self.by
        except OverflowError:
            return None


def rescheduled(timer: Timer, due_at: datetime, expected: frozenset[str] | None) -> ScheduleTimer:
    """Return the request that gives a timer another due time and leaves the rest as it is."""
    return ScheduleTimer(
        *timer.key, due_at, None, NEWEST, expected=expected, expires_after_ms=timer.expires_after_ms
    )


class Did(NamedTuple):
    """What came of the request for one timer."""

    before: Timer
    outcome: str
    after: Timer | None = None
    """None if it is just being fired, or if nothing was asked."""


@dataclass(eq=False, slots=True)
class Job:
    """How far a job is."""

    number: int
    wish: Wish
    tenant_id: TenantId | None
    """Whose timers; None if of all tenants."""
    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    waits_for: str = ""
    """What holds it up, in words for the page."""
    ending: Ending | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> int:
        """How many timers have their outcome."""
        return self.outcomes.total()


class Notes(Protocol):
    """What keeps a record of a job. All may raise TransientError."""

    async def begin(self, total: int) -> int:
        """Note that a job begins, and return its number."""
        ...

    async def keep(self, job: Job, batch: Sequence[Did]) -> None:
        """Note what a batch did to each timer."""
        ...

    async def end(self, job: Job, error: Exception | None) -> None:
        """Note how a job ended."""
        ...


class TooManyJobs(Exception):
    """Another job has to end first."""


def _did(timer: Timer, decided: Decided) -> Did:
    return Did(timer, decided.outcome, decided.timer)


class BulkDesk:
    """Runs jobs: one for each tenant, and one batch of one job at a time."""

    def __init__(
        self,
        timers: Timers,
        insight: TimerInsight,
        *,
        now: Callable[[], datetime],
        elapsed_s: Callable[[], float],
        chance: Callable[[], float],
        right_of_way: RightOfWay,
    ) -> None:
        self._timers = timers
        self._insight = insight
        self._now = now
        self._elapsed_s = elapsed_s
        self._chance = chance
        self._right_of_way = right_of_way
        self._jobs: dict[int, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._is_closing = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Own the jobs that begin in the context; at its end each stops after its batch and says so."""
        try:
            yield
        finally:
            self._is_closing = True
            for job in self.under_way():
                job.stop.set()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=GRACE_S)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def find(self, number: int) -> Job | None:
        """Return a job of this process that runs or has ended lately."""
        return self._jobs.get(number)

    def under_way(self) -> list[Job]:
        """Return the jobs that run, oldest first."""
        return [job for job in self._jobs.values() if job.ending is None]

    async def matched(self, wanted: TimerFilter, as_of: datetime, at_most: int) -> list[Timer]:
        """Return the timers of a filter that were there at a moment, but not more than `at_most` of them."""
        found: list[Timer] = []
        after: Place | None = None
        while len(found) < at_most:
            page = await self._insight.page(wanted, READ, after=after)
            found += [timer for timer in page.timers if timer.registered_at <= as_of]
            after = page.after
            if after is None:
                break
        return found[:at_most]

    async def start(
        self, wish: Wish, timers: Sequence[Timer], tenant_id: TenantId | None, notes: Notes
    ) -> Job:
        """Begin a job. Raises TooManyJobs, and TransientError if it cannot be noted."""
        async with self._starting:
            running = self.under_way()
            if len(running) >= MAX_RUNNING or any(job.tenant_id == tenant_id for job in running):
                raise TooManyJobs
            job = Job(await notes.begin(len(timers)), wish, tenant_id, len(timers))
            self._remember(job)
        task = asyncio.ensure_future(self._run(job, timers, notes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def _remember(self, job: Job) -> None:
        for number in [each.number for each in self._jobs.values() if each.ending][:-MAX_REMEMBERED]:
            del self._jobs[number]
        self._jobs[job.number] = job

    async def _run(self, job: Job, timers: Sequence[Timer], notes: Notes) -> None:
        ending, failure = Ending.INTERRUPTED, None
        try:
            # One of many: a step of a job and one of a visit are not taken in the same round.
            steps = self._go_through(job, timers, notes)
            await in_turns(steps, self._right_of_way, GIVE_WAY_S, one_of_many=True)
            ending = Ending.FINISHED
        except Over:
            ending = Ending.INTERRUPTED if self._is_closing else Ending.STOPPED
        except Exception as error:
            ending, failure = Ending.FAILED, error
        finally:
            job.ending, job.waits_for = ending, ""
            with suppress(TransientError):
                await notes.end(job, failure)
            job.over.set()

    async def _go_through(self, job: Job, timers: Sequence[Timer], notes: Notes) -> None:
        for attempt in range(1, TRIES + 1):
            left: list[Timer] = []
            start = 0
            while start < len(timers):
                async with self._turn:
                    end = start + (BATCH if self._right_of_way.is_quiet else SMALL_BATCH)
                    batch = timers[start:end]
                    left += await self._one_batch(job, batch, notes, is_last_try=attempt == TRIES)
                start = end
            if not left:
                return
            timers = left
            job.waits_for = "timers that are just being fired"
            await unless(job.stop, asyncio.sleep(TRY_AGAIN_S))

    async def _one_batch(
        self, job: Job, batch: Sequence[Timer], notes: Notes, *, is_last_try: bool
    ) -> list[Timer]:
        """Carry out one batch and note it; return the timers that are just being fired."""
        if job.stop.is_set():
            raise Over
        began_s = self._elapsed_s()
        results = await self._until_it_works(job, lambda: self._carry_out(job.wish, batch))
        again = frozenset[str]() if is_last_try else _UNSETTLED.keys()
        left = [each.before for each in results if each.outcome in again]
        did = [
            each._replace(outcome=_UNSETTLED.get(each.outcome, each.outcome))
            for each in results
            if each.outcome not in again
        ]
        # Noted before it counts: what is shown as done can be looked up.
        if did:
            await self._until_it_works(job, lambda: notes.keep(job, did))
            job.outcomes.update(each.outcome for each in did)
        pause_s = min(max(PAUSE_S, SHARE * (self._elapsed_s() - began_s)), MAX_PAUSE_S)
        await unless(job.stop, asyncio.sleep(pause_s))
        return left

    async def _carry_out(self, wish: Wish, batch: Sequence[Timer]) -> list[Did]:
        now = self._now()
        requests = [(timer, wish.request(timer, now)) for timer in batch]
        able = [request for _, request in requests if request is not None]
        decided = iter((await self._timers.carry_out_all(able)).decided)
        return [
            Did(timer, OUT_OF_RANGE) if request is None else _did(timer, next(decided))
            for timer, request in requests
        ]

    async def _until_it_works(self, job: Job, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step again and again while the store is busy or away. Raises Over if the job is stopped."""
        backoff = Backoff(self._chance)
        while True:
            try:
                result = await step()
            except TransientError as error:
                job.waits_for = error.public
                await unless(job.stop, asyncio.sleep(backoff.next_s()))
            else:
                job.waits_for = ""
                return result
