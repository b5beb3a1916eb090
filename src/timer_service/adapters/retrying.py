"""A timer store that waits while the store behind it is unwell, and logs it once."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import structlog

from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import CriticalError, GivenUp, TransientError, telling_of_failure
from timer_service.domain.messages import Command, Event, ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.clock import Clock
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
    TimerStore,
)
from timer_service.waiting import Backoff

T = TypeVar("T")
log = structlog.get_logger(__name__)


class RetryingStore:
    """Repeats changes until the store takes them or the service stops; questions are asked once."""

    def __init__(
        self,
        store: TimerStore,
        *,
        clock: Clock,
        chance: Callable[[], float],
        wrote: Callable[[str, float], None] = lambda _operation, _seconds: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance
        self._wrote = wrote
        self._stopping = asyncio.Event()
        self._problems: dict[str, str] = {}
        """What fails at present, by operation."""
        self.problem_since: datetime | None = None
        self.on_wait: Callable[[], None] = lambda: None
        self.on_failure: Callable[[CriticalError], None] = lambda _: None

    @property
    def max_claims(self) -> int:
        """As many as the store behind can hold."""
        return self._store.max_claims

    @property
    def problem(self) -> str | None:
        """What is wrong with the store; None if all is well."""
        return next(iter(self._problems.values()), None)

    def stop(self) -> None:
        """From now on raise GivenUp if a change fails."""
        self._stopping.set()

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        """Apply commands, however long it takes; each try after the first is made at its own time."""
        first = [now]

        async def attempt() -> list[Outcome]:
            return await self._store.apply(commands, first.pop() if first else self._clock.now())

        return await self.retry("apply", attempt)

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        """Decide requests; the caller is told at once if that fails."""
        with telling_of_failure(self.on_failure):
            return await self._store.decide(requests, now)

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        """Claim what is due; its marks are repeated."""
        async with AsyncExitStack() as stack:
            with self._noting("claim"):
                claiming = self._store.claim_due(now, limit, held_back, sink)
                claim = await stack.enter_async_context(claiming)
            yield _RetryingClaim(self, claim)

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        """Return the earliest due time later than `after`."""
        with self._noting("next due time"):
            return await self._store.next_due_at(after, sink)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        """Return one timer."""
        with telling_of_failure(self.on_failure):
            return await self._store.get(tenant_id, service_call_id)

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        """Return a page of one tenant's timers."""
        with telling_of_failure(self.on_failure):
            return await self._store.list_timers(query)

    async def purge(self, ended_before: datetime, limit: int) -> int:
        """Delete a batch, however long it takes."""
        return await self.retry("purge", lambda: self._store.purge(ended_before, limit))

    async def count(self, now: datetime) -> StoreCounts:
        """Count what there is."""
        with telling_of_failure(self.on_failure):
            return await self._store.count(now)

    async def retry(self, operation: str, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first try that works."""
        backoff = Backoff(self._chance)
        while True:
            started = time.perf_counter()
            try:
                with self._noting(operation):
                    result = await step()
            except TransientError as error:
                if self._stopping.is_set():
                    raise GivenUp(f"stopped before {operation} worked: {error}") from error
                await self._clock.wait(backoff.next_s(), self._stopping)
                self.on_wait()
            else:
                self._wrote(operation, time.perf_counter() - started)
                return result

    @contextmanager
    def _noting(self, operation: str) -> Iterator[None]:
        """Remember what fails, and say once that the store is unwell and once that it is well again."""
        try:
            yield
        except TransientError as error:
            if not self._problems:
                self.problem_since = self._clock.now()
                log.warning("store.unavailable", kind=type(error).__name__, detail=str(error))
            self._problems[operation] = str(error)
            raise
        if self._problems.pop(operation, None) and not self._problems:
            self.problem_since = None
            log.info("store.recovered")


@dataclass(frozen=True, slots=True)
class _RetryingClaim:
    _store: RetryingStore
    _claim: Claim

    @property
    def timers(self) -> Sequence[DueTimer]:
        return self._claim.timers

    @property
    def more(self) -> bool:
        return self._claim.more

    @property
    def read_ahead(self) -> bool:
        return self._claim.read_ahead

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> Collection[TimerKey]:
        return await self._claim.settle(timers, verdict)

    async def mark_reached(self, events: Sequence[Event]) -> int:
        return await self._store.retry("mark", lambda: self._claim.mark_reached(events))
