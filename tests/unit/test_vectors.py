"""The cases of docs/vectors, which every implementation must pass: our own, and those in other languages."""

import base64
import json
import re
import shutil
import subprocess
from datetime import datetime
from typing import Any

import pytest

from tests.support.documents import ROOT, read
from timer_client import wire
from timer_client.subjects import Subjects
from timer_service.adapters import codec
from timer_service.domain.errors import CommandRefused
from timer_service.domain.messages import (
    Command,
    CorrelationId,
    DueTimeReached,
    Event,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
    TimerExpired,
    epoch_ms,
)

EVENTS: dict[str, type[DueTimeReached | TimerExpired]] = {
    "DueTimeReached": DueTimeReached,
    "TimerExpired": TimerExpired,
}


def vectors(name: str) -> Any:
    return json.loads(read(f"docs/vectors/{name}.json"))


def named(name: str, kind: str) -> list[Any]:
    return [pytest.param(case, id=case.get("name", case.get("sent"))) for case in vectors(name)[kind]]


def decoded(case: dict[str, Any]) -> Command:
    body = base64.b64decode(case["bodyBase64"]) if "bodyBase64" in case else case["body"].encode()
    stored = datetime.fromisoformat(case.get("storedAt", "2025-06-02T07:25:00.000Z"))
    stored_us = epoch_ms(stored) * 1_000 + stored.microsecond % 1_000
    place = Position(1, 7, stored_us)
    return codec.decode_command(
        Subjects("timer"), case["subject"], body.ljust(case.get("padTo", 0)), place, None
    )


def meaning(command: Command) -> dict[str, Any]:
    """Return what a command means, in the words of the vectors: what is not asked for is absent."""
    found: dict[str, Any] = {
        "type": type(command).__name__,
        "tenantId": command.tenant_id,
        "serviceCallId": command.service_call_id,
    }
    if isinstance(command, ScheduleTimer):
        found |= {"dueAt": wire.format_time(command.due_at), "correlationId": command.correlation_id}
        found |= {"ifAbsent": command.if_absent or None, "expiresAfterMs": command.expires_after_ms}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize("case", vectors("ids"))
def test_a_firing_has_the_id_of_the_vectors(case: dict[str, Any]) -> None:
    due_at = wire.parse_time(case["dueAt"])
    key = TenantId(case["tenantId"]), ServiceCallId(case["serviceCallId"])

    event = EVENTS[case["type"]](*key, due_at, due_at, case["generation"], None)

    assert str(event.id) == case["id"]


@pytest.mark.parametrize("case", named("times", "accepted"))
def test_a_time_is_kept_as_the_vectors_have_it(case: dict[str, Any]) -> None:
    assert wire.format_time(wire.parse_time(case["sent"])) == case["kept"]


@pytest.mark.parametrize("case", named("times", "refused"))
def test_a_time_that_the_vectors_refuse_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be an ISO 8601 date and time"):
        wire.parse_time(case["sent"])


@pytest.mark.parametrize("case", named("commands", "accepted"))
def test_a_command_means_what_the_vectors_say(case: dict[str, Any]) -> None:
    assert meaning(decoded(case)) == case["means"]


@pytest.mark.parametrize("case", named("commands", "refused"))
def test_a_command_is_refused_for_the_reason_of_the_vectors(case: dict[str, Any]) -> None:
    with pytest.raises(CommandRefused) as caught:
        decoded(case)

    assert caught.value.reason.value == case["reason"]
    assert re.match(rf"{re.escape(case['names'])}(?![\w.])", caught.value.detail)


@pytest.mark.parametrize("case", vectors("events"))
def test_an_event_is_written_as_the_vectors_have_it(case: dict[str, Any]) -> None:
    written, payload = case["envelope"], case["envelope"]["payload"]
    at = payload["reachedAt" if written["type"] == "DueTimeReached" else "expiredAt"]
    correlation = written.get("correlationId")
    event: Event = EVENTS[written["type"]](
        TenantId(payload["tenantId"]),
        ServiceCallId(payload["serviceCallId"]),
        wire.parse_time(payload["dueAt"]),
        wire.parse_time(at),
        payload["generation"],
        correlation and CorrelationId(correlation),
    )

    assert json.loads(codec.encode_event(event, event.id_text)) == written
    assert Subjects("timer").event(event.tenant_id, written["type"]) == case["subject"]


def elsewhere(program: str, *command: str, **marks: Any) -> Any:
    """An implementation in another language, run where its program is installed."""
    missing = pytest.mark.skipif(
        shutil.which(program) is None, reason=f"{program} is not installed: {command[-1]} was not run"
    )
    return pytest.param(command, id=program, marks=[missing, *marks.values()])


@pytest.mark.parametrize(
    "command",
    [
        elsewhere("node", "node", "docs/vectors/check.mjs"),
        # They take seconds to be compiled: part of `make test-clients`.
        elsewhere("javac", "java", "docs/vectors/Check.java", marks=pytest.mark.clients),
        elsewhere("go", "go", "run", "docs/vectors/check.go", marks=pytest.mark.clients),
    ],
)
def test_an_implementation_in_another_language_passes_every_vector(command: tuple[str, ...]) -> None:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    commands, times = vectors("commands"), vectors("times")
    cases = [
        *(vectors("ids") + vectors("events")),
        *(commands["accepted"] + commands["refused"] + times["accepted"] + times["refused"]),
    ]

    assert (ran.stdout, ran.stderr, ran.returncode) == (f"{len(cases)} of {len(cases)} passed\n", "", 0)
