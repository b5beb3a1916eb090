"""Run many seeds, or a crash at every step, on all cores, and print what came of it."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any, TextIO, TypeVar

from tests.simulation.awaits import Place, all_places
from tests.simulation.clock_seeds import ClockTally, run_clock_seed
from tests.simulation.crashes import (
    STORIES,
    CrashReport,
    crash_everywhere,
    every_crash,
    forgotten,
    steps_of,
    undisturbed,
)
from tests.simulation.flow_seeds import FlowTally, flow_database, run_flow_seed
from tests.simulation.pair import run_pair
from tests.simulation.planted import PLANTED, planted
from tests.simulation.server import postgres
from tests.simulation.world import Tally, run_seed, workshop
from tests.support.guarantees import record
from tests.support.postgres import shared_server_url

Result = tuple[Counter[str], list[str], set[Place]]
AnyTally = TypeVar("AnyTally", Tally, FlowTally, ClockTally)

CRASH_PARTS = 4
CHUNK, PAIR_CHUNK = 25, 5
PAIRED, MOST_PAIRS = 100, 250
"""One in so many seeds is played by two instances on a real PostgreSQL as well, which takes seconds each."""
BESIDE = 10
"""One in so many seeds is played by two workers of durable functions as well, and one by a virtual clock."""
PROGRESS_S = 60.0
PROGRESS = (
    "seeds",
    "seeds of two instances",
    "seeds of durable functions",
    "seeds of the virtual clock",
    "crash scenarios",
)


def main() -> int:
    options = _parser().parse_args()
    if options.story is not None:
        return _tell(options.story, options.of)
    if options.catch is not None:
        return _catch(options.catch, range(options.first, options.first + options.seeds))
    started = time.monotonic()
    work = (
        _crash_work(thorough=options.thorough)
        if options.crashes
        else _seed_work(options.first, options.seeds)
    )
    counts: Counter[str] = Counter()
    broken: list[str] = []
    places: set[Place] = set()
    if not options.crashes:
        # One server for all processes of the pool, which end without cleaning up.
        os.environ["TIMER_TEST_POSTGRES_URL"] = shared_server_url()
    progress = Progress(sys.stderr, time.monotonic)
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(step, *arguments) for step, *arguments in work]):
            chunk, found, killed_at = done.result()
            counts.update(chunk)
            places |= killed_at
            broken.extend(found)
            progress.told(counts, found)
    if options.crashes:
        never = [f"never killed at {place}: {source}" for place, source in forgotten(places).items()]
        progress.told(counts, never)
        broken.extend(never)
        counts["places where the service can wait"] = len(all_places())
        counts["of these, killed at"] = len(places & all_places().keys())
    counts["violations"] = len(broken)
    counts["seconds"] = round(time.monotonic() - started)
    _print(counts, broken, as_json=options.json)
    if options.record is not None:
        record(options.record, dict(counts))
    return 1 if broken else 0


class Progress:
    """Says what was found at the moment at which it is found, and now and then how far the run is.

    So a run that is stopped has told what it did; its counts are kept only if it ends.
    """

    def __init__(self, out: TextIO, elapsed_s: Callable[[], float]) -> None:
        self._out = out
        self._elapsed_s = elapsed_s
        self._started_s = self._told_s = elapsed_s()
        self._found = 0

    def told(self, counts: Counter[str], found: Iterable[str]) -> None:
        """Take what is counted by now, and what was found since."""
        for line in found:
            self._found += 1
            print(line, file=self._out, flush=True)
        now_s = self._elapsed_s()
        if now_s - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            done = ", ".join(f"{counts[name]:,} {name}" for name in PROGRESS if counts[name])
            text = f"after {(now_s - self._started_s) / 60:.0f} min: {done}, {self._found} violations"
            print(text, file=self._out, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--crashes", action="store_true", help="instead: crash at every step in every way")
    parser.add_argument("--thorough", action="store_true", help="with --crashes: in all ways at each step")
    parser.add_argument("--story", type=int, metavar="SEED", help="instead: tell the story of one seed")
    parser.add_argument("--of", choices=STORY_OF, default="service", help="with --story: whose seed it is")
    parser.add_argument("--catch", metavar="BUG", choices=PLANTED, help="instead: find where a bug shows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (one a core)")
    parser.add_argument("--record", metavar="COMMAND", help="keep the counts as those of this command")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


def _seed_work(first: int, seeds: int) -> Iterator[tuple[Any, ...]]:
    for start in range(first, first + seeds, CHUNK):
        yield run_seeds, start, min(start + CHUNK, first + seeds)
    pairs = min(-(-seeds // PAIRED), MOST_PAIRS)
    for start in range(first, first + pairs, PAIR_CHUNK):
        yield run_pairs, start, min(start + PAIR_CHUNK, first + pairs)
    beside = -(-seeds // BESIDE)
    for start in range(first, first + beside, CHUNK):
        yield run_flows, start, min(start + CHUNK, first + beside)
        yield run_clocks, start, min(start + CHUNK, first + beside)


def _crash_work(*, thorough: bool) -> Iterator[tuple[Any, ...]]:
    for story in STORIES:
        for part in range(CRASH_PARTS):
            yield _run_crashes, story, part, thorough


def run_seeds(start: int, end: int, run: Callable[..., Tally] = run_seed) -> Result:
    with workshop() as shop:
        return _run_all("seed", range(start, end), lambda seed: run(seed, *shop), _counts, Tally)


def run_pairs(start: int, end: int) -> Result:
    with postgres() as server:
        run = partial(run_pair, postgres=server)
        return _run_all("pair", range(start, end), run, _pair_counts, Tally)


def run_flows(start: int, end: int) -> Result:
    with flow_database() as database:
        run = partial(run_flow_seed, database=database)
        return _run_all("flows", range(start, end), run, _flow_counts, FlowTally)


def run_clocks(start: int, end: int) -> Result:
    return _run_all("clock", range(start, end), run_clock_seed, _clock_counts, ClockTally)


def _run_all(
    kind: str,
    seeds: Iterable[int],
    run: Callable[[int], AnyTally],
    counts_of: Callable[[AnyTally], dict[str, int]],
    nothing: Callable[[int], AnyTally],
) -> Result:
    counts: Counter[str] = Counter()
    broken: list[str] = []
    for seed in seeds:
        try:
            tally = run(seed)
        except Exception as error:
            # One that breaks the simulation itself is a finding too, and hides none of the others.
            broken.append(f"{kind} {seed} raises {type(error).__name__}: {error}")
            counts.update(counts_of(nothing(seed)))
            continue
        counts.update(counts_of(tally))
        if tally.violations:
            moment, invariant, text = tally.violations[0]
            broken.append(f"{kind} {seed} at {moment:.3f} s: {invariant} {text}")
    return counts, broken, set()


def _run_crashes(story: str, part: int, thorough: bool) -> Result:
    report = CrashReport()
    with workshop() as shop:
        crashes = every_crash(steps_of(story, *shop), thorough=thorough)
        points = [point for point in crashes if point.step % CRASH_PARTS == part]
        crash_everywhere(story, iter(points), *shop, report)
    broken = [f"{story}, {point}: {tally.violations[0]}" for story, point, tally in report.failures]
    return Counter({"crash scenarios": report.scenarios}), broken, report.places


def _counts(tally: Tally) -> dict[str, int]:
    return {
        "seeds": 1,
        "virtual seconds": round(tally.virtual_s),
        "steps": tally.steps,
        "timers": tally.counts.timers,
        "commands": tally.counts.commands,
        "refused messages": tally.counts.refused,
        "requests": tally.counts.requests,
        "events": tally.counts.fired,
        "events published again": tally.counts.published_again,
        "crashes": tally.crashes,
        "other restarts": tally.restarts,
        "outages": tally.outages,
        "faults": tally.faults,
        "store errors": tally.store_errors,
    }


def _pair_counts(tally: Tally) -> dict[str, int]:
    return {
        "seeds of two instances": 1,
        "their events": tally.counts.fired,
        "their events published again": tally.counts.published_again,
        "their crashes": tally.crashes,
        "their faults": tally.faults,
    }


def _flow_counts(tally: FlowTally) -> dict[str, int]:
    return {
        "seeds of durable functions": 1,
        "their runs": tally.runs,
        "workers killed": tally.crashes,
        "workers overtaken": tally.overtaken,
        "faults around workers": tally.faults,
    }


def _clock_counts(tally: ClockTally) -> dict[str, int]:
    return {
        "seeds of the virtual clock": 1,
        "times it was moved": tally.moves,
        "events at these": tally.events,
        "reactions to them": tally.reactions,
        "callbacks on that clock": tally.callbacks,
    }


def _tell(seed: int, of: str) -> int:
    tally = STORY_OF[of](seed)
    print("\n".join(tally.story))
    print(f"trace {tally.trace_hash}, {len(tally.violations)} violations")
    return 1 if tally.violations else 0


def _of_service(seed: int) -> Tally:
    with workshop() as shop:
        return run_seed(seed, *shop, verbose=True)


def _of_flows(seed: int) -> FlowTally:
    with flow_database() as database:
        return run_flow_seed(seed, database)


STORY_OF: dict[str, Callable[[int], Tally | FlowTally | ClockTally]] = {
    "service": _of_service,
    "flows": _of_flows,
    "clock": run_clock_seed,
}


def _catch(bug: str, seeds: Iterable[int]) -> int:
    """Name the first story or seed in which a planted bug breaks an invariant."""
    with workshop() as shop, planted(bug):
        story = next((story for story in STORIES if undisturbed(story, *shop).violations), None)
        found = story or next((seed for seed in seeds if run_seed(seed, *shop).violations), None)
    print("not caught" if found is None else f"caught by {found!r}")
    return 1 if found is None else 0


def _print(counts: Counter[str], broken: list[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**counts, "broken": broken}))
        return
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"{name:<{width}}  {count:>15,}")


if __name__ == "__main__":
    sys.exit(main())
