"""Transient errors are waited out without loss; critical ones end the process with one clear line."""

import contextlib
import errno
import json
import socket
import sqlite3
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.disk import Disk
from tests.support.messages import in_seconds, iso
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess, run_or_kill
from tests.support.requests import ask
from tests.support.world import World

NOBODY = "nats://127.0.0.1:1"
"""An address where no broker is, so that a service under test never talks to one that is not the test's."""

SIDE_BY_SIDE = 4


async def commands_waiting(world: World) -> int:
    return int((await world.jetstream.stream_info(world.commands_stream)).state.messages)


# Transient


async def test_commands_wait_for_a_busy_store_and_none_is_lost(world: World) -> None:
    service = world.service().start_ready()

    with contextlib.closing(sqlite3.connect(world.db_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for number in range(3):
            await world.schedule("acme", f"order-{number}", in_seconds(0))
        unavailable = service.wait_for_log("store.unavailable")
        waiting, kept = await commands_waiting(world), world.rows()
        other.execute("ROLLBACK")
    events = await world.wait_for_events(3)
    await world.wait_until_consumed()

    assert (waiting, kept) == (3, [])
    assert unavailable["kind"] == "StoreBusy"
    assert [event["payload"]["serviceCallId"] for event in events] == ["order-0", "order-1", "order-2"]
    assert len(service.events("store.unavailable")) == len(service.events("store.recovered")) == 1


async def test_a_full_disk_holds_commands_back_until_there_is_space_again(world: World, disk: Disk) -> None:
    service = world.service().start_ready()
    await world.schedule("acme", "before", in_seconds(0))
    await world.wait_for_row("acme", "before", state="Reached")

    disk.fail(errno.ENOSPC)
    for number in range(3):
        await world.schedule("acme", f"order-{number}", in_seconds(0))
    unavailable = service.wait_for_log("store.unavailable")
    await world.until(lambda: _true(disk.refused_writes >= 5), "five tries")
    waiting, kept = await commands_waiting(world), [row["service_call_id"] for row in world.rows()]
    disk.recover()
    events = await world.wait_for_events(4)
    await world.wait_until_consumed()
    service.wait_for_log("store.recovered")

    assert (waiting, kept) == (3, ["before"])
    assert unavailable["kind"] == "StoreFull"
    calls = [event["payload"]["serviceCallId"] for event in events]
    assert calls == ["before", "order-0", "order-1", "order-2"]
    assert len(service.events("store.unavailable")) == len(service.events("store.recovered")) == 1
    assert service.terminate() == 0


async def test_a_timer_that_fires_on_a_full_disk_is_marked_later_and_stored_once(
    world: World, disk: Disk
) -> None:
    service = world.service().start_ready()
    await world.schedule("acme", "order-1", in_seconds(1))
    await world.wait_for_row("acme", "order-1", state="Scheduled")

    disk.fail(errno.ENOSPC)
    await world.wait_for_events(1)
    service.wait_for_log("store.unavailable")
    state = world.rows()[0]["state"]
    disk.recover()
    await world.wait_for_row("acme", "order-1", state="Reached")

    assert state == "Scheduled"
    assert len(await world.events()) == 1


async def test_a_failing_disk_ends_the_service_and_a_restart_loses_nothing(world: World, disk: Disk) -> None:
    service = world.service(ack_wait=1000).start_ready()

    disk.fail(errno.EIO)
    await world.schedule("acme", "order-1", in_seconds(0))
    code = service.wait()
    last_line = service.stderr[-1]
    waiting = await commands_waiting(world)
    disk.recover()
    service.restart()
    events = await world.wait_for_events(1)

    assert code == 1
    assert last_line.startswith("timer-service: ")
    assert str(world.db_path) in last_line
    assert "restart" in last_line
    assert not any("Traceback" in line for line in service.stderr)
    assert waiting == 1
    assert [event["payload"]["serviceCallId"] for event in events] == ["order-1"]


async def test_a_disk_that_fails_under_a_call_ends_the_service_too(world: World, disk: Disk) -> None:
    service = world.service().start_ready()

    disk.fail(errno.EIO)
    answer = await ask(world, "schedule", serviceCallId="order-1", dueAt=iso(in_seconds(3600)))
    code = service.wait()

    assert answer["code"] == "500"
    assert code == 1
    assert service.stderr[-1].startswith("timer-service: ")


async def test_a_disk_that_fails_under_a_request_over_http_ends_the_service_too(
    world: World, disk: Disk
) -> None:
    port, key = free_port(), "a-key-for-the-rest-api-of-this-test"
    service = world.service(api_port=port, api_key=key).start_ready()
    body = json.dumps({"dueAt": iso(in_seconds(3600))}).encode()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/timers/order-1"

    disk.fail(errno.EIO)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=PATIENCE_S)
    with refused.value as answer:
        told = answer.read().decode()
    code = service.wait()

    assert (answer.code, code) == (500, 1)
    assert str(world.db_path) not in told
    assert str(world.db_path) in service.stderr[-1]


async def test_a_broker_that_is_away_is_told_once_not_per_try(world: World) -> None:
    service = world.service().start_ready()
    await world.client.close()

    world.broker.kill()
    with counted_connections(world.broker.port) as tries:
        service.wait_for_log("broker.unavailable")
        await world.until(lambda: _true(len(tries) >= 5), "five tries")
    world.broker.start()
    service.wait_for_log("broker.connected", count=2)
    await world.open()
    await world.schedule("acme", "order-1", in_seconds(0))
    await world.wait_for_events(1)

    assert len(service.events("broker.unavailable")) == 1
    assert len(service.events("broker.connected")) == 2


async def _true(value: bool) -> bool:
    return value


@contextlib.contextmanager
def counted_connections(port: int) -> Iterator[list[None]]:
    """Take every connection to this port and close it at once."""
    seen: list[None] = []
    with socket.create_server(("127.0.0.1", port)) as server:

        def turn_away() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = server.accept()
                    link.close()
                    seen.append(None)

        thread = threading.Thread(target=turn_away, daemon=True)
        thread.start()
        yield seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


# Critical, in the configuration

WRONG_SETTINGS: dict[str, dict[str, str]] = {
    "interval in words": {"polling_interval": "often"},
    "interval of nothing": {"polling_interval": "0"},
    "batch of nothing": {"batch_size": "0"},
    "half a truth": {"precise_wakeup": "maybe"},
    "address without a scheme": {"broker_url": "127.0.0.1:1"},
    "address without a host": {"broker_url": "nats://"},
    "address with a port in words": {"broker_url": "nats://127.0.0.1:port"},
    "address with a port too high": {"broker_url": "nats://127.0.0.1:99999"},
    "address with an open bracket": {"broker_url": "nats://[::1"},
    "two kinds of address": {"broker_url": "nats://127.0.0.1:1,ws://127.0.0.1:2"},
    "credentials that are not there": {"broker_creds": "missing.creds"},
    "NKey that is not there": {"broker_nkey": "missing.nk"},
    "NKey that is none": {"broker_nkey": "garbage.txt"},
    "credentials that are none": {"broker_creds": "garbage.txt"},
    "CA that is not there": {"broker_tls_ca": "missing.pem"},
    "CA that is none": {"broker_tls_ca": "garbage.txt"},
    "domain with a dot": {"jetstream_domain": "hub.eu"},
    "prefix with a wildcard": {"subject_prefix": "timer.>"},
    "prefix with a line break": {"subject_prefix": "timer\n"},
    "no replica": {"stream_replicas": "0"},
    "wait too short": {"ack_wait": "999"},
    "unknown level": {"log_level": "loud"},
    "unknown format": {"log_format": "xml"},
}


def start_refused(folder: Path, settings: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    """Start the service with settings that must be refused."""
    (folder / "garbage.txt").write_text("garbage\n")
    return run_or_kill("run", cwd=folder, **{"broker_url": NOBODY, **settings})


def refusal(finished: "subprocess.CompletedProcess[str]") -> str:
    """Return the one line that a refused start says."""
    assert (finished.returncode, finished.stdout) == (2, "")
    lines = finished.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("timer-service: configuration: ")
    return lines[0]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, "subprocess.CompletedProcess[str]"]:
    """Every wrong setting, tried side by side: starting Python takes longer than to refuse."""

    def run(settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return start_refused(tmp_path_factory.mktemp("wrong"), settings)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        return dict(zip(WRONG_SETTINGS, pool.map(run, WRONG_SETTINGS.values()), strict=True))


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(
    refusals: dict[str, "subprocess.CompletedProcess[str]"], name: str
) -> None:
    line = refusal(refusals[name])

    for setting, value in WRONG_SETTINGS[name].items():
        assert f"TIMER_{setting.upper()}" in line
        assert repr(value)[1:-1] in line
        assert "must be" in line


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"broker_user": "me"}, ["TIMER_BROKER_USER", "TIMER_BROKER_PASSWORD"]),
        ({"broker_password": "hunter2"}, ["TIMER_BROKER_USER", "TIMER_BROKER_PASSWORD"]),
        ({"broker_tls_cert": "garbage.txt"}, ["TIMER_BROKER_TLS_CERT", "TIMER_BROKER_TLS_KEY"]),
        (
            {"broker_token": "hunter2", "broker_user": "me", "broker_password": "hunter2"},
            ["TIMER_BROKER_TOKEN", "TIMER_BROKER_USER"],
        ),
    ],
    ids=["user alone", "password alone", "certificate alone", "two ways to log in"],
)
def test_settings_that_do_not_go_together_are_named(
    tmp_path: Path, settings: dict[str, str], names: list[str]
) -> None:
    line = refusal(start_refused(tmp_path, settings))

    assert [name for name in names if name not in line] == []
    assert "hunter2" not in line


