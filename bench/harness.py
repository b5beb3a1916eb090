"""The real processes of a measurement: nats-server, timer-service, load generator and listener."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.ports import free_port

from bench import listen, load, receiver
from bench.nats_socket import NatsError, NatsSocket

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
COMMANDS_STREAM: Final = "TIMER_COMMANDS"
EVENTS: Final = "timer.events.>"
NOT_READY: Final = "not ready before the first timer was due: the machine is too busy"
MAX_COPIED_BYTES: Final = 1_000_000_000


class NotMeasured(Exception):
    """A measurement that came to nothing, and why; the others go on."""


class NotReady(NotMeasured):
    """Timers were due before everything was ready for them."""


def now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


def check_in_time(due_ms: int) -> None:
    """Make sure that everything was ready before the first timer was due."""
    if now_ms() >= due_ms:
        raise NotReady(NOT_READY)


def nats_server_binary() -> str:
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    if not found:
        raise SystemExit("nats-server is missing: make install brings it")
    return found


class Broker:
    """A nats-server with JetStream on files; `sync_always` makes it fsync every write."""

    def __init__(self, folder: Path, *, sync_always: bool = False) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        folder.mkdir(parents=True)
        sync = "sync_interval: always" if sync_always else ""
        config = folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\nlog_file: '{folder / 'nats-server.log'}'\n"
            f"jetstream {{ store_dir: '{folder / 'data'}'\n {sync} }}\n"
        )
        self.process = subprocess.Popen([nats_server_binary(), "-c", str(config)], stdin=subprocess.DEVNULL)
        self._link = self._connect()

    def _connect(self) -> NatsSocket:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return NatsSocket(self.port)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def request(self, subject: str, body: object = None) -> dict[str, Any]:
        """Ask JetStream something."""
        return self._link.request(f"$JS.API.{subject}", body)

    def create_stream(self, name: str, subjects: list[str], **config: object) -> None:
        base = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": 1}
        self.request(f"STREAM.CREATE.{name}", {**base, **config})

    def stored(self, stream: str) -> int:
        """Return how many messages a stream holds; none where it is not there yet."""
        try:
            return int(self.request(f"STREAM.INFO.{stream}")["state"]["messages"])
        except NatsError:
            return 0

    def stop(self) -> None:
        self._link.close()
        self.process.terminate()
        self.process.wait(STOP_TIMEOUT_S)


class Processors:
    """How busy all cores of the machine are, whoever keeps them so, from a moment on."""

    def __init__(self) -> None:
        self.since_now()

    def since_now(self) -> None:
        """Begin again."""
        self._idle, self._all = _ticks()

    def busy_percent(self) -> float:
        """Return the share of all cores' time that was not idle."""
        idle, total = _ticks()
        return 100 - 100 * (idle - self._idle) / max(total - self._all, 1)


