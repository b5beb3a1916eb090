"""The programs of docs/client.md, run as they stand there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.documents import marked_blocks
from tests.support.patience import PATIENCE_S
from tests.support.world import World

CLIENT = "docs/client.md"
ENDING = {
    "schedule": "scheduled cancelled Cancelled\n",
    "once": "[('order-42',)]\n",
    "plain": "order-42 is due\n",
}
"""What the programs print that end by themselves."""
LASTING = ("consume", "faststream")
"""Those that go on until they are told to end."""


def test_no_program_of_the_page_is_left_out() -> None:
    names = {name.removeprefix("snippet: ") for name in marked_blocks(CLIENT) if name.startswith("snippet: ")}

    assert names == {*ENDING, *LASTING}


@pytest.mark.parametrize("name", ENDING)
async def test_a_program_that_ends_prints_what_it_did(world: World, name: str) -> None:
    world.service().start_ready()

    with _running(world, name) as program:
        output, errors = program.communicate(timeout=PATIENCE_S)

    assert (program.returncode, output) == (0, ENDING[name]), errors


@pytest.mark.parametrize("name", LASTING)
async def test_a_program_that_lasts_handles_its_firing_and_acknowledges_it(world: World, name: str) -> None:
    world.service().start_ready()

    with _running(world, name) as program:
        assert program.stdout is not None
        first = next((line for line in program.stdout if line.startswith("order-42")), "")

        async def acknowledged() -> bool:
            info = await world.jetstream.consumer_info("TIMER_EVENTS", "acme-billing")
            return info.ack_floor is not None and info.ack_floor.stream_seq == 1

        await world.until(acknowledged, "the firing to be acknowledged")
        program.terminate()
        program.communicate(timeout=PATIENCE_S)

    assert first == "order-42 is due\n"
    if name == "consume":
        assert program.returncode == 0


@contextmanager
def _running(world: World, name: str) -> Iterator["subprocess.Popen[str]"]:
    program = world.folder / "program.py"
    program.write_text(marked_blocks(CLIENT)[f"snippet: {name}"])
    process = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=world.folder,
        env={**os.environ, "NATS_URL": world.broker.url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
