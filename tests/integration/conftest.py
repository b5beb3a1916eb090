"""What the tests of single adapters share."""

import pytest

from timer_service.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
