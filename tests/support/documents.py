"""The project's documents, taken apart: their tables and their marked blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_MARKED_BLOCK = re.compile(r"<!-- (?P<name>[^>]+?) -->\s*```\w*\n(?P<text>.*?)```", re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")


def read(path: str) -> str:
    """Return a document by its path in the project."""
    return (ROOT / path).read_text("utf-8")


def marked_blocks(path: str) -> dict[str, str]:
    """Return each fenced block that follows a comment, by the text of the comment."""
    found = [(match["name"], match["text"]) for match in _MARKED_BLOCK.finditer(read(path))]
    names = [name for name, _ in found]
    assert len(names) == len(set(names)), f"{path}: two blocks have the same marker"
    return dict(found)


def table(path: str, first_header: str) -> list[dict[str, str]]:
    """Return the rows of the table whose first column has this header, by header."""
    lines = iter(read(path).splitlines())
    header = next((cells for cells in map(_cells, lines) if cells and cells[0] == first_header), None)
    assert header, f"{path} has no table that begins with {first_header!r}"
    next(lines)  # The line of dashes.
    rows = []
    for line in lines:
        cells = _cells(line)
        if not cells:
            break
        rows.append(dict(zip(header, cells, strict=True)))
    return rows


def code_words(cell: str) -> list[str]:
    """Return what stands in backquotes."""
    return _CODE.findall(cell)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
