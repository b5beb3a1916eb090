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

from nats.aio.client import Client

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

SHIPPED_PERMISSIONS = Path(__file__).parents[2] / "deploy" / "nats" / "roles.conf"
SERVICE_LOGIN = {
    "broker_user": "service",
    "broker_password": "secret",
    "broker_inbox_prefix": "_INBOX.service",
}


def nats_server_binary() -> str:
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    assert found, "nats-server is missing: make install brings it"
    return found


async def told(client: Client) -> None:
    """Wait until the server has all that a client has said so far, its subscriptions too.

    Twice, because nats-py sends a ping past what it has not yet written.
    """
    await client.flush(timeout=int(PATIENCE_S))
    await client.flush(timeout=int(PATIENCE_S))


class NatsServer:
    """One nats-server process with JetStream on; its port and data survive a restart."""

    def __init__(self, folder: Path, config: str = "", *, guarded: bool = False) -> None:
        """With `guarded`, the service's user has the shipped permissions and no more."""
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.service_login = SERVICE_LOGIN if guarded else {}
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "NatsServer":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_config()
        self._process = subprocess.Popen(
            [nats_server_binary(), "-c", str(self._config_path)], stdin=subprocess.DEVNULL
        )
        self._wait_until_ready()
        return self

    @property
    def _config_path(self) -> Path:
        return self.folder / "nats.conf"

    def _write_config(self) -> None:
        parts = [
            f"listen: 127.0.0.1:{self.port}",
            f"jetstream {{ store_dir: '{self.folder / 'data'}' }}",
            f"log_file: '{self.folder / 'nats-server.log'}'",
            _shipped_permissions(self.folder) if self.service_login else "",
            self._config,
        ]
        self._config_path.write_text("\n".join(parts) + "\n")

    def reconfigure(self, config: str) -> None:
        """Write another configuration; it counts from the next start or reload."""
        self._config = config

    def reload(self) -> None:
        """Load the configuration again without a restart."""
        self._write_config()
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End it in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with kill -9."""
        self._end(signal.SIGKILL)

    def keep_data(self) -> None:
        """Stop, keep a copy of everything that is stored, and start again."""
        self.stop()
        shutil.copytree(self.folder / "data", self.folder / "kept")
        self.start()

    def lose_tail(self) -> None:
        """Come back as at the last `keep_data`, as after a power cut."""
        self.kill()
        shutil.rmtree(self.folder / "data")
        shutil.copytree(self.folder / "kept", self.folder / "data")
        self.start()

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
            self._process.wait(PATIENCE_S)
            self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                if link.recv(4) == b"INFO":
                    return
            assert self._process is not None
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"nats-server did not start: see {self.folder / 'nats-server.log'}")


def _shipped_permissions(folder: Path) -> str:
    """Give the service what it is shipped with; who does not log in is the test and may do everything."""
    page = SHIPPED_PERMISSIONS.with_name("page.conf")
    return f"""include '{os.path.relpath(SHIPPED_PERMISSIONS, folder)}'
        PLAIN_PERMISSIONS: $SERVICE_PERMISSIONS
        include '{os.path.relpath(page, folder)}'
        no_auth_user: test
        authorization {{ users: [
          {{ user: service, password: secret, permissions: $PLAIN_PERMISSIONS }}
          {{ user: page, password: secret, permissions: $SERVICE_PERMISSIONS }}
          {{ user: operator, password: secret, permissions: $OPERATOR_PERMISSIONS }}
          {{ user: monitor, password: secret, permissions: $MONITOR_PERMISSIONS }}
          {{ user: test, password: secret }}
        ] }}"""
