"""docs/events.md lists exactly the events that the code logs."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.documents import ROOT, code_words, table
from timer_service.domain.timer import Outcome

CATALOGUE = "docs/events.md"
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
SPREAD = {
    "commands.applied": {outcome.value for outcome in Outcome},
    "callbacks.attempted": {"delivered", "waiting", "failed"},
}
"""The fields of events whose call spreads a dictionary."""
VALUES = {"rejected", "unanswered", "stream_refused", "StoreBusy", "StoreFull"}
"""Words in the column of fields that are values of a field."""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One event: its name, its level and its fields."""

    name: str
    level: str
    fields: frozenset[str]


def test_the_catalogue_lists_every_event_with_its_level_and_fields() -> None:
    logged = set(_logged_events())
    listed = set(_listed_events())

    assert listed == logged


def test_an_event_has_one_row_and_one_meaning() -> None:
    names = [event.name for event in _listed_events()]

    assert names == list(dict.fromkeys(names))


def test_an_event_is_named_by_a_noun_and_a_word_in_lower_case() -> None:
    odd = [event.name for event in _logged_events() if not _is_noun_and_verb(event.name)]

    assert odd == []


def _logged_events() -> Iterator[Event]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and _is_log_call(node.func):
                yield _event(node)


def _is_log_call(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("log", "logger")
        and function.attr in LEVELS
    )


def _event(call: ast.Call) -> Event:
    assert isinstance(call.func, ast.Attribute)
    name = ast.literal_eval(call.args[0])  # Fails where the name is no constant.
    fields = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    if any(keyword.arg is None for keyword in call.keywords):
        fields |= SPREAD[name]
    return Event(name, call.func.attr, frozenset(fields))


def _listed_events() -> Iterator[Event]:
    for row in table(CATALOGUE, "event"):
        [name] = code_words(row["event"])
        yield Event(name, row["level"], frozenset(code_words(row["fields"])) - VALUES)


def _is_noun_and_verb(name: str) -> bool:
    noun, dot, verb = name.partition(".")
    return bool(dot) and all(part.isidentifier() and part.islower() for part in (noun, verb))
