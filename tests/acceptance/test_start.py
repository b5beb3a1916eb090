"""Stopping before the service has started: a supervisor does not wait for a database that is away."""

import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess

PATIENCE_S = 30.0
"""So long the service waits for its database at start, if nobody stops it."""


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def test_a_signal_ends_the_wait_for_a_file_that_somebody_holds(tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("CREATE TABLE something (else_ TEXT)")
        holder.execute("BEGIN EXCLUSIVE")
        service = TimerServiceProcess(tmp_path, db_path=path, broker_url="nats://127.0.0.1:1").start()
        deadline = time.monotonic() + PATIENCE_S
        while not path.with_name("held.db.lock").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

        # The wait itself would end with another code.
        assert service.terminate() == 0

    assert [line["event"] for line in service.log] == ["service.stopped"]
    assert len(service.stderr) == 1, "a thread was left behind"


def test_a_signal_ends_the_service_at_once_while_the_broker_is_away(tmp_path: Path) -> None:
    service = TimerServiceProcess(tmp_path, broker_url="nats://127.0.0.1:1").start()
    service.wait_for_log("broker.unavailable")

    assert service.terminate() == 0

    events = [line["event"] for line in service.log]
    assert events == [
        "store.created",
        "service.started",
        "broker.unavailable",
        "service.stopping",
        "service.stopped",
    ]


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
