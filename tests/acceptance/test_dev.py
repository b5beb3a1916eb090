"""`timer-service dev`: the service and a broker of its own, in an empty folder, with nothing left behind."""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import converse_forked
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import run_or_kill

SCRIPT = str(Path(sysconfig.get_path("scripts")) / "timer-service")
MODULE = [sys.executable, "-m", "timer_service"]
LAST_OF_GREETING = " cancel --tenant "


class Dev:
    """A running `dev`, as somebody started it in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str, program: list[str] | None = None, **env: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMER_")}
        self.folder = folder
        self.env = {**clean, **env}
        forked = None if program else converse_forked(("dev", *arguments), folder, env, program=SCRIPT)
        self.process = forked or subprocess.Popen(
            [*(program or [SCRIPT]), "dev", *arguments],
            cwd=folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr.append(line)

    def greeting(self) -> str:
        """Return what it prints for its user."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if LAST_OF_GREETING in line:
                return text
        raise AssertionError((text, self.stderr))

    def ready(self) -> "Dev":
        """Wait until the service is connected to its broker."""
        try:
            until(
                lambda: self._said("broker.connected") or self.process.poll() is not None, "broker.connected"
            )
            assert self._said("broker.connected"), "it ended before it was connected"
        except AssertionError as error:
            error.add_note("".join(self.stderr))
            raise
        return self

    def _said(self, event: str) -> bool:
        return any(event in line for line in self.stderr)

    def broker_pid(self) -> int:
        """Return the process of its nats-server."""
        found = [pid for pid in running() if parent(pid) == self.process.pid]
        assert len(found) == 1
        return found[0]

    def shell(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Type a line into another terminal in the same folder."""
        return subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    @contextlib.contextmanager
    def typed(self, line: str) -> Iterator[list[str]]:
        """Let a command run in another terminal; what it prints is in the list."""
        shown: list[str] = []
        process = subprocess.Popen(
            f"exec {line}", shell=True, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        reader = threading.Thread(target=shown.extend, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield shown
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            reader.join(PATIENCE_S)
            process.stdout.close()

    def end(self, number: signal.Signals) -> int:
        """Send a signal as the terminal does, to all of the group, and return the exit code."""
        os.killpg(self.process.pid, number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGTERM)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


Start = Callable[..., Dev]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `dev` in an empty folder, on a free port unless told otherwise; stop it after the test."""
    started: list[Dev] = []
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*arguments: str, program: list[str] | None = None, **env: str) -> Dev:
        port = () if "--port" in arguments else ("--port", str(free_port()))
        started.append(Dev(folder, *arguments, *port, program=program, **env))
        return started[-1]

    yield run
    for dev in started:
        dev.close()


Shared = tuple[Dev, int, str]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """One `dev`, its port and its greeting, for tests that let it run; its program is on the path."""
    port, path = free_port(), f"{Path(SCRIPT).parent}:/usr/bin:/bin"
    dev = Dev(tmp_path_factory.mktemp("shared"), "--port", str(port), PATH=path)
    greeting = dev.greeting()
    yield dev.ready(), port, greeting
    dev.close()


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


def running() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def stat(pid: int) -> list[str]:
    """Return state, parent and what follows, or nothing where the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def parent(pid: int) -> int:
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def has_ended(pid: int) -> bool:
    # A zombie has ended too: only its new parent has not asked for it yet.
    return stat(pid)[:1] in ([], ["Z"], ["X"])


def state_of(dev: Dev, call: str) -> str | None:
    """Return the state of acme's timer in the file."""
    path = dev.folder / ".timer-service" / "timers.db"
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as link:
        row = link.execute(
            "SELECT state FROM timer_schedules WHERE tenant_id = 'acme' AND service_call_id = ?", (call,)
        ).fetchone()
    return row[0] if row else None


def commands_in(greeting: str) -> list[str]:
    return [line.strip() for line in greeting.splitlines()[-3:]]


def over_http(dev: Dev) -> tuple[list[str], str]:
    """Return the requests that stand behind the greeting, and how to receive callbacks."""
    assert dev.process.stdout is not None
    lines = [dev.process.stdout.readline().strip() for _ in range(6)]
    return [line for line in lines if line.startswith("curl ")], lines[4]


