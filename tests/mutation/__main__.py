"""Make mistakes in the product, one at a time, and see which of them no test notices: `make mutants`."""

import argparse
import functools
import hashlib
import json
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.mutation.bench import ROOT
from tests.mutation.mistakes import Mistake, mistakes
from tests.mutation.tested import Tested
from tests.mutation.trial import Benches, Trial
from tests.support.guarantees import record

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


def modules() -> list[Path]:
    """Return the modules in which mistakes are made."""
    found: list[Path] = []
    for name in MUTATED:
        path = ROOT / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path.relative_to(ROOT) for path in found]


def sample(count: int, seed: int) -> list[Mistake]:
    """Return mistakes by chance: the same for a seed, also where something else was changed meanwhile."""
    return sorted(every(), key=lambda mistake: _drawn(f"{seed} {mistake.name}"))[:count]


@functools.cache
def every() -> list[Mistake]:
    """Return all mistakes that can be made."""
    return [mistake for path in modules() for mistake in mistakes(path, (ROOT / path).read_bytes())]


def _drawn(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def main() -> int:
    """Make the mistakes of a sample and tell which stay unnoticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Tidy up, as after Ctrl-C.
    made = sample(options.count, options.seed)
    with ExitStack() as stack:
        benches = Benches([stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(options.jobs)])
        tested = Tested(_test_files(), modules())
        benches.each(tested.measure, tested.missing)
        outcomes = Trial(tested).of(made, benches)
    counts = Counter(outcomes)
    of = counts["killed"] + counts["survived"]
    told = {
        "mistakes made": sum(counts.values()),
        "explained: they change nothing that anybody could notice": counts["explained"],
        "killed": counts["killed"],
        "survived": counts["survived"],
        "killed, in % of those that change behaviour": round(100 * counts["killed"] / max(of, 1), 1),
    }
    survivors = [m.name for m, outcome in zip(made, outcomes, strict=True) if outcome == "survived"]
    print(json.dumps(told, indent=1), *survivors, sep="\n")
    if options.record:
        record(options.record, told)
    return 0


def _test_files() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for part in TESTED_BY for path in (ROOT / part).glob("test_*.py")
    )


if __name__ == "__main__":
    sys.exit(main())
