"""Fixtures shared by all tests."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.broker import NatsServer
from tests.support.world import World

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One nats-server for every test that leaves it alone; each test has a subject prefix of its own."""
    server = NatsServer(tmp_path_factory.mktemp("broker")).start()
    yield server
    server.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server that the test may kill, restart or reconfigure."""
    server = NatsServer(tmp_path / "broker").start()
    yield server
    server.stop()


@pytest.fixture
def prefix() -> str:
    """A subject prefix that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
async def world(shared_broker: NatsServer, tmp_path: Path, prefix: str) -> AsyncIterator[World]:
    """A world on the shared broker."""
    opened = await World(tmp_path, shared_broker, prefix).open()
    yield opened
    await opened.close()


@pytest.fixture
async def fragile_world(own_broker: NatsServer, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose broker the test may break."""
    opened = await World(tmp_path, own_broker, "timer").open()
    yield opened
    await opened.close()
