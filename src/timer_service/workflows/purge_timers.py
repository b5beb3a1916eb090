"""Delete what retention no longer keeps."""

from datetime import timedelta

from timer_service.ports.clock import Clock
from timer_service.ports.timer_store import TimerStore
from timer_service.workflows.retry import Retry


async def purge_timers(
    *, store: TimerStore, clock: Clock, retention: timedelta, limit: int, retry: Retry
) -> int:
    """Delete one bounded batch of timers that ended longer ago than the retention; return how many."""
    ended_before = clock.now() - retention
    return await retry(lambda: store.purge(ended_before, limit))
