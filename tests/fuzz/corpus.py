"""Inputs worth keeping: one file a target, one input a line, as Python writes bytes."""

import ast
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MOST_KEPT = 150
LONGEST = 2_000
"""Longer inputs tell little more, and nobody reads them."""


def load(target: str) -> list[bytes]:
    path = FOLDER / f"{target}.txt"
    return [ast.literal_eval(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def keep(target: str, found: Iterable[bytes]) -> None:
    """Add inputs, the shortest first, until there are enough."""
    kept = load(target)
    for data in sorted(set(found) - set(kept), key=lambda data: (len(data), data)):
        if len(kept) < MOST_KEPT and len(data) <= LONGEST:
            kept.append(data)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_text("".join(f"{data!r}\n" for data in sorted(kept)), "ascii")
