"""Fixtures shared by all tests."""

import gc
import itertools
import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from tests.support.broker import NatsServer
from tests.support.disk import Disk
from tests.support.world import World

_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what is collected, neither now nor later: all of it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One nats-server for every test that leaves it alone; each test has a subject prefix of its own."""
    server = NatsServer(tmp_path_factory.mktemp("broker")).start()
    yield server
    server.stop()


@pytest.fixture
def prefix() -> str:
    """A subject prefix that no other test of the shared broker uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def guarded_broker(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of the test's own, on which the service has its shipped permissions and no more."""
    server = NatsServer(tmp_path / "broker", guarded=True).start()
    yield server
    server.stop()


@pytest.fixture
async def world(guarded_broker: NatsServer, tmp_path: Path) -> AsyncIterator[World]:
    """The service under the shipped permissions, with a broker that the test may break."""
    opened = await World(tmp_path, guarded_broker, "timer").open()
    yield opened
    await opened.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk under the store of every service that the test starts."""
    made = Disk(tmp_path / "disk")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "disk"), os.environ.get("PYTHONPATH", "")])
    )
    return made