def test_all_wrong_settings_are_named_at_once(tmp_path: Path) -> None:
    wrong = {"batch_size": "0", "log_level": "loud", "subject_prefix": "*"}

    line = refusal(start_refused(tmp_path, wrong))

    assert [
        name for name in ("BATCH_SIZE", "LOG_LEVEL", "SUBJECT_PREFIX") if f"TIMER_{name}" not in line
    ] == []


def test_a_wrong_address_is_named_without_its_password(tmp_path: Path) -> None:
    line = refusal(start_refused(tmp_path, {"broker_url": "http://me:hunter2@127.0.0.1:1"}))

    assert "TIMER_BROKER_URL" in line
    assert "hunter2" not in line


# Critical, in the store


def failure(folder: Path, **settings: object) -> str:
    """Start the service on a store that it cannot use, and return the one line it says."""
    process = TimerServiceProcess(folder, broker_url=NOBODY, **settings).start()
    try:
        code = process.wait()
    finally:
        process.close()

    assert code == 1
    assert len(process.stderr) == 1
    assert process.stderr[0].startswith("timer-service: ")
    return process.stderr[0]


def database(path: Path) -> Path:
    """Let the service itself make a database."""
    process = TimerServiceProcess(path.parent, broker_url=NOBODY, db_path=path).start()
    process.wait_for_log("service.started")
    assert process.terminate() == 0
    return path


