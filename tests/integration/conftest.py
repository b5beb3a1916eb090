"""What the tests of single adapters share."""

from pathlib import Path

import pytest

from tests.support.release import unpack_release
from timer_service.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of release 0.1.0; it needs the whole history of the repository."""
    return unpack_release(tmp_path_factory.mktemp("release"))
