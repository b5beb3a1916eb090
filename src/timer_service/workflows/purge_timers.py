"""Delete what retention no longer keeps."""

from datetime import timedelta

from timer_service.ports.clock import Clock
from timer_service.ports.timer_store import TimerStore


async def purge_timers(*, store: TimerStore, clock: Clock, retention: timedelta, limit: int) -> int:
    """Delete one bounded batch of timers that ended longer ago than the retention; return how many."""
    return await store.purge(clock.now() - retention, limit)
