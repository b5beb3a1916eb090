"""Durable functions of the client, by workers in processes of their own, on one journal in SQLite."""

import asyncio
import itertools
import json
import queue
import shutil
import sqlite3
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import nats

from bench import flow_worker, rows
from bench.flow_worker import HOLD, NAME, NAP, READY, SPAN, TENANT, Working
from bench.harness import STOP_TIMEOUT_S, NotMeasured, check_in_time, now_ms, rig
from bench.messages import iso
from bench.report import Figure, Goal, median, percentile
from bench.workloads import DRAIN_TIMEOUT_S, Bench
from timer_client import Timers
from timer_client.flows import Flows, SqliteJournal

PART: Final = "flows"
WORKERS: Final = 2
AT_A_TIME: Final = 100
START_PER_S: Final = 250
"""Runs per second that must at least be asleep before the first is woken."""
ACK_WAIT_S: Final = 2.0
IDLE_RUNS: Final = 500
SPANS: Final = 100
SPANS_AT_A_TIME: Final = 4
"""Few, so that what is measured is the sleep and not a queue."""
YEAR_S: Final = 31_536_000

WAKES_GOAL: Final = Goal(500, 1_000, at_least=True)
LATENESS_GOALS: Final = {"p50": Goal(10, 5), "p99": Goal(60, 25)}
FLAT: Final = Goal(1.2, 1.1, of="ratio")
RECOVERY_GOAL: Final = Goal(ACK_WAIT_S + 1, ACK_WAIT_S + 0.2)
STOP_GOAL: Final = Goal(1, 0.5)
OFF_GOAL: Final = Goal(50, 25)

_SCOPE: Final = f"{TENANT}/{NAME}"
_ASLEEP: Final = """
SELECT count(*) FROM flow_steps WHERE scope = ? AND run_id >= 'run-' AND run_id < 'run.' AND done = 0"""
_COMPLETED: Final = """
SELECT count(*) FROM flow_runs WHERE scope = ? AND id >= 'run-' AND id < 'run.' AND state = 'Completed'"""
_RUN: Final = """
INSERT INTO flow_runs (scope, id, flow, version, state, input, epoch, due_ms)
VALUES (?, ?, 'nap', 1, 'Sleeping', '0', 1, ?)"""
_STEP: Final = """
INSERT INTO flow_steps (scope, run_id, name, kind, wake, due_ms, done)
VALUES (?, ?, 'nap', 'sleep', 1, ?, 0)"""


def measure_flows(bench: Bench) -> Iterator[Figure]:
    """Measure wake-ups, their lateness with few and many runs asleep, recovery, and the end of a worker."""
    plan = bench.plan
    rates = [_burst(bench, plan.flow_burst) for _ in range(plan.repeats)]
    name = f"{WORKERS} workers, {plan.flow_burst:,} runs due at one instant"
    yield Figure(PART, name, median(rates), "wakes/s", goal=WAKES_GOAL)
    yield from _lateness(bench)
    recovered = [_recovery_s(bench) for _ in range(plan.repeats)]
    name = f"kill -9 of a worker to the same step in another, ack_wait {ACK_WAIT_S:g} s"
    yield Figure(PART, name, max(recovered), "s", goal=RECOVERY_GOAL)
    name = f"SIGTERM of a worker to its end, {IDLE_RUNS} runs asleep"
    yield Figure(PART, name, max(_stop_s(bench) for _ in range(plan.repeats)), "s", goal=STOP_GOAL)
    off_ms = _spans_off_ms(bench)
    name = f"workers a year fast and a year slow: error of a sleep of {flow_worker.SPAN_MS / 1000:g} s, p99"
    yield Figure(PART, name, percentile([abs(off) for off in off_ms], 0.99), "ms", goal=OFF_GOAL)


def _burst(bench: Bench, count: int) -> float:
    """Return how many functions per second go on that are all due at one instant."""
    with _site(bench) as site:
        due_ms = now_ms() + 5_000 + count * 1_000 // START_PER_S
        late_ms = site.naps([due_ms] * count)
    return count / max(late_ms) * 1000


