"""APScheduler 3 in one process: no bus, no subscriber, the job itself notes how late it runs.

Behind a flag: `pip install 'apscheduler<4' sqlalchemy`. Measured with its job store in memory (a restart
loses every timer) and on SQLite (each job pickled, one transaction a job).
"""

import asyncio
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from bench import limits
from bench.harness import NotMeasured, check_in_time, now_ms
from bench.report import Figure
from bench.workloads import Bench, lateness_figures

LEAD_MS: Final = 2_000
ADD_PER_S: Final = 30
"""Jobs per second that it must at least take before the first is due."""
MEMORY: Final = "memory"
SQLITE: Final = "sqlite"
COUNT: Final = 500
RATES: Final = {MEMORY: 500, SQLITE: 100}
"""Timers per second in the steady part; more would only measure a backlog."""
TIMEOUT_S: Final = 120.0

_arrived: list[tuple[int, float]] = []


async def note(due_ms: int) -> None:
    """Be the job."""
    _arrived.append((due_ms, time.time_ns() / 1_000_000))


async def run(store: str, count: int, per_second: float) -> dict[str, Any]:
    """Add all jobs, then let them run; return the rate of adding and the lateness of each."""
    # Installed only where the flag is used.
    scheduler = importlib.import_module("apscheduler.schedulers.asyncio").AsyncIOScheduler(timezone=UTC)
    if store != MEMORY:
        scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{store}")
    scheduler.start(paused=True)
    first_due_ms = now_ms() + LEAD_MS + count * 1000 // ADD_PER_S
    started = time.perf_counter()
    for number in range(count):
        due_ms = first_due_ms + int(number * 1000 / per_second)
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        scheduler.add_job(note, "date", run_date=due, args=[due_ms], misfire_grace_time=None)
    taken_s = time.perf_counter() - started
    check_in_time(first_due_ms)
    scheduler.resume()
    deadline = time.monotonic() + TIMEOUT_S
    while len(_arrived) < count and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    lateness = [received_ms - due_ms for due_ms, received_ms in _arrived]
    return {"taken": count / taken_s, "lateness": lateness}


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure a burst and a steady load, on both job stores."""
    if importlib.util.find_spec("apscheduler") is None or importlib.util.find_spec("sqlalchemy") is None:
        raise NotMeasured("pip install 'apscheduler<4' sqlalchemy")
    publish = bench.limits.rate(limits.PLAIN_PUBLISH)
    for store, rate in RATES.items():
        name = f"APScheduler on {store}"
        burst = _in_process(bench, store, float("inf"))
        fired = len(burst["lateness"]) / max(burst["lateness"]) * 1000
        yield Figure("peers", f"{name}: ingest of {COUNT:,}", burst["taken"], "/s")
        yield Figure("peers", f"{name}: burst of {COUNT:,}", fired, "/s", limits.PLAIN_PUBLISH, publish)
        lateness = _in_process(bench, store, rate)["lateness"]
        yield from lateness_figures(bench, "peers", f"{name}: {rate:,}/s", rate, lateness, goals=False)


def _in_process(bench: Bench, store: str, per_second: float) -> dict[str, Any]:
    path = MEMORY if store == MEMORY else str(bench.new_folder().with_suffix(".apscheduler.db"))
    script = [sys.executable, "-m", "bench.peers.apscheduler_jobs", path, str(COUNT), str(per_second)]
    finished = subprocess.run(script, stdout=subprocess.PIPE, check=False)
    if finished.returncode:
        raise NotMeasured("APScheduler failed, or took its jobs too slowly")
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


if __name__ == "__main__":
    # Under its real name: jobs are stored by the name of their function.
    own = importlib.import_module("bench.peers.apscheduler_jobs")
    print(json.dumps(asyncio.run(own.run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
