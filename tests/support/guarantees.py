"""The counts in docs/guarantees.md: written by the commands that counted, never by hand."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
COUNTS = DOCS / "guarantees.json"
PAGE = DOCS / "guarantees.md"
BEGIN, END = "<!-- counts: begin -->\n", "<!-- counts: end -->\n"

Counts = dict[str, Any]


def record(command: str, counts: Counts) -> None:
    """Keep what a command has counted, and show it on the page."""
    kept = load()
    kept[command] = {"on": f"{datetime.now(UTC):%Y-%m-%d}", "counts": counts}
    COUNTS.write_text(json.dumps(dict(sorted(kept.items())), indent=2, ensure_ascii=False) + "\n")
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + begin + render(kept) + END + rest.partition(END)[2], "utf-8")


def load() -> dict[str, Counts]:
    kept: dict[str, Counts] = json.loads(COUNTS.read_text("utf-8")) if COUNTS.exists() else {}
    return kept


def shown(text: str) -> str:
    """Return what stands between the markers."""
    return text.partition(BEGIN)[2].partition(END)[0]


def render(kept: dict[str, Counts]) -> str:
    """Return one table a command."""
    parts = []
    for command, run in kept.items():
        parts.append(f"### `{command}`\n\nLast run on {run['on']}.\n\n| counted | |\n|---|---|\n")
        parts += [f"| {name} | {_text(count)} |\n" for name, count in run["counts"].items()]
        parts.append("\n")
    return "\n" + "".join(parts)


def _text(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int | float) else str(count)


def record_coverage(report: Path) -> None:
    """Keep the totals of a report of coverage.py."""
    totals = json.loads(report.read_text("utf-8"))["totals"]
    branches, missing = totals["num_branches"], totals["missing_branches"]
    record(
        "make coverage",
        {
            "statements": totals["num_statements"],
            "statements not run": totals["missing_lines"],
            "branches": branches,
            "branches not taken": missing,
            "branch coverage in %": round(100 * (branches - missing) / branches, 1),
        },
    )


if __name__ == "__main__":
    record_coverage(Path(sys.argv[1]))
