"""The command line, imported once: each command is a process of its own, forked off one that waits.

Starting Python and importing everything takes longer than most commands do.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

LONGEST_REQUEST = 1_000_000


class Forked:
    """A process of the command line that somebody else has started; used as one of `subprocess`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._answers = link.makefile("r")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("timer-service", timeout)
            self._ended()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _ended(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()
        self._link.close()


def start_forked(
    arguments: tuple[str, ...], cwd: Path, settings: dict[str, str], output: int, errors: int
) -> Forked | None:
    """Start one command; return None where a fresh Python is needed."""
    if _environment() != _INHERITED:
        return None  # The test has changed what Python itself may read.
    request = json.dumps([arguments, str(cwd), settings]).encode()
    link = socket.socket(socket.AF_UNIX)
    link.connect(_forker())
    socket.send_fds(link, [len(request).to_bytes(4)], [output, errors])
    link.sendall(request)
    return Forked(link)


def run_forked(
    arguments: tuple[str, ...], cwd: Path, settings: dict[str, str], timeout_s: float
) -> "subprocess.CompletedProcess[str] | None":
    """Run one command to its end, or kill it (code -9); return None where a fresh Python is needed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_forked(arguments, cwd, settings, output.fileno(), errors.fileno())
        if process is None:
            return None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            code = process.wait(timeout_s)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("TIMER_", "PYTEST_CURRENT"))
    }


# At import: later a test may have begun to change what Python itself reads.
_INHERITED = _environment()


@functools.cache
def _forker() -> str:
    """Start the process that forks; it ends with this one."""
    folder = tempfile.TemporaryDirectory(prefix="timer-forker-")
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, __file__, path],
        env=_INHERITED,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.terminate()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return path


def _serve(path: str) -> list[str]:
    """Wait for requests; return only in a process that was forked to carry one out."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            link, _ = listener.accept()
            while _children and os.waitpid(-1, os.WNOHANG)[0]:
                _children.pop()
            child = os.fork()
            if child == 0:
                break
            _children.append(child)
            link.close()
    return _carry_out(link)


_children: list[int] = []


def _carry_out(link: socket.socket) -> list[str]:
    head, (output, errors), _, _ = socket.recv_fds(link, 4, 2)
    request = b""
    while len(request) < int.from_bytes(head):
        request += link.recv(LONGEST_REQUEST)
    arguments, cwd, settings = json.loads(request)
    child = os.fork()
    if child:
        link.sendall(f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        link.sendall(f"{code}\n".encode())
        os._exit(0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, 64)
    os.chdir(cwd)
    os.environ.update(settings)
    return list(arguments)


if __name__ == "__main__":
    # As `python -m timer_service` finds it: not beside this file.
    sys.path.pop(0)
    from timer_service import bootstrap
    from timer_service.cli import main

    assert bootstrap  # Every command has what it needs.
    sys.argv = ["timer-service", *_serve(sys.argv[1])]
    sys.exit(main())
