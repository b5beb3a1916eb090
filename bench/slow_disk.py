"""The timer service on a slow disk: a delay is added to every sync of its file.

By a small library that is loaded before the C library, if there is a compiler; otherwise by strace, which
can delay the return of a system call. Where neither works, nothing is measured.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import NotMeasured, rig
from bench.report import Figure, Goal, percentile
from bench.workloads import Bench, steady_lateness

PART: Final = "disk"
LATER: Final = Goal(20, 5)
DELAY: Final = "BENCH_SYNC_DELAY_US"

_TIMED_SYNC: Final = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
started = time.perf_counter()
os.fdatasync(file)
print((time.perf_counter() - started) * 1000)
"""

_SHIM: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int later(int result) {
    const char *delay = getenv("BENCH_SYNC_DELAY_US");
    if (delay) usleep((useconds_t)atoi(delay));
    return result;
}
int fsync(int file) { return later(((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file)); }
int fdatasync(int file) { return later(((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file)); }
"""


@dataclass(frozen=True, slots=True)
class _Way:
    """How the service is started so that its syncs are late."""

    settings: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()


def measure_slow_disk(bench: Bench) -> Iterator[Figure]:
    """Measure the same lateness with and without a delay of every sync."""
    rate, delay_ms = bench.plan.rates[0], bench.plan.sync_delay_ms
    folder = bench.new_folder()
    folder.mkdir(parents=True)
    way = _way(folder, delay_ms)
    without = _lateness(bench, rate, _Way())
    slow = _lateness(bench, rate, way)
    name = f"{rate:,}/s with {delay_ms} ms added to every sync"
    for label, share in {"p50": 0.5, "p99": 0.99}.items():
        late, usual = percentile(slow, share), percentile(without, share)
        yield Figure(PART, f"{name}: {label}", late, "ms", "the same without", usual)
        goal = LATER if label == "p99" else None
        yield Figure(PART, f"{name}: {label}, more than without", late - usual, "ms", goal=goal)


def _lateness(bench: Bench, rate: int, way: _Way) -> list[float]:
    with rig(
        bench.new_folder(), log_level=bench.log_level, settings=way.settings, before=way.before
    ) as parts:
        parts.service.start_ready()
        return steady_lateness(parts, rate, bench.plan.slow_s)


def _way(folder: Path, delay_ms: int) -> _Way:
    library = _compiled(folder)
    inject = f"inject=fdatasync,fsync:delay_exit={delay_ms * 1000}"
    ways = [
        *([_Way({"LD_PRELOAD": str(library), DELAY: str(delay_ms * 1000)})] if library else []),
        _Way(before=("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", inject)),
    ]
    for way in ways:
        if _sync_ms(folder, way) >= delay_ms:
            return way
    raise NotMeasured("a slow disk needs a C compiler or strace")


def _sync_ms(folder: Path, way: _Way) -> float:
    """Return how long one sync takes this way; nothing if it does not work."""
    timed = [*way.before, sys.executable, "-c", _TIMED_SYNC, str(folder / "synced")]
    with suppress(OSError):
        done = subprocess.run(timed, env={**os.environ, **way.settings}, check=False, capture_output=True)
        return float(done.stdout or 0)
    return 0.0


def _compiled(folder: Path) -> Path | None:
    """Return the library that delays syncs; nothing where it cannot be made."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, library = folder / "slow_sync.c", folder / "slow_sync.so"
    source.write_text(_SHIM)
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"],
        check=False,
        capture_output=True,
    )
    return None if made.returncode else library
