"""Two ways to find an input that hurts: making it up, and following the coverage."""

import os
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz import corpus
from tests.fuzz.hostile import hostile
from tests.fuzz.limits import Watch
from tests.fuzz.targets import TARGETS

MOST_GROWTH_MB = 8
"""So much the memory may grow from the first tenth of the inputs to the last."""
WARM_UP = 0.1


@dataclass(slots=True)
class Result:
    """What came of one target."""

    target: str
    made_up: int = 0
    guided: int = 0
    slowest_ms: float = 0.0
    growth_mb: float = 0.0
    broken: list[str] = field(default_factory=list)


def fuzz(target: str, inputs: int, seed: int) -> Result:
    """Feed a target what we make up ourselves."""
    result = Result(target)
    watch, random = Watch(TARGETS[target]), Random(f"{target}-{seed}")
    warm_mb = 0.0
    for number in range(inputs):
        if number == int(inputs * WARM_UP):
            warm_mb = _memory_mb()
        data = hostile(random, target)
        try:
            watch.feed(data)
        except Exception:
            result.broken.append(f"{target}: {data[:300]!r}\n{traceback.format_exc(limit=-3)}")
            corpus.keep(target, [data])
        result.made_up += 1
    result.slowest_ms = watch.slowest_s * 1000
    result.growth_mb = _memory_mb() - warm_mb
    if result.growth_mb > MOST_GROWTH_MB and inputs > 10_000:
        result.broken.append(f"{target}: the memory has grown by {result.growth_mb:.1f} MB")
    return result


def fuzz_guided(target: str, inputs: int) -> Result:
    """Let atheris search for new branches, and keep what has found some."""
    result = Result(target)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        new, known = folder / "new", folder / "known"
        new.mkdir()
        known.mkdir()
        for number, data in enumerate(corpus.load(target)):
            (known / str(number)).write_bytes(data)
        command = [sys.executable, "-m", "tests.fuzz.guided", target, str(new), str(known)]
        options = [f"-runs={inputs}", "-max_len=4096", "-timeout=10", f"-artifact_prefix={folder}/found-"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        result.guided = _runs(done.stderr)
        found = list(folder.glob("found-*"))
        if done.returncode or found:
            shown = [path.read_bytes()[:300] for path in found]
            result.broken.append(f"{target}: {shown}\n{(done.stdout + done.stderr)[-3_000:]}")
        corpus.keep(target, [path.read_bytes() for path in [*new.iterdir(), *found]])
    return result


def _runs(output: str) -> int:
    """Return how many inputs libFuzzer says that it has run."""
    lines = [line.split() for line in output.splitlines() if line.startswith("Done ")]
    return int(lines[-1][1]) if lines else 0


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
