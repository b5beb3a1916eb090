"""The benchmark's arithmetic, and that the README says what was measured."""

import json
import re

import pytest
from bench import figures
from bench.__main__ import PARTS
from bench.report import Figure, Goal, middle, percentile, shown, stolen_share, table, updated

AT_LEAST_HALF = Goal(0.5, 0.8, of="ratio", at_least=True)
AT_MOST_50 = Goal(50, 10)
BOUNDS = ["≥ 0.5 ×", "≥ 0.8 ×"]


def test_the_documents_show_the_latest_results() -> None:
    results = json.loads(figures.LATEST.read_text("utf-8"))

    for path, render in figures.DOCUMENTS.items():
        text = path.read_text("utf-8")
        assert text == figures.insert(text, render(results))


def test_the_latest_results_are_a_whole_run() -> None:
    results = json.loads(figures.LATEST.read_text("utf-8"))

    parts = {figure["part"] for figure in results["figures"]}
    assert results["run"]["plan"] == "full"
    assert parts >= set(PARTS)


def test_every_row_of_the_documents_was_measured() -> None:
    results = json.loads(figures.LATEST.read_text("utf-8"))

    lines = [line for render in figures.DOCUMENTS.values() for line in render(results).splitlines()]

    assert [line for line in lines if line.startswith("| ") and line.split("|")[2].strip() == "—"] == []


def test_inserting_replaces_only_what_stands_between_the_markers() -> None:
    text = f"above\n{figures.BEGIN}\nold\n{figures.END}\nbelow\n"

    assert figures.insert(text, "new") == f"above\n{figures.BEGIN}\nnew\n{figures.END}\nbelow\n"


def test_inserting_twice_changes_nothing_more() -> None:
    once = figures.insert(f"above {figures.BEGIN}{figures.END} below", "| new |")

    assert figures.insert(once, "| new |") == once


@pytest.mark.parametrize("text", ["", figures.BEGIN, figures.END, f"{figures.END} {figures.BEGIN}"])
def test_a_readme_without_both_markers_is_refused(text: str) -> None:
    with pytest.raises(figures.MarkersMissing, match="must hold the lines"):
        figures.insert(text, "new")


def test_the_middle_round_is_the_one_with_the_median_ratio() -> None:
    in_trouble_and_alone = [(9.0, 3.0), (2.0, 2.0), (30.0, 20.0), (50.0, 10.0), (1.0, 2.0)]

    assert middle(in_trouble_and_alone, key=lambda each: each[0] / each[1]) == (30.0, 20.0)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (0.999, 100.0), (1.0, 100.0), (0.001, 1.0)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert percentile(values, share) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert [percentile([7.0], share) for share in (0.0, 0.5, 0.999, 1.0)] == [7.0] * 4


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (12_345.6, "/s", "12,346 /s"),
        (312.4, "B", "312 B"),
        (42.04, "ms", "42 ms"),
        (1.236, "ms", "1.24 ms"),
        (0.01234, "s", "0.012 s"),
        (0.0, "% of a core", "0 % of a core"),
        (100.0, "", "100"),
        (None, "ms", ""),
    ],
)
def test_a_number_is_shown_with_the_digits_that_mean_something(
    value: float | None, unit: str, expected: str
) -> None:
    assert shown(value, unit) == expected


@pytest.mark.parametrize(
    ("value", "limit", "goal", "expected"),
    [
        (80.0, 100.0, AT_LEAST_HALF, "aim"),
        (50.0, 100.0, AT_LEAST_HALF, "must"),
        (49.0, 100.0, AT_LEAST_HALF, "missed"),
        (10.0, 1.0, AT_MOST_50, "aim"),
        (50.0, None, AT_MOST_50, "must"),
        (50.1, None, AT_MOST_50, "missed"),
        (50.0, 100.0, None, ""),
    ],
)
def test_a_figure_is_judged_by_its_goal(
    value: float, limit: float | None, goal: Goal | None, expected: str
) -> None:
    assert Figure("part", "name", value, "/s", "limit", limit, goal).verdict == expected


def test_the_table_shows_each_figure_beside_its_limit_and_its_goals() -> None:
    measured = [
        Figure("limits", "client publishes", 20_000, "/s"),
        Figure("burst", "all at once", 11_000, "/s", "client publishes", 20_000, AT_LEAST_HALF),
    ]

    cells = [re.split(r"\s{2,}", line) for line in table(measured).splitlines()]
    assert cells == [
        ["part", "figure", "value", "limit", "ratio", "must", "aim", "stands"],
        ["limits", "client publishes", "20,000 /s"],
        ["burst", "all at once", "11,000 /s", "20,000 /s client publishes", "0.55", *BOUNDS, "must"],
    ]


def test_a_part_that_is_measured_again_replaces_the_older_one_and_leaves_the_others() -> None:
    older = {
        "run": {"plan": "full"},
        "machine": {"at": "then"},
        "figures": [_figure("scale", 1), _figure("both", 1)],
    }
    newer = {"run": {"plan": "full"}, "machine": {"at": "now"}, "figures": [_figure("scale", 2)]}

    assert updated(older, newer) == {
        "run": {"plan": "full", "updated": {"plan": "full", "machine": {"at": "now"}}},
        "machine": {"at": "then"},
        "figures": [_figure("scale", 2), _figure("both", 1)],
    }


def _figure(part: str, value: float) -> dict[str, object]:
    return {"part": part, "name": "p50", "value": value}


def test_what_neighbours_took_is_told_from_what_was_idle() -> None:
    before = [10, 0, 5, 100, 0, 0, 0, 2, 0, 0]
    after = [20, 0, 10, 155, 0, 0, 0, 32, 7, 7]

    assert stolen_share(before, after) == 0.3
