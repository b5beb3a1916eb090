"""Databases that release 0.1.0 wrote, opened by this program: it fires what was pending and keeps the rest.

tests/fixtures/make_release_0_1_0.py has made them with that release's own code.
"""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.postgres import execute, fresh_schema
from tests.support.timers import ACME, GLOBEX, at, cancel, schedule
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.messages import Command, CorrelationId, ServiceCallId, Trace
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.timer_store import TimerStore
from timer_service.testing import START

FIXTURES = ROOT / "tests" / "fixtures"


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[TimerStore]:
    path = folder / "timers.db"
    shutil.copyfile(FIXTURES / "release-0.1.0.db", path)
    async with open_sqlite_store(path, lambda: START) as store:
        yield store


@asynccontextmanager
async def _postgres(_: Path) -> AsyncIterator[TimerStore]:
    async with fresh_schema() as url:
        await execute(url, (FIXTURES / "release-0.1.0.sql").read_text("utf-8").replace("public.", ""))
        async with open_postgres_store(url, lambda: START) as store:
            yield store


@pytest.mark.parametrize("opened", [_sqlite, _postgres])
async def test_what_was_pending_fires_and_the_rest_is_kept(
    opened: Callable[[Path], AbstractAsyncContextManager[TimerStore]], tmp_path: Path
) -> None:
    async with opened(tmp_path) as store:
        async with store.claim_due(at(0), 10) as claim:
            fired = [(timer.tenant_id, timer.service_call_id, timer.generation) for timer in claim.timers]
            [moved] = [timer for timer in claim.timers if timer.service_call_id == "moved"]
            assert await claim.mark_reached([timer.reached(at(0)) for timer in claim.timers]) == 4
        late: list[Command] = [
            schedule("reached", 60, number=20),
            cancel("far", number=5),
            schedule("cancelled", number=7),
        ]
        outcomes = await store.apply(late, at(0))
        newer = await store.apply([schedule("never-scheduled", 60, number=21)], at(0))
        states = {
            name: (timer.state, timer.generation)
            for name in ("reached", "pending", "moved", "oldest", "cancelled", "far", "revived")
            if (timer := await store.get(ACME, ServiceCallId(name))) is not None
        }

    assert fired == [
        (ACME, "oldest", 1),
        (ACME, "pending", 1),
        (ACME, "moved", 2),
        (GLOBEX, "pending", 1),
    ]
    trace = Trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
    assert (moved.correlation_id, moved.trace) == (CorrelationId("request-4"), trace)
    # Older commands that come again undo nothing; a newer one counts.
    assert outcomes == [Outcome.ALREADY_REACHED, Outcome.SUPERSEDED, Outcome.SUPERSEDED]
    assert newer == [Outcome.SCHEDULED]
    assert states == {
        **dict.fromkeys(("reached", "pending", "oldest"), (TimerState.REACHED, 1)),
        "moved": (TimerState.REACHED, 2),
        "cancelled": (TimerState.CANCELLED, 1),
        "far": (TimerState.SCHEDULED, 1),
        "revived": (TimerState.SCHEDULED, 2),
    }
