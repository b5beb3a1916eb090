"""Make mistakes in the product, one at a time, and see which of them no test notices: `make mutants`."""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation.explained import EXPLAINED
from tests.mutation.mistakes import Mistake, mistakes
from tests.support.guarantees import record

ROOT = Path(__file__).parents[2]
MUTATED = (
    "src/timer_service/domain",
    "src/timer_service/workflows",
    "src/timer_service/adapters/sqlite",
    "src/timer_service/adapters/postgres",
    "src/timer_service/adapters/callback_rows.py",
    "src/timer_service/adapters/rows.py",
    "src/timer_service/deliveries.py",
    "client/src/timer_client/wire",
)
TESTED_BY = ("tests/unit", "tests/contract", "tests/integration", "tests/simulation", "tests/fuzz")
SLOWEST_FILE_S = 60.0
"""Slower files are left out: what only they notice counts as noticed by nobody."""
HANGS_AFTER_S = 300.0


class Bench:
    """A copy of the project, in which mistakes are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "client", "tests", "migrations", "docs", "bench", "deploy", "examples"):
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        path = [str(folder / "src"), str(folder / "client/src"), str(folder)]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *arguments: str) -> int | None:
        """Run Python and return its exit code; None if it had to be killed."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(HANGS_AFTER_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return None

    def notices(self, mistake: Mistake, files: Sequence[str]) -> bool:
        """Return whether any of these tests fails, or hangs, with the mistake."""
        path = self.folder / mistake.path
        source = path.read_bytes()
        path.write_bytes(mistake.made_in(source))
        try:
            return self.run("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files) != 0
        finally:
            path.write_bytes(source)


def lines_by_test(bench: Bench) -> dict[str, Any]:
    """Return for each file of tests how long it takes and which lines of the product it runs."""
    files = sorted(
        str(path.relative_to(ROOT)) for part in TESTED_BY for path in (ROOT / part).glob("test_*.py")
    )
    product = b"".join((ROOT / module).read_bytes() for module in modules())
    cache = ROOT / "build" / "tested-lines.json"
    known = json.loads(cache.read_text()) if cache.exists() else {}
    found: dict[str, Any] = {}
    for file in files:
        key = hashlib.sha256(product + (ROOT / file).read_bytes()).hexdigest()
        found[file] = known.get(file, {})
        if found[file].get("key") != key:
            found[file] = {"key": key, **_measured(bench, file)}
            # After each: the next run goes on where one was stopped, or a file was changed.
            cache.parent.mkdir(exist_ok=True)
            cache.write_text(json.dumps({**known, **found}))
    return found


def _measured(bench: Bench, file: str) -> dict[str, Any]:
    started = time.monotonic()
    code = bench.run("-m", "coverage", "run", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", file)
    took_s = time.monotonic() - started
    bench.run("-m", "coverage", "combine", "-q")
    bench.run("-m", "coverage", "json", "-q", "-o", "lines.json")
    lines = bench.folder / "lines.json"
    seen: dict[str, Any] = {}
    if lines.exists():
        seen = json.loads(lines.read_text())["files"] if code == 0 else {}
        lines.unlink()
    _tell(f"{file}: {took_s:.0f} s{'' if code == 0 else ', not used'}")
    return {"s": took_s, "lines": {name: of["executed_lines"] for name, of in seen.items()}}


def modules() -> list[Path]:
    """Return the modules in which mistakes are made."""
    found: list[Path] = []
    for name in MUTATED:
        path = ROOT / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path.relative_to(ROOT) for path in found]


def sample(count: int, seed: int) -> list[Mistake]:
    """Return mistakes by chance, always the same for a seed."""
    every = [m for path in modules() for m in mistakes(path, (ROOT / path).read_bytes())]
    return random.Random(seed).sample(every, min(count, len(every)))


def main() -> int:
    """Make the mistakes of a sample and tell which stay unnoticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    survivors: list[str] = []
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        tested = lines_by_test(bench)
        for mistake in sample(options.count, options.seed):
            outcome = _try(bench, mistake, tested)
            counts[outcome] += 1
            _tell(f"{outcome}: {mistake.path}:{mistake.line}: {mistake.before!r} becomes {mistake.after!r}")
            if outcome == "survived":
                survivors.append(mistake.name)
    of = counts["killed"] + counts["survived"]
    told = {
        "mistakes made": sum(counts.values()),
        "explained: they change nothing that anybody could notice": counts["explained"],
        "killed": counts["killed"],
        "survived": counts["survived"],
        "killed, in % of those that change behaviour": round(100 * counts["killed"] / max(of, 1), 1),
    }
    print(json.dumps(told, indent=1), *survivors, sep="\n")
    if options.record:
        record(options.record, told)
    return 0


def _try(bench: Bench, mistake: Mistake, tested: dict[str, Any]) -> str:
    if mistake.name in EXPLAINED:
        return "explained"
    running = sorted(
        (of["s"], file)
        for file, of in tested.items()
        if of["s"] <= SLOWEST_FILE_S and mistake.line in of["lines"].get(str(mistake.path), ())
    )
    # One after the other: most are noticed by the quickest.
    return "killed" if any(bench.notices(mistake, [file]) for _, file in running) else "survived"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
