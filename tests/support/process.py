"""The real timer-service process, seen from outside: its arguments, its log, its end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.forked import Forked, converse_forked, run_forked, start_forked
from tests.support.patience import PATIENCE_S


class TimerServiceProcess:
    """A running `timer-service`; every setting is an environment variable."""

    def __init__(self, folder: Path, *arguments: str, **settings: object) -> None:
        self.folder = folder
        self.source: Path | None = None
        """Where the program is, if it is that of another release."""
        self.arguments = arguments
        self.settings = {f"TIMER_{name.upper()}": str(value) for name, value in settings.items()}
        self.log: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> "TimerServiceProcess":
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"TIMER_LOG_FORMAT": "json", "TIMER_HTTP_PORT": "0", **self.settings}
        reading, writing = os.pipe()
        with Path(os.devnull).open("wb") as nowhere:
            forked = self.source is None and start_forked(
                self.arguments, self.folder, settings, nowhere.fileno(), writing
            )
            self._process = forked or self._start_python(settings, writing)
        os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        return self

    def _start_python(self, settings: dict[str, str], errors: int) -> "subprocess.Popen[bytes]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMER_")}
        if self.source is not None:
            clean["PYTHONPATH"] = str(self.source)
        return subprocess.Popen(
            [sys.executable, "-m", "timer_service", *self.arguments],
            cwd=self.folder,
            env={**clean, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )

    def start_ready(self) -> "TimerServiceProcess":
        """Start and wait until it is connected to the broker."""
        self.start()
        self.wait_for_log("broker.connected")
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_for_log(
        self, event: str, count: int = 1, where: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Wait until the log of this start holds this many such events; return the last of them."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.log if line.get("event") == event and where(line)]

        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while len(found()) < count:
                left = deadline - time.monotonic()
                if left <= 0 or not (self._changed.wait(min(left, 0.2)) or self.is_running):
                    tail = "".join(self.stderr[-20:])
                    raise AssertionError(f"no {event!r} ({len(found())} of {count}) in the log:\n{tail}")
            return found()[-1]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line.get("event") == event]

    def kill(self) -> None:
        """End it with kill -9."""
        self._signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """End it with SIGTERM and return its exit code."""
        self._signal(signal.SIGTERM)
        return self.wait()

    def interrupt(self) -> int:
        self._signal(signal.SIGINT)
        return self.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(timeout=PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        if self.is_running:
            self.kill()

    def restart(self) -> "TimerServiceProcess":
        """Start again on the same files, with an empty log."""
        assert not self.is_running
        self.log, self.stderr = [], []
        return self.start()

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8") as lines:
            for line in lines:
                with self._changed:
                    self.stderr.append(line)
                    try:
                        self.log.append(json.loads(line))
                    except ValueError:
                        self.log.append({"event": "", "text": line})
                    self._changed.notify_all()


def run_cli(
    *arguments: str, cwd: Path, timeout_s: float = PATIENCE_S, **settings: object
) -> "subprocess.CompletedProcess[str]":
    """Run one command of the command line to its end."""
    finished = run_or_kill(*arguments, cwd=cwd, timeout_s=timeout_s, **settings)
    assert finished.returncode != -signal.SIGKILL, f"{arguments} did not end"
    return finished


def start_cli(*arguments: str, cwd: Path, **settings: object) -> "subprocess.Popen[str] | Forked":
    """Start one command of the command line whose output the test reads while it runs."""
    named = {f"TIMER_{name.upper()}": str(value) for name, value in settings.items()}
    return converse_forked(arguments, cwd, named) or _start_fresh(arguments, cwd, named)


def end_cli(process: "subprocess.Popen[str] | Forked") -> None:
    """End a command with SIGTERM and read no more of it."""
    process.terminate()
    process.wait(PATIENCE_S)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _start_fresh(arguments: tuple[str, ...], cwd: Path, named: dict[str, str]) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "timer_service", *arguments],
        cwd=cwd,
        env={**clean, **named},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_or_kill(
    *arguments: str, cwd: Path, timeout_s: float = PATIENCE_S, **settings: object
) -> "subprocess.CompletedProcess[str]":
    """Run a command that must end by itself; one that does not is killed, and its code is -9."""
    named = {f"TIMER_{name.upper()}": str(value) for name, value in settings.items()}
    finished = run_forked(arguments, cwd, named, timeout_s)
    if finished is not None:
        return finished
    process = _start_fresh(arguments, cwd, named)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
