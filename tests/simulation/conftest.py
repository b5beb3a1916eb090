"""Fixtures shared by the tests of the simulation."""

from collections.abc import Iterator

import pytest

from tests.simulation.world import Workshop, workshop


@pytest.fixture(scope="session")
def shop() -> Iterator[Workshop]:
    """Where the simulated services work."""
    with workshop() as opened:
        yield opened
