"""Dead letters as operators read them: the service's own, and whatever else lies in the stream."""

import json
from typing import Any

import pytest

from tests.support.timers import at
from timer_client import wire

WRITTEN = {
    "reason": "not_json",
    "detail": "the body must be JSON",
    "subject": "timer.commands.acme.CancelTimer",
    "stream": "TIMER_COMMANDS",
    "sequence": 7,
    "receivedAt": "2026-01-01T12:00:00.000Z",
    "body": "[]",
    "bodyEncoding": "utf-8",
}


def read(letter: Any) -> dict[str, Any]:
    body = letter if isinstance(letter, bytes) else json.dumps(letter).encode()
    return wire.read_letter(3, at(0), "timer.deadletter.acme", body)


def test_what_is_written_is_read_with_its_number() -> None:
    written = wire.write_letter(
        reason="not_json",
        detail="the body must be JSON",
        subject="timer.commands.acme.CancelTimer",
        stream="TIMER_COMMANDS",
        sequence=7,
        received_at=at(0),
        body=b"[]",
        max_bytes=1_000_000,
    )

    assert read(written) == {"letter": 3, **WRITTEN}


def test_the_number_is_the_stream_s_whatever_the_letter_says() -> None:
    assert read({**WRITTEN, "letter": 99})["letter"] == 3


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"stream":"TIMER_EVENTS","seq":1}', '{"stream":"TIMER_EVENTS","seq":1}'),
        (json.dumps({**WRITTEN, "reason": 1}).encode(), json.dumps({**WRITTEN, "reason": 1})),
        (b"[]", "[]"),
        (b"\xff{", "\\xff{"),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_what_is_not_a_letter_is_shown_as_such(body: bytes, shown: str) -> None:
    assert read(body) == {
        "letter": 3,
        "notALetter": True,
        "storedOn": "timer.deadletter.acme",
        "storedAt": "2026-01-01T12:00:00.000Z",
        "body": shown,
    }


def test_when_it_was_stored_may_not_be_known() -> None:
    assert wire.read_letter(3, None, "timer.deadletter.acme", b"")["storedAt"] == ""
