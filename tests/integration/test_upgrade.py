"""The stores of release 0.1.0 and of this program take turns on one PostgreSQL (`make upgrade`)."""

import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.postgres import fresh_database
from tests.support.release import start_old
from tests.support.timers import ACME
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.domain.messages import Position, ScheduleTimer, ServiceCallId
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import TimerQuery, TimerStore

pytestmark = pytest.mark.upgrade

ROUNDS = 50
# The old release's store: told a round by a line, it accepts a timer that is due, fires what it finds, and
# tells what that was.
OLD = """
import sys, asyncio
from datetime import UTC, datetime, timedelta
from timer_service.adapters.postgres.store import open_postgres_store
from timer_service.domain.messages import Position, ScheduleTimer

async def main():
    def now():
        return datetime.now(UTC).replace(microsecond=0)
    async with open_postgres_store(sys.argv[1], now) as store:
        print("ready", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            due = now() - timedelta(seconds=1)
            command = ScheduleTimer("acme", f"old-{line}", due, None, Position(1, 10_000 + int(line)))
            await store.apply([command], now())
            async with store.claim_due(now(), 10) as claim:
                await claim.mark_reached([timer.reached(now()) for timer in claim.timers])
                print(" ".join(timer.service_call_id for timer in claim.timers), flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def database() -> AsyncIterator[str]:
    async with fresh_database() as url:
        yield url


def told(process: "subprocess.Popen[str]", line: object) -> list[str]:
    """Let the old release do a round; return what it fired."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().split()


async def fire(store: TimerStore) -> list[str]:
    now = datetime.now(UTC).replace(microsecond=0)
    async with store.claim_due(now, 10) as claim:
        await claim.mark_reached([timer.reached(now) for timer in claim.timers])
        return [timer.service_call_id for timer in claim.timers]


async def test_an_old_store_works_on_in_turn_with_a_new_one_and_each_timer_is_marked_once(
    release: Path, database: str
) -> None:
    old = start_old(release, OLD, database)
    assert old.stdout is not None
    assert old.stdout.readline() == "ready\n"
    fired = Counter(told(old, 0))

    async with open_postgres_store(database, lambda: datetime.now(UTC)) as store:
        for number in range(1, ROUNDS + 1):
            now = datetime.now(UTC).replace(microsecond=0)
            due_at = now - timedelta(seconds=1)
            name = ServiceCallId(f"new-{number}")
            await store.apply([ScheduleTimer(ACME, name, due_at, None, Position(1, number))], now)
            fired.update(told(old, number) if number % 2 else [])
            fired.update(await fire(store))
        old.communicate("\n")
        timers = await store.list_timers(TimerQuery(ACME, limit=1_000))

    odd = [0, *range(1, ROUNDS + 1, 2)]
    assert fired == Counter([f"old-{n}" for n in odd] + [f"new-{n}" for n in range(1, ROUNDS + 1)])
    assert {timer.state for timer in timers} == {TimerState.REACHED}
    assert len(timers) == len(fired)


async def test_an_old_store_does_not_open_once_a_new_one_has(release: Path, database: str) -> None:
    async with open_postgres_store(database, lambda: datetime.now(UTC)):
        old = start_old(release, OLD, database)
        _, errors = old.communicate()

    assert old.returncode != 0
    assert "run the newer version of timer-service" in errors