def _ticks() -> tuple[int, int]:
    """Return the idle and the whole time of all cores so far; a wait for the disk is idle time."""
    user, nice, system, idle, waiting, *others = map(
        int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    )
    return idle + waiting, user + nice + system + idle + waiting + sum(others)


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process, in MB (10^6 bytes)."""

    now_mb: float
    peak_mb: float


class TimerService:
    """The real `timer-service` process on one broker and one file, at its default settings.

    Except: it logs warnings only, to a file, and serves health and metrics on a free port.
    """

    def __init__(
        self,
        folder: Path,
        broker: Broker,
        db_path: Path,
        log_level: str,
        settings: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.db_path = db_path
        self._before = before
        self._folder = folder
        self._log_path = folder / "timer-service.log"
        self._http_port = free_port()
        self._settings = {
            "TIMER_BROKER_URL": broker.url,
            "TIMER_DB_PATH": str(db_path),
            "TIMER_HTTP_PORT": str(self._http_port),
            "TIMER_LOG_LEVEL": log_level,
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "TimerService":
        """Start the process and return at once."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMER_")}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._before, sys.executable, "-m", "timer_service"],
                cwd=self._folder,  # Without a `.env` file.
                env={**clean, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def start_ready(self) -> "TimerService":
        """Start and wait until it takes commands."""
        self.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if self._running.poll() is not None or time.monotonic() > deadline:
                raise NotMeasured(f"timer-service did not start: {self._log_path.read_text()[-2000:]}")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """End it with kill -9."""
        self._running.send_signal(signal.SIGKILL)
        self._running.wait(STOP_TIMEOUT_S)
        self._process = None

    @property
    def pid(self) -> int:
        return self._running.pid

    def log(self) -> str:
        """Return what the service has logged."""
        return self._log_path.read_text()

    def memory(self) -> Memory:
        """Return VmRSS and VmHWM."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kib = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Vm")}
        return Memory(int(kib["VmRSS"]) * 1024 / 1e6, int(kib["VmHWM"]) * 1024 / 1e6)

    def cpu_s(self) -> float:
        """Return the processor time used so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/readyz", timeout=1).close()
        except (urllib.error.URLError, OSError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event at the subscriber."""

    tenant: str
    due_ms: int
    received_ms: float

    @property
    def lateness_ms(self) -> float:
        return self.received_ms - self.due_ms


class Listener:
    """A subscriber in a process of its own."""

    def __init__(self, broker: Broker, count: int, timeout_s: float, subject: str = EVENTS) -> None:
        self._count = count
        wanted = listen.Listening(broker.port, subject, count, timeout_s)
        self._process = spawn(listen.arguments(wanted))
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == listen.READY

    def arrivals(self) -> list[Arrival]:
        """Wait for the end and return what arrived; it must be everything."""
        output, _ = self._process.communicate()
        arrivals = [Arrival(*fields) for fields in json.loads(output)]
        if len(arrivals) < self._count:
            raise NotMeasured(f"only {len(arrivals)} of {self._count} events arrived in time")
        return arrivals


class CallbackReceiver:
    """A receiver of callbacks in a process of its own."""

    def __init__(self, wanted: receiver.Receiving) -> None:
        self._count = wanted.count
        self._process = spawn(receiver.arguments(wanted))
        assert self._process.stdout is not None
        ready, port = self._process.stdout.readline().split()
        assert ready == receiver.READY
        self.origin = f"{'https' if wanted.certificate else 'http'}://127.0.0.1:{port}"

    def arrivals(self) -> list[Arrival]:
        """Wait for the end and return what arrived; it must be everything."""
        output, _ = self._process.communicate()
        arrivals = [Arrival(*fields) for fields in json.loads(output)]
        if len(arrivals) < self._count:
            raise NotMeasured(f"only {len(arrivals)} of {self._count} callbacks arrived in time")
        return arrivals

    def stop(self) -> None:
        """End it, whatever it waits for."""
        self._process.kill()
        self._process.communicate()


class Generator:
    """A load in a process of its own."""

    def __init__(self, wanted: load.Load) -> None:
        self._process = spawn(load.arguments(wanted))

    def seconds(self) -> float:
        """Wait until all is sent and acknowledged; return how long that took."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise NotMeasured("the load generator failed")
        return float(json.loads(output)["seconds"])


def spawn(arguments: list[str]) -> "subprocess.Popen[str]":
    """Start a process that prints what it found."""
    # Without a buffer, Python drops what a pipe does not take at once of a long line.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


@dataclass(slots=True)
class Rig:
    """One broker and one service, with files of their own."""

    folder: Path
    broker: Broker
    service: TimerService

    def wait_until_applied(self, timeout_s: float) -> None:
        """Wait until the service has taken every command."""
        deadline = time.monotonic() + timeout_s
        while self.broker.stored(COMMANDS_STREAM):
            if time.monotonic() > deadline:
                raise NotMeasured("the service did not take all commands before the first was due")
            time.sleep(0.02)


@contextlib.contextmanager
def rig(
    folder: Path,
    *,
    log_level: str = "warning",
    database: Path | None = None,
    batch_size: int | None = None,
    settings: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> Iterator[Rig]:
    """Set up a broker and a service that is not started yet, on a copy of a database or a new one.

    A very large one is used as it is: to copy it would take longer than to measure.
    """
    chosen = {"TIMER_BATCH_SIZE": str(batch_size)} if batch_size is not None else {}
    folder.mkdir(parents=True)
    broker = Broker(folder / "broker")
    db_path = folder / "timers.db"
    if database is not None and database.stat().st_size > MAX_COPIED_BYTES:
        db_path = database
    elif database is not None:
        _copy_to_disk(database, db_path)
    service = TimerService(folder, broker, db_path, log_level, {**chosen, **(settings or {})}, before)
    try:
        yield Rig(folder, broker, service)
    finally:
        service.stop()
        broker.stop()
        shutil.rmtree(folder)


def _copy_to_disk(source: Path, target: Path) -> None:
    """Copy a file and wait until it is written: the service's own syncs would otherwise wait for it."""
    shutil.copyfile(source, target)
    with target.open("rb+") as copy:
        os.fsync(copy.fileno())


@contextlib.contextmanager
def lone_broker(folder: Path, *, sync_always: bool = False) -> Iterator[Broker]:
    """Set up a broker alone."""
    broker = Broker(folder, sync_always=sync_always)
    try:
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder)
