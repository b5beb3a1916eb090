"""Text of tenants does nothing to a terminal or a log."""

import json

import pytest

from timer_service.printable import printable, printable_json, printable_lines

HOSTILE = {
    "\x1b[2J": "\\x1b[2J",
    "\x00\x07\r\n\t": "\\x00\\x07\\r\\n\\t",
    "\x7f\x9b31m": "\\x7f\\x9b31m",
    "\u202eevil\u202c": "\\u202eevil\\u202c",
    "\u2066a\u2069": "\\u2066a\\u2069",
    "a\u2028b": "a\\u2028b",
    "a\u200bb\ufeff": "a\\u200bb\\ufeff",
    "\U000e0041": "\\U000e0041",
    "\ud800": "\\ud800",
}
HARMLESS = ["order-42", "[/x]", "order[bold]42[red]", "Zoë", "注文", "👩\u200d🚀", "\\x1b", "a\u00a0b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_steers_a_terminal_is_shown_escaped(text: str) -> None:
    assert printable(text) == HOSTILE[text]


@pytest.mark.parametrize("text", HARMLESS)
def test_all_else_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == printable_lines(text) == text


def test_lines_stay_lines() -> None:
    assert printable_lines("first\n\x1bsecond\r") == "first\n\\x1bsecond\\r"


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("text", [*HOSTILE, *HARMLESS])
def test_json_reads_as_it_was_and_steers_nothing(text: str, indent: int | None) -> None:
    shown = printable_json({"id": [text, 1]}, indent=indent)

    assert json.loads(shown) == {"id": [text, 1]}
    assert printable_lines(shown) == shown
    assert len(shown.splitlines()) == (1 if indent is None else 6)
