"""Crash at every step of workers and journals: every run of a durable function ends with the right result."""

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.awaits import Place, all_places
from tests.simulation.flow_databases import DATABASES, Database
from tests.simulation.flow_process import PACKAGE
from tests.simulation.flow_story import Plan, Seen, tell
from tests.support.guarantees import record

WATCHED = ("flows.py", "journal.py", "postgres.py", "reconcile.py", "run.py", "sqlite.py", "worker.py")
OVERTAKEN_FOR = (4, 30, 40, 50, 70)
"""Another worker takes some thirty steps to begin."""


def every_plan(seen: Seen, *, loses_event: bool) -> Iterator[Plan]:
    """Yield all that can go wrong in a story of so many steps."""
    for step in range(1, len(seen) + 1):
        yield Plan(step, False, loses_event)
        if not loses_event:
            yield Plan(step, True)
            yield Plan(step, overtaken_for=OVERTAKEN_FOR[step % len(OVERTAKEN_FOR)])
            yield Plan(step, stops=True)
        if step % 3 == 0:
            yield Plan(step, True, loses_event, again_in=1 + step % 101)


def many_plans(seen: Seen, *, loses_event: bool) -> Iterator[Plan]:
    """Yield something for every fifth step, one way after another."""
    return itertools.islice(_in_turn(len(seen), loses_event=loses_event), 4, None, 5)


def some_plans(met: set[Place], seen: Seen, *, loses_event: bool) -> Iterator[Plan]:
    """Yield something wherever the process waits at a place that was not met before."""
    for places, plan in zip(seen, _in_turn(len(seen), loses_event=loses_event), strict=True):
        if places - met:
            yield plan
        met |= places


def _in_turn(steps: int, *, loses_event: bool) -> Iterator[Plan]:
    """Yield what goes wrong at each step, one way after another."""
    for step in range(1, steps + 1):
        if loses_event or step % 4 < 2:
            yield Plan(step, step % 2 == 0, loses_event)
        elif step % 4 == 2:
            yield Plan(step, overtaken_for=OVERTAKEN_FOR[step % len(OVERTAKEN_FOR)])
        else:
            yield Plan(step, stops=True)


PLANS: dict[str, Callable[..., Iterator[Plan]]] = {
    "memory": many_plans,
    "sqlite": every_plan,
    "postgres": many_plans,
}
"""What `make flow-crashes` does to each: memory is SQLite without a disk, a real server takes its time."""


@dataclass
class Report:
    """What came of a set of scenarios."""

    counts: Counter[str] = field(default_factory=Counter)
    places: set[Place] = field(default_factory=set)
    """Where a process was when it died."""
    broken: list[str] = field(default_factory=list)


@contextmanager
def opened(kind: str) -> Iterator[Database]:
    """Open a database, on a disk that waits for nothing where there is one."""
    shm = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder,
        DATABASES[kind](Path(folder)) as database,
    ):
        yield database


def crash(
    kind: str, plans: Callable[..., Iterable[Plan]], report: Report, share: int = 0, shares: int = 1
) -> None:
    """Tell the story with everything that is planned, or with one share of it."""
    with opened(kind) as database:
        for loses_event in (False, True):
            whole = Plan(loses_event=loses_event)
            world = tell(database, whole)
            report.broken += [f"{kind}, {whole}: {problem}" for problem in world.problems]
            for plan in itertools.islice(plans(world.seen, loses_event=loses_event), share, None, shares):
                world = tell(database, plan)
                report.places |= world.places
                report.counts[f"{kind}: crash scenarios"] += 1
                report.broken += [f"{kind}, {plan}: {problem}" for problem in world.problems]


NEVER_KILLED = {
    ("postgres.py", "_ONE_AT_A_TIME"): "the tables are there",
    ("postgres.py", "async with self._transaction() as connection:"): "the same, where it is that of migrate",
    ("postgres.py", "migrate()"): "the same",
    ("sqlite.py", "migrate()"): "the same",
    ("postgres.py", "settle(work, connection.fetch)"): "only on a connection of the caller's",
    ("sqlite.py", "settle(work, partial(_fetch, connection))"): "the same",
    ("sqlite.py", "(await cursor).fetchall()"): "the same",
    ("sqlite.py", "asyncio.wait({job})"): "only where it is cancelled",
}
"""Where nobody is killed, each with the reason."""


def forgotten(places: set[Place]) -> dict[Place, str]:
    """Return every place at which a worker can wait and was not killed."""
    return {
        place: source
        for place, source in all_places(PACKAGE, WATCHED).items()
        if place not in places
        if not any(place.module == module and text in source for module, text in NEVER_KILLED)
    }


def _crash_share(kind: str, share: int, shares: int) -> Report:
    report = Report()
    crash(kind, PLANS[kind], report, share, shares)
    return report


def _crash_whole(kinds: Iterable[str]) -> Report:
    """Crash on each journal, with a process for each processor."""
    report, shares = Report(), os.cpu_count() or 1
    with ProcessPoolExecutor(shares, mp_context=multiprocessing.get_context("spawn")) as processes:
        jobs = [
            processes.submit(_crash_share, kind, share, shares) for kind in kinds for share in range(shares)
        ]
        for job in jobs:
            part = job.result()
            report.counts += part.counts
            report.places |= part.places
            report.broken += part.broken
    return report


def main() -> int:
    """Crash everywhere, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", choices=DATABASES, action="append")
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    started = time.monotonic()
    report = _crash_whole(options.journal or DATABASES)
    everywhere = all_places(PACKAGE, WATCHED)
    if not options.journal:
        report.broken += [f"never killed at {place}" for place in forgotten(report.places)]
    counts = report.counts
    counts["places where a worker can wait"] = len(everywhere)
    counts["of these, killed at"] = len(report.places & everywhere.keys())
    counts["violations"] = len(report.broken)
    counts["seconds"] = round(time.monotonic() - started)
    print(*report.broken[:20], *(f"{name}: {number}" for name, number in counts.items()), sep="\n")
    if options.record is not None:
        record(options.record, dict(counts))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
