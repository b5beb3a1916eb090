"""Fixtures shared by the tests of the simulation."""

from collections.abc import Iterator

import pytest

from tests.simulation.world import Workshop, workshop


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    """Where the simulated services of one file work."""
    with workshop() as opened:
        yield opened
