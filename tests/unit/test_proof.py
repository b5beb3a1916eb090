"""`make proof` gives every part its share of the time, goes on where one fails, and shows one table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof import PARTS, Part, Row, planned, prove, table
from tests.support.documents import ROOT
from tests.support.guarantees import ASKED, BEGIN, END, PAGE, load, record

HALF = Part("half", size="N={n}", asked=100, asked_s=900)
FIXED = Part("fixed", fixed_s=900)

# Targets that do as the real ones: they record under their own name and size.
MAKEFILE = """
kills fuzz peace soak:
	@PYTHONPATH={root} {python} -c 'from pathlib import Path; from tests.support.guarantees import record; \\
	record("$(strip make $@ $(if $(N),N=$(N)))", {{$(COUNTS)}}, Path("docs"))'
	@exit $(CODE)
simulate:
	@echo nobody counts; exit 0
kills: COUNTS = "timers lost, doubled or wrong": 0
fuzz: COUNTS = "inputs": $(N), "uncaught exceptions, slow inputs, growth": 0
peace: COUNTS = "timers accepted": 100000, "lost": 2
peace: CODE = 1
soak: COUNTS = "growth per hour: memory in MB": 2, "growth per hour: open files": 0, "lost": 0, "early": 0
CODE = 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a few proofs of its own, one of which was recorded before."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / PAGE).write_text(BEGIN + END)
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable, root=ROOT))
    for command in ("make fuzz N=5000000", "make peace", "make simulate"):
        record(command, {"recorded": "before"}, tmp_path / "docs")
    return tmp_path


def test_every_part_gets_the_same_multiple_of_what_is_asked_for() -> None:
    plan = planned(2.0, [HALF, Part("other", size="M={n}0 K={n}", asked=10, asked_s=1_800)])

    assert plan == {"half N=270": 2_400.0, "other M=270 K=27": 4_800.0}


def test_what_has_one_size_only_takes_its_time_from_the_others() -> None:
    assert planned(0.5, [HALF, FIXED]) == {"half N=100": 900.0, "fixed": 900.0}


def test_what_takes_longer_than_half_of_the_time_is_left_out() -> None:
    assert planned(0.25, [HALF, FIXED]) == {"half N=100": 900.0}


def test_the_smallest_run_has_one_of_each() -> None:
    assert {size for line in planned(1e-9, PARTS) for size in re.findall(r"=(\d+)", line)} == {"1", "10"}


@pytest.mark.parametrize("part", PARTS, ids=[part.target for part in PARTS])
def test_every_part_is_a_target_that_records_under_the_name_of_its_run(part: Part) -> None:
    line = f"make {part.target} {part.size.format(n=7)}".strip()

    told = subprocess.run(
        [*line.split(), "--dry-run", "RECORD=1"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert (f'--record "{line}"' if part.target != "coverage" else "--record") in told


def test_whatever_the_page_asks_for_is_a_part() -> None:
    assert {f"make {part.target}" for part in PARTS} == ASKED.keys()


def test_counts_that_are_what_is_asked_for_take_the_place_of_those_before(project: Path) -> None:
    row = prove("fuzz N=20000000", 1.0, project)

    assert (row.verdict, row.wrong) == ("kept", [])
    assert {"make fuzz N=20000000", "make peace", "make simulate"} == load(project / "docs").keys()


def test_a_run_that_is_too_small_is_shown_and_not_kept(project: Path) -> None:
    before = load(project / "docs")

    row = prove("fuzz N=20", 1.0, project)

    assert (row.verdict, row.counts["inputs"], row.wrong) == ("too small", 20, [])
    assert load(project / "docs") == before


def test_a_count_that_is_too_high_is_shown_and_not_kept(project: Path) -> None:
    before = load(project / "docs")

    row = prove("soak", 1.0, project)

    assert (row.verdict, row.wrong) == (
        "not met",
        ["make soak: growth per hour: memory in MB is 2, asked for is at most 1"],
    )
    assert load(project / "docs") == before


@pytest.mark.parametrize("target", ["peace", "simulate"])
def test_a_part_that_fails_or_counts_nothing_has_failed_and_keeps_nothing(project: Path, target: str) -> None:
    before = load(project / "docs")

    assert prove(target, 1.0, project).verdict == "FAILED"
    assert load(project / "docs") == before


def test_the_table_has_a_line_for_each_part_and_below_what_is_wrong() -> None:
    rows = [
        Row("fuzz", "kept", 12.4, {"inputs": 2_000_000, "uncaught exceptions, slow inputs, growth": 0}, []),
        Row("peace", "FAILED", 7.0, {"timers accepted": 10, "lost": 2, "early": 1}, ["it lost two"]),
        Row("kills", "FAILED", 1_000.0, {}, ["it died"]),
    ]

    assert table(rows).splitlines() == [
        "part   counted             violations  seconds",
        "fuzz   inputs 2,000,000             0       12  kept",
        "peace  timers accepted 10           3        7  FAILED",
        "kills                               ?    1,000  FAILED",
        "it lost two",
        "it died",
    ]