def carry_out(curl: str) -> dict[str, Any]:
    """Do what a line with curl does, where there may be none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-X", default="GET")
    parser.add_argument("-H", action="append")
    parser.add_argument("-d")
    found = parser.parse_args(shlex.split(curl)[1:])
    headers = dict(line.split(": ", 1) for line in found.H)
    data = found.d.encode() if found.d else None
    request = urllib.request.Request(found.url, data, headers, method=found.X)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return dict(json.load(answer)["timer"])


def refusal(folder: Path, *arguments: str) -> str:
    """Run a `dev` that must refuse to start, and return the one line it says."""
    finished = run_or_kill("dev", *arguments, cwd=folder)

    assert (finished.returncode, finished.stdout) == (1, "")
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("timer-service: ")
    return lines[0]


def test_the_greeting_says_how_to_reach_it_and_what_to_try(shared: Shared) -> None:
    _, port, greeting = shared

    assert f"nats://127.0.0.1:{port} (not 4222: change the examples' address)" in greeting
    assert ".timer-service" in greeting
    words = [shlex.split(line)[1] for line in commands_in(greeting)]
    assert words == ["watch", "schedule", "cancel"]


def test_the_printed_requests_over_http_work_and_a_callback_reaches_the_receiver(start: Start) -> None:
    dev = start(TIMER_API_PORT=str(free_port()))
    greeting = dev.greeting()
    (create, show, call), listen = over_http(dev)
    dev.ready()
    [api] = re.findall(r"^  api +(http://\S+/v1)$", greeting, re.MULTILINE)
    with urllib.request.urlopen(api, timeout=PATIENCE_S) as page:
        assert page.headers["content-type"].startswith("text/html")

    created, shown = carry_out(create), carry_out(show)
    port = free_port()
    with dev.typed(f"env {listen} --port {port} --json") as received:
        called = carry_out(call.replace(":9000/", f":{port}/").replace("10000", "0"))
        until(lambda: len(received) > 0, "the callback")

    assert (created["serviceCallId"], shown) == ("order-43", created)
    facts = json.loads(received[-1])
    assert (facts["timerId"], facts["signature"]) == (called["serviceCallId"], "valid")


@pytest.mark.parametrize(
    ("program", "path"),
    [
        pytest.param([SCRIPT], "/usr/bin:/bin", id="by its full name"),
        pytest.param(MODULE, "/usr/bin:/bin", id="as a module"),
    ],
)
def test_the_printed_commands_name_a_program_that_runs(start: Start, program: list[str], path: str) -> None:
    dev = start(program=program, PATH=path)
    _, schedule, _ = commands_in(dev.greeting())
    dev.ready()

    scheduled = dev.shell(schedule)

    assert (scheduled.returncode, scheduled.stderr) == (0, "")
    until(lambda: state_of(dev, "order-42") is not None, "the timer")


def test_the_printed_commands_work_as_they_stand(shared: Shared) -> None:
    dev, _, greeting = shared
    watch, schedule, cancel = commands_in(greeting)

    cancelled = dev.shell(cancel)  # Before it is scheduled: its ten seconds may be over by then.
    assert (cancelled.returncode, cancelled.stderr) == (0, "")
    until(lambda: state_of(dev, "order-42") == "Cancelled", "the cancel")
    scheduled = dev.shell(schedule)
    assert (scheduled.returncode, scheduled.stderr) == (0, "")
    until(lambda: state_of(dev, "order-42") in ("Scheduled", "Reached"), "the timer")
    with dev.typed(watch) as shown:
        for number in range(43, 63):
            dev.shell(schedule.replace("order-42", f"order-{number}").replace("10s", "0s"))
            if shown:
                break

    assert re.search(r"acme/order-\d+ .* ms ", shown[0])


def test_a_second_dev_in_the_same_folder_refuses_and_the_first_goes_on(shared: Shared) -> None:
    first, _, _ = shared

    line = refusal(first.folder, "--port", str(free_port()))

    assert ".timer-service" in line
    assert "--dir" in line
    assert first.process.poll() is None


def test_several_that_start_at_once_do_not_take_each_others_ports(start: Start) -> None:
    """Each has said a port for health before it has loaded the service, and must then have it."""
    several = [start("--dir", f"data-{number}") for number in range(3)]
    greetings = [dev.greeting() for dev in several]

    for dev in several:
        dev.ready()

    health = {line for greeting in greetings for line in greeting.splitlines() if "/readyz" in line}
    assert len(health) == 3


def test_where_the_usual_port_is_taken_it_takes_another_and_says_so_in_every_command(
    tmp_path: Path,
) -> None:
    with contextlib.closing(socket.socket()) as holder:
        # Where this fails, somebody else holds the port: just as good.
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", 4222))
            holder.listen()
        dev = Dev(tmp_path)
        try:
            greeting = dev.greeting()
            dev.ready()
        finally:
            dev.close()

    address = re.search(r"broker +nats://127\.0\.0\.1:(\d+) \(not 4222: .*\n", greeting)
    assert address is not None
    assert address[1] != "4222"
    assert [f"--server nats://127.0.0.1:{address[1]}" in line for line in commands_in(greeting)] == [True] * 3


def test_a_port_asked_for_and_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])

        line = refusal(tmp_path, "--port", port)

    assert port in line
    assert "--port" in line


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    line = refusal(tmp_path, "--dir", "file/data", "--port", str(free_port()))

    assert "file/data" in line
    assert "--dir" in line


def test_only_this_machine_can_reach_the_broker(shared: Shared) -> None:
    _, port, _ = shared

    with socket.create_connection(("127.0.0.1", port), 2) as link:
        assert link.recv(4) == b"INFO"
    # A server on every address of the machine answers on this one too.
    with pytest.raises(OSError, match=r"refused|assign|timed out"):
        socket.create_connection(("127.0.0.2", port), 2)


def test_settings_for_another_broker_are_not_for_this_one(start: Start) -> None:
    dev = start(
        TIMER_BROKER_URL="nats://127.0.0.1:1",
        TIMER_BROKER_USER="me",
        TIMER_BROKER_PASSWORD="secret",
        TIMER_JETSTREAM_DOMAIN="hub",
        TIMER_STREAM_REPLICAS="3",
    )

    broker = dev.ready().broker_pid()

    assert dev.end(signal.SIGTERM) == 0
    assert has_ended(broker)


def test_a_timer_scheduled_before_a_restart_fires_after_it(start: Start) -> None:
    before = start()
    _, schedule, _ = commands_in(before.greeting())
    before.ready()
    spans = ("100s", "30s", "2s")  # On a slow machine the shorter ones fire before it has stopped.
    for span in spans:
        before.shell(schedule.replace("order-42", span).replace("10s", span))
    until(lambda: None not in [state_of(before, span) for span in spans], "the timers")
    assert before.end(signal.SIGTERM) == 0
    still_scheduled = [span for span in spans if state_of(before, span) == "Scheduled"]

    after = start().ready()

    assert still_scheduled != []
    until(lambda: state_of(after, still_scheduled[-1]) == "Reached", "the timer to fire")


def test_a_database_that_was_removed_is_noticed_until_a_person_gives_it_up(
    start: Start, tmp_path: Path
) -> None:
    first = start()
    _, schedule, _ = commands_in(first.greeting())
    first.ready()
    first.shell(schedule)
    until(lambda: state_of(first, "order-42") is not None, "the timer")
    assert first.end(signal.SIGTERM) == 0
    databases = [*tmp_path.rglob("timers.db*")]
    for file in databases:
        file.unlink()

    codes = [start().wait()]
    refused = start()  # It finds the empty file that the one before has made.
    codes.append(refused.wait())
    allowed = start(TIMER_ALLOW_NEW_STORE="true").ready()

    assert databases != []
    assert codes == [1, 1]
    assert refused.stderr[-1].startswith("timer-service: ")
    assert "is new, but 1 commands were acknowledged before" in refused.stderr[-1]
    assert allowed.end(signal.SIGTERM) == 0


def test_it_ends_with_0_and_takes_its_broker_with_it(start: Start) -> None:
    """By Ctrl-C; the other tests end it with SIGTERM."""
    dev = start().ready()
    broker = dev.broker_pid()

    code = dev.end(signal.SIGINT)

    assert code == 0
    assert has_ended(broker)
    assert not any("Traceback" in line for line in dev.stderr)


def test_a_kill_leaves_no_broker_behind_and_the_folder_is_free(start: Start) -> None:
    dev = start().ready()
    broker = dev.broker_pid()

    dev.end(signal.SIGKILL)
    until(lambda: has_ended(broker), "the broker to end")
    again = start().ready()

    assert again.end(signal.SIGTERM) == 0


def test_it_ends_with_one_clear_line_when_its_broker_dies(start: Start) -> None:
    dev = start().ready()

    os.kill(dev.broker_pid(), signal.SIGKILL)
    code = dev.wait()

    assert code == 1
    assert dev.stderr[-1].startswith("timer-service: ")
    assert "nats-server.log" in dev.stderr[-1]
    assert not any("Traceback" in line for line in dev.stderr)
