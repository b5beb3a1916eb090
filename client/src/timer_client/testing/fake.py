"""Timers without a broker or a service: the client itself, on a broker and a service in memory."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from timer_client.requests import Timer
from timer_client.testing.assertions import TimerAssertions, target_of
from timer_client.testing.memory_broker import as_connection
from timer_client.testing.memory_service import MemoryService
from timer_client.timers import Timers

START: Final = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
TENANT: Final = "test"
SETTLE_TIMEOUT_S: Final = 10.0
"""Of real time, for handlers to return before time moves on."""
TURNS: Final = 20
"""Turns of the event loop that others get before time moves on."""

PAUSE_S: Final = 0.0005


class FakeTimers(Timers, TimerAssertions):
    """One tenant's timers in memory; they fire when a test lets time pass."""

    def __init__(
        self,
        *,
        tenant: str = TENANT,
        now: datetime = START,
        settle_timeout: timedelta = timedelta(seconds=SETTLE_TIMEOUT_S),
        service: MemoryService | None = None,
    ) -> None:
        self._service = service or MemoryService("timer", now)
        self._settle_timeout = settle_timeout
        super().__init__(as_connection(self._service.broker), tenant=tenant)
        self.stopwatch = lambda: self.now().timestamp()

    def of(self, tenant: str) -> Self:
        """Return the timers of a tenant in the same memory, at the same time."""
        return type(self)(tenant=tenant, settle_timeout=self._settle_timeout, service=self._service)

    def now(self) -> datetime:
        """Return the present moment."""
        return self._service.now

    async def advance(
        self, span: timedelta | None = None, *, to: datetime | None = None, **parts: float
    ) -> datetime:
        """Let time pass by a span, by `days=3` and the like, or to a moment; return what time it is then.

        Time stops at every due time until all handlers have returned.
        """
        target = target_of(self.now(), span, to, parts)
        if target < self.now():
            raise ValueError(f"time cannot go back: it is already {self.now()}, later than {target}")
        await self.settle()
        while (at := self._service.next_at()) is not None and at < target:
            await self._move_to(at)
        await self._move_to(target)
        return self.now()

    async def advance_to_next(self) -> datetime:
        """Let time pass until something is due, and return what time it is then."""
        await self.settle()
        at = self._service.next_at()
        if at is not None:
            await self._move_to(at)
        return self.now()

    async def fire_now(self, service_call_id: str, *, tenant: str | None = None) -> None:
        """Move a scheduled timer to the present moment and wait until its firing is handled."""
        await self.assert_scheduled(service_call_id, tenant=tenant)
        await self.of(tenant or self.tenant).schedule(service_call_id, self.now())
        await self.settle()

    async def all_scheduled(self, *, tenant: str | None = None) -> list[Timer]:
        """Return a tenant's scheduled timers by due time."""
        return self._service.scheduled(tenant or self.tenant)

    async def settle(self) -> None:
        """Wait, without moving time, until all handlers have returned."""
        deadline = time.monotonic() + self._settle_timeout.total_seconds()
        quiet = busy = 0
        while quiet < TURNS:
            self._service.fire_due()
            at_work = self._service.broker.at_work()
            quiet, busy = (0, busy + 1) if at_work else (quiet + 1, 0)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"time stands at {self.now()}: handlers have not returned: {', '.join(at_work)}"
                )
            # A task that takes long waits for something else, such as a thread, which needs its time, too.
            await asyncio.sleep(0 if busy < TURNS else PAUSE_S)

    async def _move_to(self, moment: datetime) -> None:
        self._service.now = max(moment, self.now())
        await self.settle()
