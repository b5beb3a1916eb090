"""Run every proof in turn, sized to end after about so many hours, and show all counts in one table."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.guarantees import AT_LEAST, Counts, asked_of, exceeded, load, shortfalls, write

ROOT = Path(__file__).parents[1]
FIXED_SHARE = 0.5
"""Of the time, for what takes the same whatever the size of the run; what does not fit in is left out."""
MIN_PATIENCE_S = 3_600.0


class Part(NamedTuple):
    """A target: what it takes whatever its size, the size that is asked for and what that takes."""

    target: str
    fixed_s: float = 0.0
    size: str = ""
    asked: int = 0
    asked_s: float = 0.0


class Row(NamedTuple):
    """What came of a part, and what is wrong with it or missing."""

    target: str
    verdict: str
    seconds: float
    counts: Counts
    wrong: list[str]


PARTS = (
    Part("simulate", size="SEEDS={n}", asked=25_000, asked_s=1_750),
    Part("crashes", fixed_s=600),
    Part("flow-crashes", fixed_s=240),
    Part("torture", size="MINUTES={n} KILLS={n}0", asked=50, asked_s=3_100),
    Part("kills", fixed_s=500),
    Part("power-cuts", size="CUTS={n}", asked=2_000, asked_s=1_000),
    Part("consumer-kills", size="WORKER_KILLS={n}", asked=200, asked_s=300),
    Part("flow-kills", size="FLOW_RUNS={n}0 FLOW_KILLS={n}", asked=100, asked_s=400),
    Part("callback-races", size="RACES={n}", asked=100_000, asked_s=900),
    Part("callback-kills", size="CALLBACK_KILLS={n}", asked=100, asked_s=300),
    Part("callback-cluster", size="CALLBACKS={n}", asked=20_000, asked_s=150),
    Part("callback-crowd", size="CROWD={n}", asked=100_000, asked_s=150),
    Part("peace", size="TIMERS={n}", asked=1_000_000, asked_s=750),
    Part("fuzz", size="N={n}", asked=10_000_000, asked_s=1_300),
    Part("addresses", size="ATTEMPTS={n}", asked=10_000, asked_s=20),
    Part("mutants", fixed_s=900, size="MUTANTS={n} SEED=1", asked=100, asked_s=2_000),
    Part("soak", size="SOAK_MINUTES={n}", asked=60, asked_s=3_600),
    Part("coverage", fixed_s=400),
)


def planned(hours: float, parts: Sequence[Part]) -> dict[str, float]:
    """Return targets with their sizes, and the seconds of each: all together end in time.

    Every part gets the same multiple of the size that is asked for.
    """
    seconds, fixed_s, fitting = hours * 3_600, 0.0, set[Part]()
    for part in sorted(parts, key=lambda part: part.fixed_s):
        if fixed_s + part.fixed_s <= seconds * FIXED_SHARE:
            fixed_s += part.fixed_s
            fitting.add(part)
    factor = (seconds - fixed_s) / max(1.0, sum(part.asked_s for part in fitting))
    plan = {}
    for part in parts:
        if part in fitting:
            size = max(1, int(float(f"{part.asked * factor:.1e}")))  # Two digits and noughts.
            plan[f"{part.target} {part.size.format(n=size)}".strip()] = part.fixed_s + part.asked_s * factor
    return plan


def prove(line: str, planned_s: float, root: Path = ROOT) -> Row:
    """Run one part and keep its counts if they are what is asked for; otherwise those before stay."""
    command, target, docs = f"make {line}", line.split(maxsplit=1)[0], root / "docs"
    log = root / "build" / "proof" / f"{target}.log"
    before = load(docs)
    others = {name: run for name, run in before.items() if name.split()[1] != target}
    write(others, docs)
    started = time.monotonic()
    try:
        code = _make(command, root, log, MIN_PATIENCE_S + 2 * planned_s)
        counts = load(docs).get(command, {}).get("counts", {})
        wrong = [f"{command} ended with {code}: see {log}"] if code else exceeded(command, counts)
        is_small = bool(shortfalls({command: {"counts": counts}}))
        if not wrong and not is_small:
            before = load(docs)
    finally:
        write(before, docs)
    verdict = "FAILED" if code or not counts else "not met" if wrong else "too small" if is_small else "kept"
    return Row(target, verdict, time.monotonic() - started, counts, wrong)


def _make(command: str, root: Path, log: Path, patience_s: float) -> int:
    """Run a target, its output into a file, and return its exit code; one that hangs is killed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [*command.split(), "RECORD=1"]
    with log.open("wb") as output:
        process = subprocess.Popen(words, cwd=root, stdout=output, stderr=output, process_group=0)
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def table(rows: Sequence[Row]) -> str:
    """Return what came of all parts, a line each, and below it what is wrong or missing."""
    cells = [("part", "counted", "violations", "seconds", ""), *map(_cells, rows)]
    part, counted, *_ = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = [f"{a:<{part}}  {b:<{counted}}  {c:>10}  {d:>7}  {e}".rstrip() for a, b, c, d, e in cells]
    return "\n".join([*lines, *(line for row in rows for line in row.wrong)])


def _cells(row: Row) -> tuple[str, ...]:
    asked = asked_of(f"make {row.target}")
    names = [name for name, (kind, _) in asked.items() if kind == AT_LEAST] or list(row.counts)
    counted = [f"{name} {row.counts[name]:,}" for name in names[:3] if name in row.counts]
    violations = sum(row.counts.get(name, 0) for name, (_, bound) in asked.items() if bound == 0)
    told = f"{violations:,}" if row.counts else "?"
    return row.target, "; ".join(counted), told, f"{row.seconds:,.0f}", row.verdict


def main() -> int:
    """Run the parts, go on where one fails, and return 1 if any has."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long, all together (1)")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these")
    options = parser.parse_args()
    parts = [part for part in PARTS if part.target in options.parts or not options.parts]
    rows = []
    for line, seconds in planned(options.hours, parts).items():
        print(f"make {line}: about {seconds:,.0f} s", flush=True)
        rows.append(prove(line, seconds))
    left_out = {part.target for part in parts} - {row.target for row in rows}
    print(table(rows), *(f"{target}: left out, it takes too long" for target in left_out), sep="\n")
    return int(any(row.verdict == "FAILED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
