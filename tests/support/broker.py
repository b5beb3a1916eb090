"""A real nats-server for tests, which can be stopped, killed and started again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path

READY_TIMEOUT_S = 10.0


def nats_server_binary() -> str:
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    assert found, "nats-server is missing: make install brings it"
    return found


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """One nats-server process with JetStream on; its port and data survive a restart."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "NatsServer":
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: '{self.folder / 'data'}' }}\n"
            f"log_file: '{self.folder / 'nats-server.log'}'\n{self._config}\n"
        )
        self._process = subprocess.Popen([nats_server_binary(), "-c", str(config)], stdin=subprocess.DEVNULL)
        self._wait_until_ready()
        return self

    def reconfigure(self, config: str) -> None:
        """Write another configuration; it counts from the next start or reload."""
        self._config = config

    def reload(self) -> None:
        """Load the configuration again without a restart."""
        config = self.folder / "nats.conf"
        lines = config.read_text().splitlines()[:3]
        config.write_text("\n".join([*lines, self._config, ""]))
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End it in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with kill -9."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(timeout=10)
            self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                if link.recv(4) == b"INFO":
                    return
            time.sleep(0.01)
        raise AssertionError(f"nats-server did not start: see {self.folder / 'nats-server.log'}")
