"""What docs/api.md shows is what the API answers."""

import json
import os
import re
import subprocess
import sys
from typing import Any

from tests.support.documents import code_words, marked_blocks, read, table
from tests.support.patience import PATIENCE_S
from tests.support.world import World
from timer_service.domain.timer import Outcome

DOCUMENT = "docs/api.md"
MOMENTS = ("at", "registeredAt", "cancelledAt")
"""Fields that differ from run to run."""


async def test_each_request_is_answered_as_shown(world: World) -> None:
    world.service(http_port=0, broker_user="page").start_ready()
    blocks = marked_blocks(DOCUMENT)
    subjects = [name.removeprefix("request: ") for name in blocks if name.startswith("request: ")]

    answers = {}
    for subject in subjects:
        answer = await world.client.request(
            subject, blocks[f"request: {subject}"].encode(), timeout=PATIENCE_S
        )
        answers[subject] = json.loads(answer.data)

    shown = {subject: json.loads(blocks[f"answer: {subject}"]) for subject in subjects}
    assert list(map(_without_moments, answers.values())) == list(map(_without_moments, shown.values()))
    assert subjects == [f"timer.api.acme.{name}" for name in ("schedule", "get", "cancel", "explain", "list")]


async def test_each_error_has_the_headers_that_are_shown(world: World) -> None:
    world.service(http_port=0).start_ready()
    shown = {
        name.removeprefix("error: "): dict(line.split(": ", 1) for line in block.splitlines())
        for name, block in marked_blocks(DOCUMENT).items()
        if name.startswith("error: ")
    }

    answers = {}
    for call in shown:
        subject, _, body = call.partition(" ")
        answer = await world.client.request(subject, body.encode(), timeout=PATIENCE_S)
        answers[call] = (answer.data, answer.headers)

    assert answers == {call: (b"", headers) for call, headers in shown.items()}
    assert len(answers) == 4


async def test_the_status_has_the_fields_that_are_listed(world: World) -> None:
    world.service(http_port=0).start_ready()
    section = read(DOCUMENT).partition("## status")[2].partition("## ")[0]
    listed = [word for line in section.splitlines() if line.startswith("| `") for word in _first_words(line)]

    # What is not known is absent: so let one timer have fired, and one lie ahead.
    await world.schedule("acme", "past", "2020-01-01T00:00:00Z")
    await world.schedule("acme", "ahead", "2999-01-01T00:00:00Z")
    await world.wait_for_row("acme", "past", state="Reached")
    await world.wait_for_row("acme", "ahead", state="Scheduled")

    answer = await world.client.request("timer.status", b"", timeout=PATIENCE_S)

    assert listed == list(json.loads(answer.data))


async def test_discovery_shows_the_endpoints_that_are_listed(world: World) -> None:
    world.service(http_port=0).start_ready()
    rows = [(row["endpoint"], row["subject"]) for row in table(DOCUMENT, "endpoint")]
    listed = {
        code_words(name)[0]: code_words(subject)[0].replace("<tenantId>", "*") for name, subject in rows
    }

    answer = await world.client.request("$SRV.INFO.timer", b"", timeout=PATIENCE_S)

    endpoints = json.loads(answer.data)["endpoints"]
    assert {endpoint["name"]: endpoint["subject"] for endpoint in endpoints} == listed


async def test_the_python_program_schedules_a_timer(world: World) -> None:
    world.service(http_port=0).start_ready()
    program = world.folder / "program.py"
    program.write_text(marked_blocks(DOCUMENT)["snippet: python"])

    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "NATS_URL": world.broker.url},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "scheduled\n", "")


def test_every_outcome_that_a_caller_can_see_is_listed() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", read(DOCUMENT), re.MULTILINE)) & {o.value for o in Outcome}
    inside = {Outcome.DUE, Outcome.SUPERSEDED, Outcome.CHANGED}  # The last is told over HTTP only.

    assert listed == {outcome.value for outcome in set(Outcome) - inside}


def _without_moments(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_moments(inner) for name, inner in value.items() if name not in MOMENTS}
    return [_without_moments(inner) for inner in value] if isinstance(value, list) else value


def _first_words(line: str) -> list[str]:
    return code_words(line.split("|")[1])
