"""Make mistakes in the product, one at a time, and see which of them no test notices: `make mutants`."""

import argparse
import functools
import hashlib
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from tests.mutation.bench import ROOT, Bench
from tests.mutation.explained import EXPLAINED
from tests.mutation.mistakes import Mistake, mistakes
from tests.mutation.tested import Tested
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
FIRST_FILES = 2
"""How many are run at first, then twice as many, and so on: most mistakes are noticed by the quickest."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


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


class Benches:
    """Several copies of the project, each at work on one thing at a time."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._all = [Bench(Path(folder)) for folder in folders]
        self._free = SimpleQueue[Bench]()
        for bench in self._all:
            self._free.put(bench)

    def each(self, work: Callable[[Bench, Asked], Answer], things: Sequence[Asked]) -> list[Answer]:
        """Return what the work gives for each thing, in their order."""

        def do(thing: Asked) -> Answer:
            bench = self._free.get()
            try:
                return work(bench, thing)
            finally:
                self._free.put(bench)

        with ThreadPoolExecutor(len(self._all)) as pool:
            try:
                return list(pool.map(do, things))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for bench in self._all:
                    bench.stop()
                raise


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
        outcomes = benches.each(lambda bench, mistake: _try(bench, mistake, tested), made)
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


def _try(bench: Bench, mistake: Mistake, tested: Tested) -> str:
    if mistake.name in EXPLAINED:
        outcome = "explained"
    else:
        outcome = "killed" if _is_noticed(bench, mistake, tested) else "survived"
    print(
        f"{outcome}: {mistake.path}:{mistake.line}: {mistake.before!r} becomes {mistake.after!r}",
        file=sys.stderr,
        flush=True,
    )
    return outcome


def _is_noticed(bench: Bench, mistake: Mistake, tested: Tested) -> bool:
    running = tested.by(mistake)
    count = FIRST_FILES
    while running:
        now, running = running[:count], running[count:]
        if bench.notices(mistake, [file for _, file in now], sum(s for s, _ in now)):
            return True
        count *= 2
    return False


if __name__ == "__main__":
    sys.exit(main())
