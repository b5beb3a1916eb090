"""docs/asyncapi.yaml and docs/schemas say what the code does; `make docs` writes them."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from tests.support import typescript
from tests.support.asyncapi import ASYNCAPI, PAYLOADS, SCHEMAS, files
from tests.support.documents import ROOT, code_words, marked_blocks, read, table
from tests.support.schemas import complaints
from timer_client import wire

FILES = files()
TOLERATED = ("null means absent", "unknown fields are ignored")
"""What the service reads and nobody should write."""


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILES[f"{SCHEMAS}/{name}.json"])
    return found


def vectors(name: str) -> Any:
    return json.loads(read(f"docs/vectors/{name}.json"))


@pytest.mark.parametrize("path", FILES)
def test_the_file_is_what_make_docs_writes(path: str) -> None:
    assert read(path) == FILES[path]


def test_the_types_of_the_typescript_client_are_what_make_docs_writes() -> None:
    assert read(typescript.TYPES) == typescript.written()


def test_there_is_no_schema_that_make_docs_does_not_write() -> None:
    assert {str(path.relative_to(ROOT)) for path in (ROOT / SCHEMAS).iterdir()} == FILES.keys() - {ASYNCAPI}


def test_every_reference_leads_somewhere() -> None:
    document = yaml.safe_load(FILES[ASYNCAPI])
    broken = []

    for target in re.findall(r"\$ref: '?([^'\n]+)", FILES[ASYNCAPI]):
        path, _, inside = target.partition("#/")
        found: Any = {} if f"docs/{path}" in FILES else document
        for step in inside.split("/") if inside else ():
            found = found.get(step, {})
        if (path and f"docs/{path}" not in FILES) or (inside and not found):
            broken.append(target)

    assert broken == []


def test_every_subject_of_the_pages_has_a_channel() -> None:
    channels = yaml.safe_load(FILES[ASYNCAPI])["channels"].values()
    subjects = [code_words(row["subject"])[0] for row in table("docs/messages.md", "subject")]
    subjects += [code_words(row["subject"])[0] for row in table("docs/api.md", "endpoint")]

    addresses = {channel["address"] for channel in channels if channel["address"]}

    assert {subject.replace("<tenantId>", "{tenantId}") for subject in subjects} == addresses


def test_every_event_of_the_vectors_fits_its_schema() -> None:
    events = [case["envelope"] for case in vectors("events")]

    assert [complaints(event, schema(event["type"])) for event in events] == [[]] * len(events)


def test_every_command_that_is_accepted_fits_its_schema() -> None:
    cases = [case for case in vectors("commands")["accepted"] if case["name"] not in TOLERATED]
    bodies = [json.loads(case["body"]) for case in cases]
    for body in bodies:
        body.pop("more", None)

    assert [complaints(body, schema(body["type"])) for body in bodies] == [[]] * len(bodies)


def test_a_command_that_lacks_something_or_has_two_due_times_does_not_fit() -> None:
    cases = vectors("commands")["refused"]
    lacking = [
        json.loads(case["body"]) for case in cases if re.match("no |a due time and a delay", case["name"])
    ]

    assert len(lacking) == 9
    assert all(complaints(body, schema("ScheduleTimer")) for body in lacking)


def test_a_dead_letter_fits_its_schema() -> None:
    letters = [
        wire.write_letter(
            reason="not_json",
            detail="the body must be JSON in UTF-8",
            subject="timer.commands.acme.ScheduleTimer",
            stream="TIMER_COMMANDS",
            sequence=7,
            received_at=datetime(2026, 12, 1, tzinfo=UTC),
            body=body,
            max_bytes=1_000_000,
        )
        for body in (b"{", b"\xff", b"{" * 100_000)
    ]

    assert [complaints(json.loads(letter), schema("DeadLetter")) for letter in letters] == [[], [], []]


@pytest.mark.parametrize("endpoint", ["schedule", "get", "cancel", "list"])
def test_the_examples_of_the_api_fit_their_schemas(endpoint: str) -> None:
    blocks = marked_blocks("docs/api.md")
    request, answer = (
        json.loads(blocks[f"{kind}: timer.api.acme.{endpoint}"]) for kind in ("request", "answer")
    )
    asked = "GetRequest" if endpoint == "cancel" else f"{endpoint.title()}Request"

    assert complaints(request, schema(asked)) == []
    assert complaints(answer, schema(f"{endpoint.title()}Answer")) == []


def test_every_type_of_message_has_a_schema() -> None:
    assert set(PAYLOADS) == {*wire.COMMAND_TYPES, *wire.EVENT_TYPES}
