"""Python queues on the same PostgreSQL: pgqueuer (asyncpg, batches) and procrastinate (psycopg, one by one).

Behind a flag: `--peers postgres`. Each is installed into an environment of its own, which is then removed.
Their jobs are all due and do nothing: there is no broker on the way in, and no event on the way out.
"""

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench import limits
from bench.harness import NotMeasured
from bench.postgres import database, server
from bench.report import Figure, median
from bench.workloads import Bench

PACKAGES: Final = {
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary]==3.3.8"),
}
SCRIPT: Final = Path(__file__).with_name("postgres_worker.py")
TIMEOUT_S: Final = 300.0


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure how fast each takes jobs and runs them."""
    publish = bench.limits.rate(limits.PLAIN_PUBLISH)
    counts = {"pgqueuer": bench.plan.burst[0], "procrastinate": bench.plan.poller_burst}
    for queue, count in counts.items():
        python = _install(bench, queue)
        results = []
        with server() as on:
            for _ in range(bench.plan.repeats):
                with database(on) as url:
                    results.append(_run(python, queue, url, count))
        shutil.rmtree(python.parents[1])
        taken, ran = (median([result[kind] for result in results]) for kind in ("taken", "ran"))
        yield Figure("peers", f"{queue} on PostgreSQL: bulk insert of {count:,}", taken, "/s")
        yield Figure(
            "peers", f"{queue} on PostgreSQL: {count:,} due at once", ran, "/s", limits.PLAIN_PUBLISH, publish
        )


def _install(bench: Bench, queue: str) -> Path:
    folder = bench.new_folder()
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*install, *PACKAGES[queue]], stdout=sys.stderr, check=False).returncode:
        raise NotMeasured(f"{' '.join(PACKAGES[queue])} cannot be installed")
    return python


def _run(python: Path, queue: str, url: str, count: int) -> dict[str, Any]:
    finished = subprocess.run(
        [str(python), str(SCRIPT), queue, url, str(count)],
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    if finished.returncode:
        raise NotMeasured(f"{queue} failed")
    result: dict[str, Any] = json.loads(finished.stdout)
    return result
