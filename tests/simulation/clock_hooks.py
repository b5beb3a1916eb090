"""Callbacks on a clock that stands until it is moved: each attempt exactly when it is due."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from tests.support.timers import schedule
from timer_service.domain.callback import Callback, RetryPolicy
from timer_service.domain.delivery import MAX_JITTER, Answered, CallbackRequest, CallResult, DeliveryState
from timer_service.domain.messages import TimerKey
from timer_service.ports.clock import Clock
from timer_service.testing import START
from timer_service.testing.deliveries import MemoryDeliveries
from timer_service.wiring.stores import Store

HOUR = timedelta(hours=1)
SPANS_H = (0, 1, 2, 24)
BURSTS = (1, 1, 3, 14)
"""Due together, at one receiver: fourteen are several batches, and enough for it to be given a rest."""
GATHERS_S = 0.001
BATCH = 8


@dataclass
class _Hook:
    """A callback, and what the receiver has seen of it."""

    due_at: datetime
    failures: int
    """How many attempts fail, the first ones."""
    delays: tuple[timedelta, ...]
    calls: int = 0
    failed_at: datetime | None = None
    under_way: bool = False

    @property
    def has_ended(self) -> bool:
        return not self.under_way and self.calls == min(self.failures, len(self.delays)) + 1

    @property
    def ends_as(self) -> DeliveryState:
        return DeliveryState.DELIVERED if self.failures <= len(self.delays) else DeliveryState.FAILED


class Hooks:
    """All callbacks of a seed: who asks for them, the receiver, and the judge."""

    def __init__(
        self, seed: int, clock: Clock, note: Callable[[str], None], violated: Callable[[str], None]
    ) -> None:
        self._random = Random(f"clock-hooks-{seed}")
        self._clock = clock
        self._note = note
        self._violated = violated
        self._hooks: dict[TimerKey, _Hook] = {}
        self._deliveries: MemoryDeliveries | None = None
        self.has_any = seed % 2 == 1
        """Every other seed goes without."""
        self.calls = 0

    async def ask(self, store: Store) -> None:
        """Let a few timers with callbacks be scheduled, all due at one moment."""
        assert isinstance(store.deliveries, MemoryDeliveries)
        self._deliveries = store.deliveries
        now = self._clock.now()
        due_at = now + HOUR * self._random.choice(SPANS_H)
        delays = tuple(HOUR * hours for hours in self._random.choice(((), (1,), (1, 5))))
        callback = Callback("https://shop.example/", retry=RetryPolicy(delays=delays))
        wanted = []
        for _ in range(self._random.choice(BURSTS)):
            command = schedule(f"hook-{len(self._hooks)}", (due_at - START).total_seconds())
            command = replace(command, callback=callback)
            self._hooks[command.key] = _Hook(due_at, self._random.choice((0, 1, 9)), delays)
            wanted.append(command)
        self._note(f"{len(wanted)} callbacks, due {due_at:%d %H:%M}, again after {[str(d) for d in delays]}")
        await store.decide(wanted, now)

    @asynccontextmanager
    async def sender(self, *_: object, **__: object) -> AsyncIterator["Hooks"]:
        """Open what stands for the sender: this very object."""
        yield self

    async def send(self, request: CallbackRequest) -> CallResult:
        """Receive a callback: it must come when it is due, and no time passes until it is answered."""
        key, now = (request.tenant_id, request.service_call_id), self._clock.now()
        hook = self._hooks[key]
        self.calls += 1
        hook.calls += 1
        self._note(f"{key[1]} is called, attempt {hook.calls}")
        if hook.under_way or request.attempt != hook.calls or not self._is_its_time(hook, now):
            self._violated(f"{key[1]}: attempt {request.attempt} at {now}, {hook}")
        hook.under_way = True
        await asyncio.sleep(self._random.random() * self._random.choice((0.001, 0.1, 3.0)))
        hook.under_way = False
        if hook.calls > hook.failures:
            return Answered(200)
        hook.failed_at = now
        return Answered(503)

    def _is_its_time(self, hook: _Hook, now: datetime) -> bool:
        if hook.failed_at is None:
            return now == hook.due_at
        if hook.calls > len(hook.delays) + 1:
            return False
        waited, delay = now - hook.failed_at, hook.delays[hook.calls - 2]
        return delay <= waited <= delay * (1 + MAX_JITTER)

    def unsettled(self, now: datetime) -> list[str]:
        """Return what is due or under way."""
        return [key[1] for key, hook in self._hooks.items() if hook.under_way or self._at(key) <= now]

    def next_due(self) -> list[datetime]:
        """Return when each is due that has not ended."""
        return [at for key in self._hooks if (at := self._at(key)) != _NEVER]

    def judge(self) -> None:
        """Say what has not ended as it should."""
        for key, hook in self._hooks.items():
            kept = None if self._deliveries is None else self._deliveries.kept.get(key)
            # None after its retention: a year has passed.
            if not hook.has_ended or (kept is not None and kept.state is not hook.ends_as):
                self._violated(f"{key[1]} ends as {kept}, {hook}")

    def _at(self, key: TimerKey) -> datetime:
        """Return when the next attempt is due, by the row; before it is handed over, by the timer."""
        kept = None if self._deliveries is None else self._deliveries.kept.get(key)
        if kept is not None:
            return kept.next_attempt_at or _NEVER
        return _NEVER if self._hooks[key].has_ended else self._hooks[key].due_at


_NEVER = datetime.max.replace(tzinfo=START.tzinfo)
