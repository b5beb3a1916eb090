"""The memory adapters, made to fail on demand and to tell what was asked of them."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from timer_service.domain.callback import Sink
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.messages import Command, Event, Position, TenantId, TimerKey
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.command_source import Backlog, CommandBatch
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.timer_store import NOTHING_HELD_BACK, Claim, HeldBack
from timer_service.testing import MemoryEventBus, MemoryTimerStore

T = TypeVar("T")


async def _nothing() -> None:
    return None


class FragileStore(MemoryTimerStore):
    """A memory store whose next calls fail with the errors that a test has laid out."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._errors: dict[str, list[Exception]] = defaultdict(list)
        self.before_settling: Callable[[], Awaitable[object]] = _nothing
        """Runs before a verdict is kept."""
        self.reads_ahead = False
        """Whether it says that what it finds was read before."""

    def fail(self, method: str, *errors: Exception) -> None:
        """Let the next calls of a method fail, one with each error."""
        self._errors[method].extend(errors)

    def note(self, method: str) -> None:
        self.calls.append(method)
        if self._errors[method]:
            raise self._errors[method].pop(0)

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        self.note("apply")
        return await super().apply(commands, now)

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        self.note("claim_due")
        async with super().claim_due(now, limit, held_back, sink) as claim:
            yield _FragileClaim(self, claim)

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        self.note("next_due_at")
        return await super().next_due_at(after, sink)


@dataclass(frozen=True, slots=True)
class _FragileClaim:
    _store: FragileStore
    _claim: Claim

    @property
    def timers(self) -> Sequence[DueTimer]:
        return self._claim.timers

    @property
    def more(self) -> bool:
        return self._claim.more

    @property
    def read_ahead(self) -> bool:
        return self._store.reads_ahead and bool(self._claim.timers)

    async def settle(self, timers: Sequence[DueTimer], verdict: TimerState | None) -> Collection[TimerKey]:
        self._store.note("settle")
        await self._store.before_settling()
        return await self._claim.settle(timers, verdict)

    async def mark_reached(self, events: Sequence[Event]) -> int:
        self._store.note("mark_reached")
        return await self._claim.mark_reached(events)


@dataclass(slots=True)
class RecordingBus:
    """A memory bus that keeps every publication, and answers as a test wants it."""

    inner: MemoryEventBus
    published: list[list[Event]] = field(default_factory=list)
    """What was handed over, batch by batch."""
    answers: Callable[[Event], Published] = lambda _: Published.CONFIRMED
    """What becomes of each event that the broker is there to take."""
    meanwhile: Callable[[], Awaitable[None]] = _nothing
    """Runs after the broker has the events and before the service knows."""
    before_telling: Callable[[], Awaitable[None]] = _nothing
    """Runs while the broker is asked what waits, right before it tells."""

    @property
    def problem(self) -> str | None:
        return self.inner.problem

    async def last_position(self) -> Position:
        return await self.inner.last_position()

    async def last_seen_position(self) -> Position:
        return await self.inner.last_seen_position()

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        await self.before_telling()
        return await self.inner.backlog(beyond)

    async def receive(self) -> CommandBatch:
        return await self.inner.receive()

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        self.published.append(list(events))
        results = await self.inner.publish([e for e in events if self.answers(e) is Published.CONFIRMED])
        confirmed = iter(results)
        await self.meanwhile()
        return [
            next(confirmed)
            if self.answers(event) is Published.CONFIRMED
            else PublishResult(self.answers(event), "no")
            for event in events
        ]
