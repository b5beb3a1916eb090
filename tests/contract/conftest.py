"""The adapters that must keep the contract: a new one is one more entry here."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.clients import CLIENTS, Desk
from tests.support.lines import BUSES, Line
from tests.support.postgres import open_postgres_in_step
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.ports.timer_store import TimerStore
from timer_service.testing import START, ManualClock, MemoryTimerStore

OpenStore = Callable[[Path], AbstractAsyncContextManager[TimerStore]]


@asynccontextmanager
async def _open_memory(_: Path) -> AsyncIterator[TimerStore]:
    yield MemoryTimerStore()


@asynccontextmanager
async def _open_sqlite(folder: Path) -> AsyncIterator[TimerStore]:
    async with open_sqlite_store(folder / "timers.db", lambda: START) as store:
        yield store


def _open_postgres(_: Path) -> AbstractAsyncContextManager[TimerStore]:
    return open_postgres_in_step(START)


STORES: dict[str, OpenStore] = {"memory": _open_memory, "sqlite": _open_sqlite, "postgres": _open_postgres}


@pytest.fixture(params=list(STORES))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TimerStore]:
    """An empty timer store of each kind."""
    async with STORES[request.param](tmp_path) as opened:
        yield opened


PATIENT_S = 60.0
IMPATIENT_S = 2.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=list(BUSES))
async def line(request: pytest.FixtureRequest, prefix: str, clock: ManualClock) -> AsyncIterator[Line]:
    """A bus of each kind whose broker waits long for an acknowledgement."""
    async with _open_line(request, prefix, clock, PATIENT_S) as opened:
        yield opened


@pytest.fixture(params=list(BUSES))
async def impatient_line(
    request: pytest.FixtureRequest, prefix: str, clock: ManualClock
) -> AsyncIterator[Line]:
    """A bus of each kind whose broker soon delivers again what is not acknowledged."""
    async with _open_line(request, prefix, clock, IMPATIENT_S) as opened:
        yield opened


def _open_line(
    request: pytest.FixtureRequest, prefix: str, clock: ManualClock, ack_wait_s: float
) -> AbstractAsyncContextManager[Line]:
    # The broker is started only where the bus needs one.
    return BUSES[request.param](lambda: request.getfixturevalue("shared_broker"), prefix, clock, ack_wait_s)


@pytest.fixture(params=list(CLIENTS))
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """A tenant of its own, with a client of each kind."""
    async with CLIENTS[request.param](lambda: request.getfixturevalue("shared_broker")) as opened:
        yield opened