def overwrite(path: Path, start: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * length)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = database(tmp_path / "timers.db")
    with contextlib.closing(sqlite3.connect(path)) as link, link:
        link.execute("INSERT INTO timer_migrations VALUES (9999, '9999_future', '2030-01-01T00:00:00.000Z')")

    line = failure(tmp_path, db_path=path)

    assert str(path) in line
    assert "9999" in line
    assert "newer version" in line
    with contextlib.closing(sqlite3.connect(path)) as link:
        assert link.execute("SELECT max(version) FROM timer_migrations").fetchone() == (9999,)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "timers.db"
    path.write_bytes(b"dear diary\n" * 1000)

    line = failure(tmp_path, db_path=path)

    assert str(path) in line
    assert "TIMER_DB_PATH" in line
    assert path.read_bytes() == b"dear diary\n" * 1000


def test_a_database_with_a_broken_first_page_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "timers.db")
    overwrite(path, 0, 4096)

    line = failure(tmp_path, db_path=path)

    assert str(path) in line


def test_a_database_with_broken_tables_is_refused_and_a_backup_named(tmp_path: Path) -> None:
    path = database(tmp_path / "timers.db")
    overwrite(path, 4096, path.stat().st_size - 4096)

    line = failure(tmp_path, db_path=path)

    assert str(path) in line
    assert "corrupt" in line
    assert "backup" in line