def _lateness(bench: Bench) -> Iterator[Figure]:
    """Measure in turns, few and many and few again; the median of the turns counts."""
    rate, many = bench.plan.flow_rate, bench.plan.flow_sleeping
    turns = defaultdict[int, list[list[float]]](list)
    databases = {0: None, many: _asleep(bench, many)}
    for _ in range(bench.plan.repeats):
        for sleeping, database in databases.items():
            with _site(bench, database) as site:
                count = int(rate * bench.plan.flow_s)
                first_ms = now_ms() + 5_000 + count * 1_000 // START_PER_S
                turns[sleeping].append(site.naps([first_ms + n * 1_000 // rate for n in range(count)]))
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        few, beside = (
            median([percentile(turn, share) for turn in turns[sleeping]]) for sleeping in databases
        )
        name = f"due to function running at {rate}/s"
        yield Figure(PART, f"{name}: {label}", few, "ms", goal=LATENESS_GOALS[label])
        name = f"{name} beside {many:,} sleeping runs: {label}"
        yield Figure(PART, name, beside, "ms", "without them", few, FLAT)
    for path in (path for pair in databases.values() if pair for path in pair):
        rows.remove(path)


def _recovery_s(bench: Bench) -> float:
    """Kill the worker that has a step in hand; return how long it takes until another has it."""
    with _site(bench, ack_wait_s=ACK_WAIT_S) as site:
        site.start(HOLD, [None])
        holder = int(site.said())
        began = time.monotonic()
        site.kill(holder)
        assert int(site.said()) != holder
        return time.monotonic() - began


def _stop_s(bench: Bench) -> float:
    with _site(bench) as site:
        site.start(NAP, [now_ms() + rows.DAY_MS] * IDLE_RUNS)
        site.until(_ASLEEP, IDLE_RUNS)
        began = time.monotonic()
        site.end()
        return time.monotonic() - began


def _spans_off_ms(bench: Bench) -> list[float]:
    with _site(bench, clocks_off_s=(YEAR_S, -YEAR_S)) as site:
        site.start(SPAN, [None] * SPANS, at_a_time=SPANS_AT_A_TIME)
        site.until(_COMPLETED, SPANS)
        return site.end()


class Site:
    """A service, a journal and the workers on it."""

    def __init__(self, url: str, journal: Path, ack_wait_s: float, clocks_off_s: Sequence[int]) -> None:
        self._url = url
        self._journal = journal
        self._lines: queue.Queue[str] = queue.Queue()
        self._workers = [
            subprocess.Popen(
                flow_worker.arguments(Working(url, str(journal), ack_wait_s, off_s)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
            for off_s in clocks_off_s
        ]
        for worker in self._workers:
            threading.Thread(target=self._read, args=(worker.stdout,), daemon=True).start()
        for _ in self._workers:
            assert self.said() == READY

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.put(line.strip())

    def said(self) -> str:
        """Return the next line that any worker says."""
        try:
            return self._lines.get(timeout=DRAIN_TIMEOUT_S)
        except queue.Empty:
            raise NotMeasured("no worker has said anything for too long") from None

    def start(self, flow: str, inputs: Sequence[Any], *, at_a_time: int = AT_A_TIME) -> None:
        """Start a run for each input."""
        asyncio.run(self._start(flow, inputs, at_a_time))

    async def _start(self, flow: str, inputs: Sequence[Any], at_a_time: int) -> None:
        numbered = enumerate(inputs)
        async with await nats.connect(self._url) as connection:
            with closing(SqliteJournal(self._journal)) as journal:
                flows = Flows(Timers(connection, tenant=TENANT), journal, name=NAME)
                flow_worker.define(flows, [])
                while batch := list(itertools.islice(numbered, at_a_time)):
                    await asyncio.gather(*(flows.start(flow, id=f"run-{n}", input=each) for n, each in batch))

    def naps(self, due_ms: Sequence[int]) -> list[float]:
        """Have as many runs sleep until then; return how late each function went on, in ms."""
        self.start(NAP, due_ms)
        self.until(_ASLEEP, len(due_ms))
        check_in_time(min(due_ms))
        self.until(_COMPLETED, len(due_ms))
        return self.end()

    def until(self, question: str, count: int) -> None:
        """Wait until the journal gives this answer."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        with closing(sqlite3.connect(self._journal)) as link:
            while (found := link.execute(question, (_SCOPE,)).fetchone()[0]) < count:
                if time.monotonic() > deadline:
                    raise NotMeasured(f"only {found} of {count} runs came so far")
                time.sleep(0.1)

    def kill(self, pid: int) -> None:
        """End a worker with kill -9."""
        [worker] = [worker for worker in self._workers if worker.pid == pid]
        worker.kill()
        worker.wait(STOP_TIMEOUT_S)

    def end(self) -> list[float]:
        """End all workers in order; return what they have noted."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(STOP_TIMEOUT_S)
        return [number for _ in self._workers for number in json.loads(self.said())]

    def close(self) -> None:
        """End whatever still runs."""
        for worker in self._workers:
            worker.kill()
            worker.wait(STOP_TIMEOUT_S)


@contextmanager
def _site(
    bench: Bench,
    databases: tuple[Path, Path] | None = None,
    *,
    ack_wait_s: float = 30.0,
    clocks_off_s: Sequence[int] = (0,) * WORKERS,
) -> Iterator[Site]:
    """Set up everything, on copies of a journal and a store or on new ones."""
    source, store = databases or (None, None)
    with rig(bench.new_folder(), log_level=bench.log_level, database=store) as parts:
        journal = parts.folder / "journal.db"
        if source is not None:
            shutil.copyfile(source, journal)
        asyncio.run(_migrate(journal))
        parts.service.start_ready()
        with closing(Site(parts.broker.url, journal, ack_wait_s, clocks_off_s)) as site:
            yield site


def _asleep(bench: Bench, count: int) -> tuple[Path, Path]:
    """Write a journal and a store with as many sleeping runs and their timers."""
    journal, store = (bench.new_folder().with_suffix(".db") for _ in range(2))
    asyncio.run(_migrate(journal))
    due_ms = [now_ms() + rows.DAY_MS + n * 997 % (30 * rows.DAY_MS) for n in range(count)]
    with closing(sqlite3.connect(journal, isolation_level=None)) as link:
        link.execute("PRAGMA synchronous = OFF")
        link.execute("BEGIN")
        link.executemany(_RUN, ((_SCOPE, f"asleep-{n}", due) for n, due in enumerate(due_ms)))
        link.executemany(_STEP, ((_SCOPE, f"asleep-{n}", due) for n, due in enumerate(due_ms)))
        link.execute("COMMIT")
    registered = iso(now_ms())
    timers = (
        (TENANT, f"flow/{NAME}/asleep-{n}/1/nap", "Scheduled", iso(due), registered, None, None, n)
        for n, due in enumerate(due_ms)
    )
    rows.create(store, timers)
    return journal, store


async def _migrate(path: Path) -> None:
    with closing(SqliteJournal(path)) as journal:
        await journal.migrate()
