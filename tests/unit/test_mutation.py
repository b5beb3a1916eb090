"""The mistakes that `make mutants` makes are what they say, and leave a module that Python can read."""

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import modules
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
