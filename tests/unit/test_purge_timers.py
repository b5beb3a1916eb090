"""Retention deletes what ended long ago, and nothing else."""

from datetime import timedelta

from tests.support.timers import at, cancel, schedule
from timer_service.testing import ManualClock, MemoryTimerStore
from timer_service.workflows.purge_timers import purge_timers


async def test_only_what_ended_longer_ago_than_the_retention_is_deleted() -> None:
    store = MemoryTimerStore()
    await store.apply([schedule("waiting", -900), cancel("old"), cancel("new", number=3)], at(-100))
    await store.apply([cancel("newest", number=4)], at(-10))

    purged = await purge_timers(store=store, clock=ManualClock(), retention=timedelta(seconds=60), limit=10)

    assert purged == 2
    assert [call for _, call in store.timers] == ["waiting", "newest"]
