"""`timer-service dev` on a virtual clock and with hostile delivery, and that no real start has either."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.documents import marked_blocks, read, table
from tests.support.ports import free_port
from tests.support.process import end_cli, run_cli, start_cli
from timer_service.testing.walk import SETTLE_TIMEOUT_S

TESTING = "docs/testing.md"


@contextmanager
def dev(folder: Path, *arguments: str) -> Iterator[str]:
    """Run `timer-service dev` and yield the address of its broker."""
    process = start_cli("dev", "--port", str(free_port()), *arguments, cwd=folder, http_port=0)
    try:
        assert process.stdout is not None
        greeting = "".join(process.stdout.readline() for _ in range(6))
        found = re.search(r"broker +(nats://\S+)", greeting)
        assert found, greeting
        yield found[1]
    finally:
        end_cli(process)


def _type(line: str, folder: Path, url: str) -> "subprocess.CompletedProcess[str]":
    program, *arguments = shlex.split(line)
    assert program == "timer-service"
    finished = run_cli(*arguments, cwd=folder, broker_url=url)
    for _ in range(100):
        if "no timer-service" not in finished.stderr and "has no stream" not in finished.stderr:
            break
        finished = run_cli(*arguments, cwd=folder, broker_url=url)
    return finished


def test_the_commands_of_the_page_let_three_days_pass(tmp_path: Path) -> None:
    [start] = marked_blocks(TESTING)["example: dev"].splitlines()
    lines = marked_blocks(TESTING)["example: three days"].splitlines()

    with dev(tmp_path, *shlex.split(start)[2:]) as url:
        outputs = [_type(line, tmp_path, url) for line in lines]

    assert [each.returncode for each in outputs] == [0, 0, 0, 0], outputs
    assert [each.stdout for each in outputs[1:3]] == [
        "2030-01-01T00:00:00.000Z\n",
        "it is 2030-01-04T00:00:00.000Z; events published: 1\n",
    ]
    assert "reachedAt      2030-01-04T00:00:00.000Z" in outputs[3].stdout
    assert list(tmp_path.iterdir()) == []


def test_every_way_to_move_time_that_the_page_lists_works(tmp_path: Path) -> None:
    lines = [row["command"].strip("`") for row in table(TESTING, "command")]

    with dev(tmp_path, "--clock", "virtual", "--start-at", "2030-01-01T00:00:00Z") as url:
        outputs = [_type(f"{line} --json", tmp_path, url) for line in lines]

    assert [json.loads(each.stdout)["now"] for each in outputs] == [
        "2030-01-04T00:00:00.000Z",
        "2030-02-01T00:00:00.000Z",
        "2030-02-01T00:00:00.000Z",
    ]


def test_a_folder_that_was_named_is_kept(tmp_path: Path) -> None:
    arguments = ("--clock", "virtual", "--start-at", "2030-01-01T00:00:00Z", "--dir", "kept")

    with dev(tmp_path, *arguments) as url:
        _type("timer-service schedule --tenant acme --id one --at 2030-01-02T00:00:00Z", tmp_path, url)
        _type("timer-service clock advance 1h", tmp_path, url)
    with dev(tmp_path, *arguments) as url:
        moved = _type("timer-service clock advance --next", tmp_path, url)

    assert moved.stdout == "it is 2030-01-02T00:00:00.000Z; events published: 1\n"


def test_hostile_delivery_is_said_and_done(tmp_path: Path) -> None:
    with dev(tmp_path, "--clock", "virtual", "--start-at", "2030-01-01T00:00:00Z", "--hostile") as url:
        _type("timer-service schedule --tenant acme --id one --at 2030-01-02T00:00:00Z", tmp_path, url)
        moved = _type("timer-service clock advance --next --json", tmp_path, url)

    assert json.loads(moved.stdout)["published"] >= 2


def test_no_real_start_takes_a_virtual_clock(tmp_path: Path) -> None:
    for options in (["--clock", "virtual"], ["--hostile"], ["--start-at", "2030-01-01T00:00:00Z"]):
        refused = run_cli("run", *options, cwd=tmp_path)

        assert refused.returncode == 2
        assert f"unrecognized arguments: {' '.join(options)}" in refused.stderr


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    start = run_cli("dev", "--start-at", "2030-01-01T00:00:00Z", cwd=tmp_path)
    naive = run_cli("dev", "--clock", "virtual", "--start-at", "2030-01-01", cwd=tmp_path)
    many = run_cli("clock", "advance", "3d", "--next", cwd=tmp_path)

    assert (start.returncode, naive.returncode, many.returncode) == (2, 2, 2)
    assert "--start-at needs --clock virtual" in start.stderr
    assert "--start-at: must be" in naive.stderr
    assert "say how far: a span such as 3d, --to TIME or --next" in many.stderr


def test_the_page_names_the_limit_that_holds() -> None:
    assert f"gives up after {SETTLE_TIMEOUT_S:g} s without progress" in read(TESTING)
