"""One nats-server for all processes of a test run: the first starts it, and it ends after the last.

Each process that uses it holds a shared lock on a file, which the system gives back whatever becomes of the
process. A small program of its own, this file as a script, starts the server and stops it once it gets the
lock for itself. It imports nothing but the standard library, so that it starts at once.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

START_TIMEOUT_S: Final = 30.0
"""Only for a server that hangs."""
LOOK_INTERVAL_S: Final = 0.2
_USERS: Final = "users.lock"
_ADDRESS: Final = "address"


class BrokerNotStarted(Exception):
    """The nats-server of the tests cannot be started."""


@contextmanager
def shared_broker(folder: Path, nats_server: str) -> Iterator[str]:
    """Use the server of this folder, started if need be; yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _USERS).open("w") as users:
        # Waits while the server of an earlier run of the same folder ends.
        fcntl.flock(users, fcntl.LOCK_SH)
        with (folder / "start.lock").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not (folder / _ADDRESS).exists():
                _start(folder, nats_server)
            address = (folder / _ADDRESS).read_text("utf-8")
        yield address


def _start(folder: Path, nats_server: str) -> None:
    (folder / "ended").unlink(missing_ok=True)
    script = [sys.executable, "-S", "-E", __file__, str(folder), nats_server]
    subprocess.run(script, check=True, stdin=subprocess.DEVNULL)  # noqa: S603 - our own file
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (folder / _ADDRESS).exists():
        if time.monotonic() > deadline or (folder / "ended").exists():
            raise BrokerNotStarted(f"nats-server did not start: see {folder / 'nats-server.log'}")
        time.sleep(0.005)


def _supervise(folder: Path, nats_server: str) -> None:
    """Run the server until nobody uses it."""
    command = [nats_server, "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(folder)]
    command += ["--jetstream", "--store_dir", str(folder / "data"), "--log", str(folder / "nats-server.log")]
    server = subprocess.Popen(  # noqa: S603 - as the kit has found it
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ports = folder / f"nats-server_{server.pid}.ports"
    try:
        while server.poll() is None and not _announce(ports, folder):
            time.sleep(0.005)
        with (folder / _USERS).open("w") as users:
            while server.poll() is None and not _is_last(users.fileno()):
                time.sleep(LOOK_INTERVAL_S)
            (folder / _ADDRESS).unlink(missing_ok=True)
            server.terminate()
            server.wait()
    finally:
        with suppress(FileNotFoundError):  # Its user may have removed the folder by now.
            (folder / "ended").touch()


def _announce(ports: Path, folder: Path) -> bool:
    try:
        [address] = json.loads(ports.read_text("utf-8"))["nats"]
    except (OSError, ValueError):
        return False  # Not written yet, or not to the end.
    fresh = folder / "address.new"
    fresh.write_text(address, "utf-8")
    fresh.rename(folder / _ADDRESS)
    return True


def _is_last(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    # Our starter does not wait for us, nor do its signals reach us.
    if os.fork() == 0:
        os.setsid()
        _supervise(Path(sys.argv[1]), sys.argv[2])
