"""The mistakes that `make mutants` makes are what they say, and leave a module that Python can read."""

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import every, modules, sample
from tests.mutation.bench import Bench
from tests.mutation.explained import EXPLAINED
from tests.mutation.kept import Kept
from tests.mutation.mistakes import mistakes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("if a <= b: pass", ["if a < b: pass"]),
        ("x = a is not None", ["x = a is None"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not (a)", ["x = (a)"]),
        ("x = a - 1", ["x = a + 1", "x = a - 2"]),
        ("x = True", ["x = False"]),
        ("x = min(a, b)", ["x = max(a, b)"]),
        ("forget(a)", ["pass"]),
        ("x = 'SELECT a AND b <= c'", ["x = 'SELECT a AND b < c'", "x = 'SELECT a OR b <= c'"]),
        ("def f(a: 'int' = 1) -> 'int': pass", ["def f(a: 'int' = 2) -> 'int': pass"]),
        ("@dataclass(frozen=True)\nclass A: a = 1", ["@dataclass(frozen=True)\nclass A: a = 2"]),
    ],
)
def test_a_mistake_is_a_small_change(line: str, wrong: list[str]) -> None:
    source = line.encode()

    assert [mistake.made_in(source).decode() for mistake in mistakes(Path("module.py"), source)] == wrong


def test_every_mistake_leaves_a_module_that_can_be_read() -> None:
    path = modules()[0]
    source = (ROOT / path).read_bytes()

    for mistake in mistakes(path, source):
        ast.parse(mistake.made_in(source))


def test_a_seed_gives_the_same_mistakes_each_time_and_another_seed_others() -> None:
    assert sample(20, seed=7) == sample(20, seed=7)
    assert sample(20, seed=7) != sample(20, seed=8)


def test_a_mistake_keeps_its_name_when_lines_are_added_above_it() -> None:
    source = b"def f(a):\n    if a > 1:\n        return a + 1\n"

    names = [mistake.name for mistake in mistakes(Path("module.py"), source)]

    assert names == [mistake.name for mistake in mistakes(Path("module.py"), b"import os\n" + source)]
    assert len(set(names)) == len(names)


def test_no_two_mistakes_have_the_same_name() -> None:
    names = [mistake.name for mistake in every()]

    assert len(set(names)) == len(names)


def test_what_is_explained_can_still_be_done_wrong() -> None:
    assert EXPLAINED.keys() - {mistake.name for mistake in every()} == set()


def test_a_mistake_is_run_by_whoever_runs_its_statement() -> None:
    source = b"LIMIT = (\n  1\n)\ndef f(a):\n  if (\n    a > LIMIT\n  ):\n    g(\n      3\n    )\n"

    places = {m.before: m.place for m in mistakes(Path("module.py"), source)}

    assert (places["1"].is_run_at_import, places["1"].lines) == (True, range(1, 4))
    assert (places[">"].is_run_at_import, places[">"].lines) == (False, range(6, 7))
    assert (places["3"].scope, places["3"].lines) == ("f", range(8, 11))


SOURCE = b"def is_due(due, now):\n    return due <= now\n"
SHARP = "import clock\ndef test_due(): assert clock.is_due(1, 1)\n"
BLUNT = "import clock\ndef test_due(): assert clock.is_due(0, 1)\n"
BUSY = """import pathlib
import clock
def test_due():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    was_seen = seen.exists()
    seen.touch()
    assert was_seen or not clock.is_due(0, 1)
"""
"""Fails the first time, as a test does on a machine that stands still for a while."""


def _bench(folder: Path, **tests: str) -> Bench:
    project, copy = folder / "project", folder / "copy"
    (project / "src").mkdir(parents=True)
    (project / "src" / "clock.py").write_bytes(SOURCE)
    (project / "tests").mkdir()
    for name, text in tests.items():
        (project / "tests" / f"test_{name}.py").write_text(text)
    copy.mkdir()
    return Bench(copy, project)


def test_tests_notice_a_mistake_or_not_and_the_module_is_as_before(tmp_path: Path) -> None:
    bench = _bench(tmp_path, sharp=SHARP, blunt=BLUNT, busy=BUSY)
    [excluded] = [m for m in mistakes(Path("src/clock.py"), SOURCE) if m.after == "<"]
    sharp, blunt, busy = (f"tests/test_{name}.py" for name in ("sharp", "blunt", "busy"))

    noticed = [bench.noticed_by(excluded, files, takes_s=0) for files in ([blunt, sharp], [blunt], [busy])]

    assert noticed == [[sharp], (), ()]
    assert (bench.folder / "src" / "clock.py").read_bytes() == SOURCE


def test_the_lines_that_a_file_of_tests_runs_are_known_if_it_passes(tmp_path: Path) -> None:
    failing = "import clock\ndef test_due(): assert clock.is_due(1, 0)\n"
    bench = _bench(tmp_path, sharp=SHARP, idle="def test_nothing(): pass\n", failing=failing)

    reached = {
        name: bench.reach(f"tests/test_{name}.py", ["src/clock.py"]) for name in ("sharp", "idle", "failing")
    }

    assert {name: found and found[1] for name, found in reached.items()} == {
        "sharp": {"src/clock.py": [1, 2]},
        "idle": {},
        "failing": None,
    }


def test_what_was_found_holds_until_a_file_is_not_what_it_was_when_the_run_began(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    steady, edited = tmp_path / "tests" / "test_steady.py", tmp_path / "tests" / "test_edited.py"
    steady.write_text(SHARP)
    edited.write_text(BLUNT)

    run = Kept(tmp_path / "kept.json", tmp_path)
    edited.write_text(SHARP)  # While it runs: its copies of the project have the other one.
    run.keep("steady", 1, ["tests/test_steady.py"])
    run.keep("edited", 2, ["tests/test_steady.py", "tests/test_edited.py"])

    assert (run.get("steady"), run.get("edited")) == (1, 2)
    later = Kept(tmp_path / "kept.json", tmp_path)
    assert (later.get("steady"), later.get("edited")) == (1, None)
