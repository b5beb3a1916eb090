"""Dead letters: what was refused and why, written by the service and read by operators."""

import base64
import json
from datetime import datetime
from typing import Any, Final

from timer_client.wire.json import MAX_COMMAND_BYTES, write_json
from timer_client.wire.rules import format_time

MAX_LETTER_BODY_BYTES: Final = MAX_COMMAND_BYTES
"""What is larger than any command need not be kept whole."""
LETTER_FIELDS: Final = ("reason", "detail", "subject", "receivedAt", "body", "bodyEncoding")
"""What every dead letter has, as text."""
_WORST_JSON_GROWTH: Final = 6
_LETTER_OVERHEAD: Final = 16_384


def write_letter(
    *,
    reason: str,
    detail: str,
    subject: str,
    stream: str,
    sequence: int,
    received_at: datetime,
    body: bytes,
    max_bytes: int,
) -> bytes:
    """Return a dead letter of at most `max_bytes`; a body too large for a letter is cut."""
    letter: dict[str, Any] = {
        "reason": reason,
        "detail": detail,
        "subject": subject,
        "stream": stream,
        "sequence": sequence,
        "receivedAt": format_time(received_at),
    }
    if len(body) <= MAX_LETTER_BODY_BYTES:
        whole = write_json({**letter, **_readable(body)})
        if len(whole) <= max_bytes:
            return whole
    room = max(0, max_bytes - _LETTER_OVERHEAD) // _WORST_JSON_GROWTH
    kept = body[: min(room, MAX_LETTER_BODY_BYTES)]
    return write_json({**letter, **_readable(kept, cut=True), "bodyTruncated": True})


def read_letter(number: int, stored_at: datetime | None, subject: str, body: bytes) -> dict[str, Any]:
    """Return a dead letter with its number; whatever else lies in the stream is marked with `notALetter`.

    NATS does not check reply subjects: a tenant can have the broker's acknowledgement stored here.
    """
    try:
        letter = json.loads(body)
    except (ValueError, RecursionError):
        letter = None
    if isinstance(letter, dict) and all(isinstance(letter.get(name), str) for name in LETTER_FIELDS):
        return {"letter": number, **{name: value for name, value in letter.items() if name != "letter"}}
    return {
        "letter": number,
        "notALetter": True,
        "storedOn": subject,
        "storedAt": "" if stored_at is None else format_time(stored_at),
        "body": body.decode("utf-8", "backslashreplace"),
    }


def _readable(body: bytes, *, cut: bool = False) -> dict[str, str]:
    try:
        return {"body": body.decode(), "bodyEncoding": "utf-8"}
    except UnicodeDecodeError as error:
        if cut and len(body) - error.start < 4:  # The cut went through a character.
            return {"body": body[: error.start].decode(), "bodyEncoding": "utf-8"}
        return {"body": base64.b64encode(body).decode(), "bodyEncoding": "base64"}
