"""The page on guarantees tells what the commands have counted, and names what there is."""

import json
import re
from pathlib import Path

import pytest

from tests.support.documents import ROOT, code_words, read, table
from tests.support.guarantees import (
    AIMED,
    ASKED,
    BEGIN,
    END,
    PAGE,
    RUN_AGAIN,
    asked_of,
    check_coverage,
    exceeded,
    load,
    record,
    render,
    shortfalls,
    shown,
    too_small,
)

TARGETS = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


def test_the_counts_on_the_page_are_those_that_the_commands_have_kept() -> None:
    assert shown(read("docs/guarantees.md")) == render(load())


def test_every_count_is_that_of_a_command() -> None:
    assert {command.split()[1] for command in load()} <= TARGETS


def test_no_count_is_more_than_it_may_be() -> None:
    assert [line for command, run in load().items() for line in exceeded(command, run["counts"])] == []


def test_every_count_that_falls_short_is_named_as_one_to_be_made_again() -> None:
    assert too_small(load()) == RUN_AGAIN


def test_every_aim_is_more_than_what_is_asked_for() -> None:
    aims = [(asked_of(command)[name][1], aim) for command, of in AIMED.items() for name, aim in of.items()]

    assert [pair for pair in aims if pair[0] >= pair[1]] == []


def test_what_is_asked_for_names_counts_that_the_commands_make() -> None:
    kept = load()
    unknown = [
        (command, name)
        for command, run in kept.items()
        for name in asked_of(command)
        if name not in run["counts"]
    ]

    assert unknown == []
    assert {" ".join(command.split()[:2]) for command in kept} <= ASKED.keys()


def test_the_page_asks_for_the_numbers_that_are_checked() -> None:
    asked = {number for bounds in ASKED.values() for _, number in bounds.values()}
    cells = [row["at least"] for row in table("docs/guarantees.md", "what")]

    numbers = {float(text.replace(",", "")) for cell in cells for text in re.findall(r"[\d,]+", cell)}
    assert numbers <= asked


@pytest.mark.parametrize(
    ("command", "name", "count", "is_met"),
    [
        ("make coverage", "branch coverage in %", 97.0, True),
        ("make coverage", "branch coverage in %", 96.9, False),
        ("make kills", "timers lost, doubled or wrong", 0, True),
        ("make kills", "timers lost, doubled or wrong", 1, False),
        ("make kills", "timers lost, doubled or wrong", None, False),
    ],
)
def test_a_count_below_or_above_what_is_asked_for_is_found(
    command: str, name: str, count: float | None, is_met: bool
) -> None:
    counts = {} if count is None else {name: count}

    assert (shortfalls({command: {"counts": counts}}) == []) is is_met


@pytest.mark.parametrize(("missing", "code"), [(3, 0), (4, 1)])
def test_coverage_is_judged_by_its_branches_alone(tmp_path: Path, missing: int, code: int) -> None:
    report = tmp_path / "report.json"
    totals = {"num_branches": 100, "missing_branches": missing, "num_statements": 10_000, "missing_lines": 0}
    report.write_text(json.dumps({"totals": totals}))

    assert check_coverage(report, keep=False) == code


def test_every_promise_is_tested_by_something_that_exists() -> None:
    cells = [row["tested by"] for row in table("docs/guarantees.md", "promise")]

    targets = {word.split()[1] for cell in cells for word in code_words(cell) if word.startswith("make ")}
    files = {name for cell in cells for name in re.findall(r"tests/\S+\.py", cell)}
    assert targets <= TARGETS
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_a_recorded_count_replaces_the_one_before_and_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / PAGE
    page.write_text(f"before\n{BEGIN}{END}after\n")

    record("make simulate SEEDS=1", {"seeds": 1}, tmp_path)
    record("make simulate SEEDS=1", {"seeds": 2_000}, tmp_path)

    text = page.read_text()
    assert shown(text) == render(load(tmp_path))
    assert (text.startswith("before\n"), text.endswith("after\n")) == (True, True)
    assert "| seeds | 2,000 | at least 25,000, aim 100,000; **not yet** |" in text
    assert shortfalls(load(tmp_path)) == [
        "make simulate SEEDS=1: seeds is 2,000, asked for is at least 25,000",
        "make simulate SEEDS=1: violations is None, asked for is at most 0",
    ]
