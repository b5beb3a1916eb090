"""A cursor comes back from a stranger: it is one of ours, or it is refused."""

import base64
from datetime import UTC, datetime

import pytest

from timer_client import wire
from timer_service.adapters.cursor import read_cursor, write_cursor

DUE = datetime(2026, 1, 1, tzinfo=UTC)


def encoded(text: str | bytes) -> str:
    return base64.urlsafe_b64encode(text if isinstance(text, bytes) else text.encode()).decode()


@pytest.mark.parametrize(
    ("due_at", "name"),
    [
        (DUE, "order-1"),
        (datetime(1, 1, 1, tzinfo=UTC), "x"),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), "\U0010ffff" * 255),
    ],
)
def test_our_own_cursor_leads_back_to_its_timer(due_at: datetime, name: str) -> None:
    cursor = write_cursor(due_at, name)

    assert read_cursor(cursor) == (due_at, name)
    assert len(cursor) <= wire.MAX_CURSOR


HOSTILE = {
    "nothing": "",
    "plain text": "order-42",
    "a NUL in the id": encoded("2026-01-01T00:00:00.000Z a\0b"),
    "no id": encoded("2026-01-01T00:00:00.000Z "),
    "only a time": encoded("2026-01-01T00:00:00.000Z"),
    "whitespace in the id": encoded("2026-01-01T00:00:00.000Z a b"),
    "a control character": encoded("2026-01-01T00:00:00.000Z a\x1bb"),
    "an id that is too long": encoded("2026-01-01T00:00:00.000Z " + "a" * 256),
    "a lone surrogate": encoded(b"2026-01-01T00:00:00.000Z \xed\xa0\x80"),
    "bytes that are not UTF-8": encoded(b"2026-01-01T00:00:00.000Z \xff"),
    "a time without a zone": encoded("2026-01-01T00:00:00.000 a"),
    "a time in another form": encoded("2026-01-01T00:00:00Z a"),
    "an offset": encoded("2026-01-01T00:00:00.000+01:00 a"),
    "a year out of range": encoded("0000-01-01T00:00:00.000Z a"),
    "a year after the last": encoded("9999-12-31T23:59:59.999-01:00 a"),
    "no padding": write_cursor(DUE, "ab").rstrip("=") if write_cursor(DUE, "ab").endswith("=") else "ab",
    "more padding": write_cursor(DUE, "order-1") + "====",
    "characters that decoders skip": write_cursor(DUE, "order-1") + "\n",
    "the other alphabet": base64.b64encode(b"2026-01-01T00:00:00.000Z ???>>>").decode(),
    "bits that nobody reads": write_cursor(DUE, "order-12")[:-2] + "z=",
    "a letter that is not ASCII": write_cursor(DUE, "order-1") + "é",
    "a surrogate outside": "\ud800",
    "a megabyte": "A" * 1_000_000,
}


@pytest.mark.parametrize("cursor", HOSTILE.values(), ids=HOSTILE.keys())
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(wire.WireError, match="cursor: must be the cursor of the page before"):
        read_cursor(cursor)
