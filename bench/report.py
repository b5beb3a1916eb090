"""Figures, each next to its limit and its goals; as a table and as JSON."""

import math
import platform
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from bench.harness import nats_server_binary

Verdict = Literal["aim", "must", "missed", ""]

T = TypeVar("T")

_HEADINGS: Final = ("part", "figure", "value", "limit", "ratio", "must", "aim", "stands")


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a figure must stand and where it aims; of the value, or of its ratio to the limit."""

    must: float
    aim: float
    of: Literal["value", "ratio"] = "value"
    at_least: bool = False
    """Whether more is better; if not, less is."""

    def verdict(self, reached: float) -> Verdict:
        """Say which of the two is reached."""
        if self._reaches(reached, self.aim):
            return "aim"
        return "must" if self._reaches(reached, self.must) else "missed"

    def _reaches(self, reached: float, wanted: float) -> bool:
        return reached >= wanted if self.at_least else reached <= wanted


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure."""

    part: str
    name: str
    value: float
    unit: str
    limit: str = ""
    """What it is compared with."""
    limit_value: float | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """Return the figure as part of its limit."""
        return self.value / self.limit_value if self.limit_value else None

    @property
    def verdict(self) -> Verdict:
        """Say whether the goal is reached."""
        if self.goal is None:
            return ""
        reached = self.ratio if self.goal.of == "ratio" else self.value
        return "" if reached is None else self.goal.verdict(reached)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the middle value, the lower one of two."""
    return percentile(values, 0.5)


def middle(values: Sequence[T], key: Callable[[T], float]) -> T:
    """Return the value whose key is the median of all keys."""
    return sorted(values, key=key)[(len(values) - 1) // 2]


def stolen_share(before: Sequence[int], after: Sequence[int]) -> float:
    """Return which part of the time other guests of the same host had, by two first lines of /proc/stat."""
    # User, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in these already.
    spent = [now - then for then, now in zip(before[:8], after[:8], strict=True)]
    return spent[7] / max(1, sum(spent))


def shown(value: float | None, unit: str = "") -> str:
    """Return a number with as many digits as mean something."""
    if value is None:
        return ""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{min(digits, 3)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {unit}".strip()


def table(figures: Sequence[Figure]) -> str:
    """Return all figures as aligned text."""
    rows = [_HEADINGS, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(_aligned(row, widths) for row in rows)


def _row(figure: Figure) -> tuple[str, ...]:
    goal, limit = figure.goal, shown(figure.limit_value, figure.unit)
    return (
        figure.part,
        figure.name,
        shown(figure.value, figure.unit),
        f"{limit} {figure.limit}".strip(),
        shown(figure.ratio),
        _bound(goal, goal.must) if goal else "",
        _bound(goal, goal.aim) if goal else "",
        figure.verdict,
    )


def _bound(goal: Goal, value: float) -> str:
    sign = "≥" if goal.at_least else "≤"
    return f"{sign} {shown(value)}{' ×' if goal.of == 'ratio' else ''}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right]).rstrip()


def updated(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """Return the newer results, with those of the older whose part was not measured again.

    The whole run keeps its date: most figures are as old as it is.
    """
    again = {figure["part"] for figure in newer["figures"]}
    kept = [figure for figure in older["figures"] if figure["part"] not in again]
    return {
        "machine": older["machine"],
        "run": {**older["run"], "updated": {**newer["run"], "machine": newer["machine"]}},
        "figures": [*newer["figures"], *kept],
    }


def as_json(figures: Sequence[Figure], run: dict[str, Any]) -> dict[str, Any]:
    """Return everything a reader needs to judge the figures."""
    return {
        "run": run,
        "machine": machine(),
        "figures": [
            {**asdict(figure), "ratio": figure.ratio, "verdict": figure.verdict} for figure in figures
        ],
    }


def machine() -> dict[str, Any]:
    """Say what the figures were measured on."""
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in cpu_lines if line.startswith("model name")]
    server = subprocess.run([nats_server_binary(), "--version"], capture_output=True, text=True, check=True)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": len(models),
        "cpu": models[0] if models else platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "nats_server": server.stdout.strip().rpartition("v")[2],
        "nats_py": version("nats-py"),
        "timer_service": version("timer-service"),
    }