@pytest.mark.parametrize("place", ["missing/timers.db", "file/timers.db"])
def test_a_path_that_cannot_be_a_database_is_refused_with_the_setting_to_change(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()

    line = failure(tmp_path, db_path=tmp_path / place)

    assert str(tmp_path / place) in line
    assert "TIMER_DB_PATH" in line


def test_a_database_that_cannot_be_opened_is_told_in_one_line_every_time(tmp_path: Path) -> None:
    # Side by side and often: the end of the loop and the end of the database's thread must never race.
    folders = [tmp_path / str(number) for number in range(12)]
    for folder in folders:
        (folder / "timers.db").mkdir(parents=True)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        lines = list(pool.map(lambda folder: failure(folder, db_path=folder / "timers.db"), folders))

    assert ["TIMER_DB_PATH" in line for line in lines] == [True] * len(folders)


def test_a_folder_that_takes_no_files_is_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    # The kernel's own folder takes no new files from anybody, not even from root.
    line = failure(tmp_path, db_path="/proc/timers.db")

    assert "/proc/timers.db" in line
    assert "TIMER_DB_PATH" in line


@pytest.mark.parametrize("switch", ["errno", "lock-errno"], ids=["in the database", "beside the database"])
def test_a_disk_that_is_full_at_start_is_refused(tmp_path: Path, disk: Disk, switch: str) -> None:
    path = database(tmp_path / "timers.db")
    disk.fail(errno.ENOSPC, switch=switch)

    line = failure(tmp_path, db_path=path)

    assert disk.refused_writes > 0
    assert str(path) in line
    assert "full" in line or "space" in line


async def test_a_second_process_on_the_same_file_is_refused_and_the_first_goes_on(world: World) -> None:
    first = world.service().start_ready()

    line = failure(world.folder, db_path=world.db_path)
    await world.schedule("acme", "order-1", in_seconds(0))
    events = await world.wait_for_events(1)

    assert str(world.db_path) in line
    assert f"process {first.pid}" in line
    assert "TIMER_DB_PATH" in line
    assert [event["payload"]["serviceCallId"] for event in events] == ["order-1"]


def test_a_killed_process_leaves_its_file_free(tmp_path: Path) -> None:
    first = TimerServiceProcess(tmp_path, broker_url=NOBODY, db_path="timers.db").start()
    first.wait_for_log("service.started")

    first.kill()
    second = first.restart()

    second.wait_for_log("service.started")
    assert second.terminate() == 0


def test_a_service_that_waits_for_its_broker_says_so_once_and_stops_when_told(tmp_path: Path) -> None:
    port = free_port()
    service = TimerServiceProcess(tmp_path, broker_url=f"nats://me:hunter2@127.0.0.1:{port}").start()
    with counted_connections(port) as tries:
        service.wait_for_log("broker.unavailable")
        _wait_for(tries, 4)

    assert service.terminate() == 0
    log: list[dict[str, Any]] = service.log
    told = [line["event"] for line in log]
    assert told == [
        "store.created",
        "service.started",
        "broker.unavailable",
        "service.stopping",
        "service.stopped",
    ]
    assert "hunter2" not in json.dumps(log)


def _wait_for(seen: list[None], count: int) -> None:
    arrived = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if len(seen) >= count:
            return
        arrived.wait(0.01)
    raise AssertionError(f"{len(seen)} of {count} connections")
