"""Feed hostile inputs to all that reads them: made up, and guided by coverage where atheris is installed."""

import argparse
import importlib.util
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.engines import fuzz, fuzz_guided
from tests.fuzz.stored import fuzz_stored
from tests.fuzz.targets import TARGETS
from tests.support.guarantees import record

STORED_SHARE = 100
"""One input in this many goes through to a database: each takes as long as a hundred that are only read."""


def main() -> int:
    options = _parser().parse_args()
    started = time.monotonic()
    engines = 2 if importlib.util.find_spec("atheris") else 1
    share = -(-options.inputs // len(TARGETS) // engines)
    # A process for each, so that the memory of one says nothing about another.
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        pending = [pool.submit(fuzz, target, share, options.seed) for target in TARGETS]
        if engines == 2:
            pending += [pool.submit(fuzz_guided, target, share) for target in TARGETS]
        storing = pool.submit(fuzz_stored, -(-options.inputs // STORED_SHARE), options.seed)
        results = [future.result() for future in pending]
        stored = storing.result()
    broken = [text for result in (*results, stored) for text in result.broken]
    counts: dict[str, object] = {
        "inputs": sum(r.made_up + r.guided for r in results),
        "made up": sum(r.made_up for r in results),
        "guided by coverage": sum(r.guided for r in results),
        "readers": len(TARGETS),
        "requests to a real PostgreSQL": stored.made_up,
        "uncaught exceptions, slow inputs, growth": len(broken),
        "slowest input in ms": round(max(r.slowest_ms for r in results), 1),
        "most growth of memory in MB": round(max(r.growth_mb for r in results), 1),
        "seconds": round(time.monotonic() - started),
    }
    for text in broken[:10]:
        print(text, file=sys.stderr)
    for name, count in counts.items():
        print(f"{name:<42}{count:>12}")
    if options.record is not None:
        record(options.record, counts)
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many in all (100000)")
    parser.add_argument("--seed", type=int, default=0, help="of what is made up (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (one a core)")
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    return parser


if __name__ == "__main__":
    sys.exit(main())
