"""The adapters that must keep the contract: a new one is one more entry here."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.clients import CLIENTS, Desk
from tests.support.lines import BUSES, Line
from tests.support.stores import KINDS, open_kind
from timer_service.testing import ManualClock
from timer_service.wiring.stores import OpenedStore, Store


@pytest.fixture(params=KINDS)
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenedStore]:
    """An empty store of each kind, with all that is kept beside the timers."""
    async with open_kind(request.param, tmp_path) as each:
        yield each


@pytest.fixture
def store(opened: OpenedStore) -> Store:
    """An empty timer store of each kind."""
    return opened.store


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
