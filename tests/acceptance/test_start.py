"""Stopping before the service has started: a supervisor does not wait for a database that is away."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.process import TimerServiceProcess

PATIENCE_S = 30.0
"""So long the service waits for its database at start, if nobody stops it."""


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def started(tmp_path: Path, port: int) -> TimerServiceProcess:
    return TimerServiceProcess(
        tmp_path,
        store_url=f"postgresql://timer@127.0.0.1:{port}/timers",
        broker_url="nats://127.0.0.1:1",
    ).start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_a_database_that_is_away(tmp_path: Path, number: signal.Signals) -> None:
    service = started(tmp_path, free_port())
    service.wait_for_log("store.unavailable")

    service._signal(number)

    # Well before its patience is at an end, which would end it with another code.
    assert service.wait() == 0
    assert [line["event"] for line in service.log] == ["store.unavailable", "service.stopped"]


def test_a_signal_ends_the_wait_for_a_database_that_is_silent(tmp_path: Path, silent_server: int) -> None:
    service = started(tmp_path, silent_server)
    service.wait_for_log("store.unavailable")

    assert service.terminate() == 0
