"""The command line, imported once: each command is a process of its own, forked off one that waits.

Starting Python and importing everything takes longer than most commands do.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, NoReturn

LONGEST_REQUEST = 1_000_000
READ_AT_THE_START = ("PYTHON", "LANG", "LC_", "LD_")


class Forked:
    """A process of the command line that somebody else has started; used as one of `subprocess`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
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

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()
        self._link.close()


def start_forked(
    arguments: tuple[str, ...],
    cwd: Path,
    settings: dict[str, str],
    output: int,
    errors: int,
    *,
    program: str = "timer-service",
) -> Forked | None:
    """Start one command in a group of its own; return None where a fresh Python is needed."""
    environment = _environment()
    if _for_python(environment) != _for_python(_INHERITED):
        return None
    request = json.dumps([[program, *arguments], str(cwd), {**environment, **settings}]).encode()
    link = socket.socket(socket.AF_UNIX)
    link.connect(_forker())
    socket.send_fds(link, [len(request).to_bytes(4)], [output, errors])
    link.sendall(request)
    return Forked(link)


def converse_forked(
    arguments: tuple[str, ...], cwd: Path, settings: dict[str, str], program: str = "timer-service"
) -> Forked | None:
    """Start one command whose output is read while it runs; return None where a fresh Python is needed."""
    (output, to_output), (errors, to_errors) = os.pipe(), os.pipe()
    process = start_forked(arguments, cwd, settings, to_output, to_errors, program=program)
    os.close(to_output)
    os.close(to_errors)
    if process is None:
        os.close(output)
        os.close(errors)
        return None
    process.stdout, process.stderr = os.fdopen(output, encoding="utf-8"), os.fdopen(errors, encoding="utf-8")
    return process


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


def _for_python(environment: dict[str, str]) -> dict[str, str]:
    """Return what Python itself reads when it starts."""
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_THE_START)}


# At import: later a test may have begun to change it.
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
    arguments, cwd, environment = json.loads(request)
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
    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    return list(arguments)


def _end(code: int | str | None) -> NoReturn:
    """End as Python does, except that what was shared is not taken down, which would copy its pages."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # Nobody reads it: let Python say so in its own way.
        sys.exit(code)
    if not isinstance(code, int):
        sys.exit(code)
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    # As `python -m timer_service` finds it: not beside this file.
    sys.path.pop(0)
    from timer_client import wire
    from timer_service import bootstrap
    from timer_service.adapters.endpoints import ENDPOINTS
    from timer_service.adapters.http import server
    from timer_service.cli import main
    from timer_service.testing import virtual
    from timer_service.wiring import page, rest_api

    assert all((bootstrap, page, rest_api, server, virtual))  # Every command has what it needs.
    for endpoint in ENDPOINTS:  # A service describes them at its start, and that takes longest.
        wire.json_schema(endpoint.request)
        wire.answer_schema(endpoint.answer)
    # What was loaded stays to the end: no process looks for garbage in it, which would copy its pages.
    gc.freeze()
    sys.argv = _serve(sys.argv[1])
    try:
        ended: int | str | None = main()
    except SystemExit as ending:
        ended = ending.code
    _end(ended)
