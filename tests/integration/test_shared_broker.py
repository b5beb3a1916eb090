"""One nats-server for a whole test run: there as long as somebody uses it, and gone afterwards."""

import asyncio
import fcntl
import runpy
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.broker import nats_server_binary
from tests.support.lines import until
from timer_service.testing import shared_broker as module

NOT_A_SERVER = "/bin/false"


async def test_the_server_ends_after_its_last_user(tmp_path: Path) -> None:
    """In this process, where a debugger and coverage can follow it; otherwise it is one of its own."""
    supervise = runpy.run_path(str(module.__file__))["_supervise"]
    address = tmp_path / "address"

    async def is_announced() -> bool:
        return address.exists()

    with (tmp_path / "users.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        supervising = asyncio.ensure_future(asyncio.to_thread(supervise, tmp_path, nats_server_binary()))
        await until(is_announced, "the server's address")
        place = urlsplit(address.read_text("utf-8"))
        assert place.hostname is not None
        with socket.create_connection((place.hostname, place.port)) as used:
            assert used.recv(4) == b"INFO"
        assert not supervising.done()
    await supervising

    assert not address.exists()
    assert (tmp_path / "ended").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.hostname, place.port))


def test_a_server_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    told = pytest.raises(module.BrokerNotStarted, match="nats-server did not start: see ")
    with told, module.shared_broker(tmp_path, NOT_A_SERVER):
        pass
