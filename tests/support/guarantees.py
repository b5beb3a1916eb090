"""The counts in docs/guarantees.md: written by the commands that counted, never by hand."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
COUNTS, PAGE = "guarantees.json", "guarantees.md"
BEGIN, END = "<!-- counts: begin -->\n", "<!-- counts: end -->\n"

Counts = dict[str, Any]
AT_LEAST, AT_MOST = "at least", "at most"
MOST_SHOWN = 10
"""Lines about what is broken."""

ASKED: dict[str, dict[str, tuple[str, float]]] = {
    "make simulate": {"seeds": (AT_LEAST, 25_000), "violations": (AT_MOST, 0)},
    "make crashes": {"crash scenarios": (AT_LEAST, 25_000), "violations": (AT_MOST, 0)},
    "make torture": {
        "faults: kill -9 of the service": (AT_LEAST, 500),
        "faults: kill -9 of the broker": (AT_LEAST, 200),
        "recovery after kill -9 of the broker, worst s": (AT_MOST, 5),
        "recovery after kill -9 of the service, worst s": (AT_MOST, 5),
        **dict.fromkeys(
            (
                *("lost", "early", "unexpected", "repeated under another id"),
                *("without exactly one letter", "ended by itself"),
            ),
            (AT_MOST, 0.0),
        ),
    },
    "make kills": {"timers lost, doubled or wrong": (AT_MOST, 0)},
    "make power-cuts": {
        "power cuts, no two of which left the same files": (AT_LEAST, 2_000),
        "damaged, or something acknowledged gone": (AT_MOST, 0),
    },
    "make consumer-kills": {
        f"{kind}: {name}": bound
        for kind in ("SQLite", "PostgreSQL")
        for name, bound in (
            ("kill -9 of a worker", (AT_LEAST, 200)),
            ("timers without effect", (AT_MOST, 0)),
            ("effects done twice", (AT_MOST, 0)),
        )
    },
    "make flow-kills": {
        f"{kind}: {name}": bound
        for kind in ("SQLite", "PostgreSQL")
        for name, bound in (
            ("runs", (AT_LEAST, 1_000)),
            ("kill -9 of a worker", (AT_LEAST, 100)),
            ("kill -9 of the service", (AT_LEAST, 20)),
            ("kill -9 of the broker", (AT_LEAST, 10)),
            ("runs lost", (AT_MOST, 0)),
            ("runs with a wrong result", (AT_MOST, 0)),
            ("transactions not done exactly once", (AT_MOST, 0)),
            ("steps repeated without a kill", (AT_MOST, 0)),
        )
    },
    "make callback-races": {
        "races": (AT_LEAST, 100_000),
        **dict.fromkeys(
            (
                *("cancelled and called all the same", "refused and never called"),
                *("called more than once", "called before the due time"),
            ),
            (AT_MOST, 0),
        ),
    },
    "make callback-kills": {
        f"{kind}: {name}": bound
        for kind, longest_s in (("SQLite", 2), ("PostgreSQL", 10))
        for name, bound in (
            ("kill -9 of a service inside its calls", (AT_LEAST, 100)),
            ("lost", (AT_MOST, 0)),
            ("called under another id", (AT_MOST, 0)),
            ("called before the due time", (AT_MOST, 0)),
            ("kill to first repeated call, worst s", (AT_MOST, longest_s)),
        )
    },
    "make callback-crowd": {
        "tenants, each with a receiver of its own": (AT_LEAST, 100_000),
        "called more than once": (AT_MOST, 0),
        "most memory of the service in MB": (AT_MOST, 200),
    },
    "make callback-cluster": {
        "callbacks of two instances at one instant": (AT_LEAST, 20_000),
        **dict.fromkeys(
            (
                *("called more than once", "called under another id", "not delivered"),
                "outcomes that a late one has changed",
            ),
            (AT_MOST, 0),
        ),
    },
    "make flow-crashes": {
        "memory: crash scenarios": (AT_LEAST, 400),
        "sqlite: crash scenarios": (AT_LEAST, 5_000),
        "postgres: crash scenarios": (AT_LEAST, 500),
        "violations": (AT_MOST, 0),
    },
    "make peace": {
        "timers accepted": (AT_LEAST, 1_000_000),
        **dict.fromkeys(
            ("lost", "early", "published more than once", "stored more than once"), (AT_MOST, 0.0)
        ),
    },
    "make soak": {
        "growth per hour: memory in MB": (AT_MOST, 1),
        "growth per hour: open files": (AT_MOST, 1),
        **dict.fromkeys(("lost", "early"), (AT_MOST, 0)),
    },
    "make mutants": {"killed, in % of those that change behaviour": (AT_LEAST, 90)},
    "make fuzz": {
        "inputs": (AT_LEAST, 10_000_000),
        "uncaught exceptions, slow inputs, growth": (AT_MOST, 0),
    },
    "make addresses": {"attempts": (AT_LEAST, 10_000), "sockets to a denied range": (AT_MOST, 0)},
    "make coverage": {"branch coverage in %": (AT_LEAST, 97)},
}
"""What the counts of a command have to be, whenever they were recorded."""
AIMED: dict[str, dict[str, float]] = {
    "make simulate": {"seeds": 100_000},
    "make crashes": {"crash scenarios": 50_000},
    "make torture": {"faults: kill -9 of the service": 1_000, "faults: kill -9 of the broker": 500},
    "make power-cuts": {"power cuts, no two of which left the same files": 20_000},
    "make consumer-kills": {f"{kind}: kill -9 of a worker": 500 for kind in ("SQLite", "PostgreSQL")},
    "make peace": {"timers accepted": 5_000_000},
    "make mutants": {"killed, in % of those that change behaviour": 97},
    "make fuzz": {"inputs": 100_000_000},
    "make coverage": {"branch coverage in %": 100},
}
"""What they should be, where that is more."""
RUN_AGAIN: frozenset[str] = frozenset()
"""Commands whose last recorded run is smaller than what is asked for by now. The page says so; `make proof`
with hours enough replaces them, and then they have to leave this list."""


def record(command: str, counts: Counts, docs: Path = DOCS) -> None:
    """Keep what a command has counted, and show it on the page."""
    write({**load(docs), command: {"on": f"{datetime.now(UTC):%Y-%m-%d}", "counts": counts}}, docs)


def write(kept: dict[str, Counts], docs: Path = DOCS) -> None:
    """Keep these counts and no others, and show them on the page."""
    page = docs / PAGE
    kept = dict(sorted(kept.items()))  # On the page in the order of the file, also for a new command.
    (docs / COUNTS).write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(before + begin + render(kept) + END + rest.partition(END)[2], "utf-8")


def conclude(counts: Counts, broken: Sequence[str], command: str | None) -> int:
    """Tell what a proof has counted and the first of what it found broken; keep the counts as a command's.

    Returns the exit code.
    """
    for line in broken[:MOST_SHOWN]:
        print(line, file=sys.stderr)
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"{name:<{width}}  {count:>12}")
    if command is not None:
        record(command, counts)
    return 1 if broken else 0


def asked_of(command: str) -> dict[str, tuple[str, float]]:
    """Return what the counts of a command have to be: name to `at least` or `at most`, and a number."""
    return ASKED.get(_name(command), {})


def _name(command: str) -> str:
    return " ".join(command.split()[:2])


def too_small(kept: dict[str, Counts]) -> set[str]:
    """Return the commands of which a count falls short of what is asked for."""
    return {_name(command) for command, run in kept.items() if _missed(command, run["counts"], AT_LEAST)}


def shortfalls(kept: dict[str, Counts]) -> list[str]:
    """Return every count that is not what is asked for."""
    return [
        line for command, run in kept.items() for line in _missed(command, run["counts"], AT_LEAST, AT_MOST)
    ]


def exceeded(command: str, counts: Counts) -> list[str]:
    """Return every count that is more than it may be; that a small run has few of others is no fault."""
    return _missed(command, counts, AT_MOST)


def _missed(command: str, counts: Counts, *kinds: str) -> list[str]:
    return [
        f"{command}: {name} is {_text(counts.get(name))}, asked for is {kind} {_text(bound)}"
        for name, (kind, bound) in asked_of(command).items()
        if kind in kinds and not _is_met(counts.get(name), kind, bound)
    ]


def _is_met(count: Any, kind: str, bound: float) -> bool:
    if count is None:
        return False
    return bool(count >= bound if kind == AT_LEAST else count <= bound)


def load(docs: Path = DOCS) -> dict[str, Counts]:
    counts = docs / COUNTS
    kept: dict[str, Counts] = json.loads(counts.read_text("utf-8")) if counts.exists() else {}
    return kept


def shown(text: str) -> str:
    """Return what stands between the markers."""
    return text.partition(BEGIN)[2].partition(END)[0]


def render(kept: dict[str, Counts]) -> str:
    """Return one table a command."""
    parts = []
    for command, run in kept.items():
        parts.append(
            f"### `{command}`\n\nLast run on {run['on']}.\n\n| counted | | asked for |\n|---|---|---|\n"
        )
        for name, count in run["counts"].items():
            parts.append(f"| {name} | {_text(count)} | {_bound(command, name, count)} |\n")
        parts.append("\n")
    return "\n" + "".join(parts)


def _bound(command: str, name: str, count: Any) -> str:
    """Return what is asked of a count, what is aimed for, and whether that is still to come."""
    if name not in asked_of(command):
        return ""
    kind, bound = asked_of(command)[name]
    aim = AIMED.get(_name(command), {}).get(name)
    aimed = "" if aim is None else f", aim {_text(aim)}"
    return f"{kind} {_text(bound)}{aimed}" + ("" if _is_met(count, kind, bound) else "; **not yet**")


def _text(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int | float) else str(count)


def coverage_counts(report: Path) -> Counts:
    """Return the totals of a report of coverage.py, with the share of branches alone."""
    totals = json.loads(report.read_text("utf-8"))["totals"]
    branches, missing = totals["num_branches"], totals["missing_branches"]
    return {
        "statements": totals["num_statements"],
        "statements not run": totals["missing_lines"],
        "branches": branches,
        "branches not taken": missing,
        "branch coverage in %": round(100 * (branches - missing) / branches, 1),
    }


def check_coverage(report: Path, *, keep: bool) -> int:
    """Tell what was covered; return an exit code that fails where it is too little."""
    counts = coverage_counts(report)
    if keep:
        record("make coverage", counts)
    print(f"branch coverage {counts['branch coverage in %']} %")
    missing = shortfalls({"make coverage": {"counts": counts}})
    print(*missing, sep="\n", end="\n" if missing else "", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(check_coverage(Path(sys.argv[1]), keep="--record" in sys.argv))
