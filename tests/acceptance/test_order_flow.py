"""The example of durable functions, and the program of its page, on the real service and in real time."""

import asyncio
import os
import subprocess
import sys

import nats
import pytest

from tests.support.documents import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.world import World
from tests.unit.test_flows_page import written

EXAMPLE = ROOT / "examples" / "order_flow.py"


def start(world: World, *arguments: str, seconds: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=world.folder,
        env={**os.environ, "NATS_URL": world.broker.url, "SECONDS": seconds},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_an_order_goes_on_in_another_process_after_kill_9(world: World) -> None:
    world.service().start_ready()
    with start(world, "order-42", "--large", seconds="1") as first:
        assert first.stdout is not None
        said = [first.stdout.readline(), first.stdout.readline()]
        first.kill()
    with start(world, "order-42", "--large", seconds="1") as second:
        output, _ = second.communicate(timeout=PATIENCE_S)

    assert sorted(said) == ["charged order-42\n", "started order-42\n"]
    assert output.splitlines()[0] == "continues order-42"
    assert output.splitlines()[-1] == "order-42 refunded"
    assert second.returncode == 0


async def test_the_program_of_the_page_works_until_it_is_told_to_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    world.service().start_ready()
    stop = asyncio.Event()
    stop.set()

    async with await nats.connect(world.broker.url) as connection:
        await written("program")(connection, stop)
