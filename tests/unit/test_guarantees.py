"""The page on guarantees tells what the commands have counted, and names what there is."""

import re
from pathlib import Path

import pytest

from tests.support import guarantees
from tests.support.documents import ROOT, code_words, read, table
from tests.support.guarantees import load, record, render, shown

TARGETS = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))


def test_the_counts_on_the_page_are_those_that_the_commands_have_kept() -> None:
    assert shown(read("docs/guarantees.md")) == render(load())


def test_every_count_is_that_of_a_command() -> None:
    assert {command.split()[1] for command in load()} <= TARGETS


def test_every_promise_is_tested_by_something_that_exists() -> None:
    cells = [row["tested by"] for row in table("docs/guarantees.md", "promise")]

    targets = {word.split()[1] for cell in cells for word in code_words(cell) if word.startswith("make ")}
    files = {name for cell in cells for name in re.findall(r"tests/\S+\.py", cell)}
    assert targets <= TARGETS
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_a_recorded_count_replaces_the_one_before_and_leaves_the_rest_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, counts = tmp_path / "page.md", tmp_path / "counts.json"
    page.write_text(f"before\n{guarantees.BEGIN}{guarantees.END}after\n")
    monkeypatch.setattr(guarantees, "PAGE", page)
    monkeypatch.setattr(guarantees, "COUNTS", counts)

    record("make simulate SEEDS=1", {"seeds": 1})
    record("make simulate SEEDS=1", {"seeds": 2_000})

    text = page.read_text()
    assert shown(text) == render(load())
    assert (text.startswith("before\n"), text.endswith("after\n")) == (True, True)
    assert "| seeds | 2,000 |" in text
