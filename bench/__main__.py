"""`python -m bench`: measure everything and print one table."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.beside import measure_answers
from bench.callbacks import measure_callbacks
from bench.flows import measure_flows
from bench.harness import NotMeasured
from bench.isolation import measure_isolation
from bench.limits import Limits
from bench.neighbours import measure_neighbours
from bench.page import measure_page
from bench.peers import apscheduler_jobs, nats_schedules, plain_poller, postgres_queues
from bench.plan import FULL, QUICK
from bench.postgres import measure_postgres
from bench.report import Figure, as_json, stolen_share, table, updated
from bench.rest import measure_rest
from bench.scale import measure_polls, measure_scale
from bench.slow_disk import measure_slow_disk
from bench.tenants import measure_tenants
from bench.workloads import (
    Bench,
    measure_batches,
    measure_both,
    measure_burst,
    measure_fairness,
    measure_ingest,
    measure_limits,
    measure_steady,
)

Measure = Callable[[Bench], Iterator[Figure]]

PEERS: Final[dict[str, Measure]] = {
    "nats": nats_schedules.measure,
    "poller": plain_poller.measure,
    "apscheduler": apscheduler_jobs.measure,
    "postgres": postgres_queues.measure,
}
DEFAULT_PEERS: Final = ("nats", "poller")
MAX_STOLEN: Final = 0.03
"""More than that of the processor time, and lateness is that of the neighbours."""


def measure_peers(bench: Bench) -> Iterator[Figure]:
    """Measure the peers asked for."""
    for name in bench.peers:
        yield from PEERS[name](bench)


PARTS: Final[dict[str, Measure]] = {
    # These two measure their limits again and again beside themselves, so the limits are known after them.
    "ingest": measure_ingest,
    "burst": measure_burst,
    "batches": measure_batches,
    "limits": measure_limits,
    "steady": measure_steady,
    "both": measure_both,
    "disk": measure_slow_disk,
    "scale": measure_scale,
    "polls": measure_polls,
    "tenants": measure_tenants,
    "fairness": measure_fairness,
    "neighbours": measure_neighbours,
    "answers": measure_answers,
    "callbacks": measure_callbacks,
    "isolation": measure_isolation,
    "rest": measure_rest,
    "page": measure_page,
    "flows": measure_flows,
    "postgres": measure_postgres,
    "peers": measure_peers,
}


def main() -> int:
    """Run the parts asked for, tell the progress on stderr, print the table on stdout."""
    options = _parser().parse_args()
    plan = QUICK if options.quick else FULL
    if options.pending:
        plan = plan.with_pending(options.pending)
    parts = [part for part in PARTS if not options.only or part in options.only]
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    options.dir.mkdir(parents=True, exist_ok=True)
    started, times = time.monotonic(), processor_times()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as name:
        folder = Path(name).resolve()
        bench = Bench(folder, plan, Limits(folder, plan), options.log_level, options.peers)
        for part in parts:
            figures += _measured(part, bench, missing)
    figures.sort(key=lambda figure: figure.part != "limits")
    print(table(figures))
    print("\nWhere it must stand:\n")
    print(table([figure for figure in figures if figure.goal]))
    for part, reason in missing.items():
        print(f"{part}: not measured: {reason}")
    stolen = stolen_share(times, processor_times())
    if stolen > MAX_STOLEN:
        print(
            f"Others had {stolen:.0%} of this machine's processor time: measure again before you keep this."
        )
    run = {
        "plan": "quick" if options.quick else "full",
        "parts": parts,
        "peers": list(options.peers),
        "log_level": options.log_level,
        "seconds": round(time.monotonic() - started),
        "load_before": os.getloadavg()[2],
        "stolen": round(stolen, 3),
    }
    if options.json:
        results = as_json(figures, run)
        if options.update and options.json.exists():
            results = updated(json.loads(options.json.read_text("utf-8")), results)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if {figure.part for figure in figures} == set(parts) else 1


def processor_times() -> list[int]:
    """Return what the processors of this machine have spent so far, by kind: the first line of /proc/stat."""
    return [int(each) for each in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:]]


def _measured(part: str, bench: Bench, missing: dict[str, str]) -> Iterator[Figure]:
    started = time.monotonic()
    try:
        for figure in PARTS[part](bench):
            _tell(f"{part}: {figure.name}: {figure.value:,.3f} {figure.unit}")
            yield figure
    except NotMeasured as reason:
        missing[part] = str(reason)
        _tell(f"{part}: NOT MEASURED: {reason}")
    _tell(f"{part}: took {time.monotonic() - started:.0f} s")


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test, not a measurement")
    parser.add_argument("--only", type=_names(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--pending", type=int, help="one more number of pending timers, such as 10000000")
    parser.add_argument(
        "--peers", type=_names(PEERS), default=DEFAULT_PEERS, help=f"some of {','.join(PEERS)} (nats,poller)"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--update", action="store_true", help="keep what the file has of other parts")
    parser.add_argument("--log-level", default="warning", help="of the service (%(default)s)")
    parser.add_argument(
        "--dir", type=Path, default=Path("build"), help="on a real disk, not in memory (%(default)s)"
    )
    return parser


def _names(known: dict[str, Measure]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
