"""Kill workers of durable functions, the service and the broker: every run ends, and ends right."""

import argparse
import asyncio
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import nats

from tests.support.broker import NatsServer
from tests.support.flow_worker import (
    FLOW,
    NAME,
    Note,
    Notes,
    Order,
    effects,
    end_worker,
    open_journal,
    prepare,
    register,
    start_worker,
)
from tests.support.guarantees import record
from tests.support.patience import PATIENCE_S
from tests.support.postgres import fresh_schema
from tests.support.process import TimerServiceProcess
from timer_client import TimerError, Timers
from timer_client.flows import Flows, RunState

WORKERS = 2
STEPS = ("charge", "book", "ship")
MAX_OPEN = 60
"""Runs that are under way at a time: a worker that is killed has something in hand."""
MAX_SLEEP_MS = 2_000
MAX_LIFE_S = 3.0
MAX_STEPS = 30
"""Every other worker dies in a step, if it gets so far: after its effect, before it is recorded."""
ACK_WAIT_MS = 5_000
CUT_OFF_S = ACK_WAIT_MS / 1000 + 5
"""So long after a kill of the broker a worker may go on with what another has been given."""


@dataclass(slots=True)
class Outcome:
    """What was asked for, and what came of it."""

    runs: int = 0
    ended: dict[str, str] = field(default_factory=dict)
    """The result of each run that has ended."""
    notes: list[Note] = field(default_factory=list)
    transactions: Counter[str] = field(default_factory=Counter)
    killed: dict[int, float] = field(default_factory=dict)
    """Workers, and when they were killed."""
    service_kills: int = 0
    broker_kills: list[float] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return what is recorded."""
        begun = self._begun()
        repeated = [times for times in begun.values() if len(times) > 1]
        without = sum(not self._is_explained(times) for times in repeated)
        return {
            "runs": self.runs,
            "steps": len(begun),
            "kill -9 of a worker": len(self.killed),
            "kill -9 of the service": self.service_kills,
            "kill -9 of the broker": len(self.broker_kills),
            "runs lost": self.runs - len(self.ended),
            "runs with a wrong result": sum(not self._is_right(*each) for each in self.ended.items()),
            "transactions not done exactly once": sum(
                self.transactions[run_id] != 1 for run_id in self.ended
            ),
            "steps repeated after a kill": len(repeated) - without,
            "steps repeated without a kill": without,
        }

    def _begun(self) -> dict[tuple[str, str], list[Note]]:
        begun = defaultdict[tuple[str, str], list[Note]](list)
        for note in sorted(self.notes, key=lambda note: note.at):
            if note.word == "begun":
                begun[note.run_id, note.step].append(note)
        return begun

    def _is_right(self, run_id: str, result: str) -> bool:
        """Return whether each part of a result was said by a worker that did that step to its end."""
        done = {(note.step, note.pid) for note in self.notes if (note.run_id, note.word) == (run_id, "done")}
        parts = [part.split(" by ") for part in result.split(", ")]
        return [step for step, _ in parts] == list(STEPS) and all(
            (step, int(pid)) in done for step, pid in parts
        )

    def _is_explained(self, times: list[Note]) -> bool:
        """Return whether each who did a step before was killed since, or cut off when the broker was."""
        return all(
            self.killed.get(before.pid, after.at) < after.at
            or any(before.at - CUT_OFF_S < at < after.at for at in self.broker_kills)
            for before, after in itertools.pairwise(times)
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of it."""

    runs: int
    worker_kills: int
    service_kills: int
    broker_kills: int


class Site:
    """A broker, a service, a journal and those who work on it, and their deaths."""

    def __init__(self, folder: Path, database: str, plan: Plan, seed: int) -> None:
        self._folder = folder
        self._outcome = Outcome()
        self._notes_path = folder / "notes"
        self._notes = Notes(self._notes_path)
        self._database = database
        self._plan = plan
        self._chance = random.Random(seed)
        self._broker = NatsServer(folder / "broker")
        self._service = TimerServiceProcess(
            folder / "service", broker_url=self._broker.url, db_path=folder / "timers.db", ack_wait=2_000
        )
        self._lives = iter(range(plan.worker_kills))
        self._stack = AsyncExitStack()

    async def run(self) -> Outcome:
        """Start runs all the while, kill one after another, then wait for the last workers to finish."""
        self._folder.mkdir()
        async with self._stack:
            self._stack.callback(self._broker.kill)
            self._broker.start()
            self._stack.callback(self._service.close)
            self._service.start_ready()
            await prepare(self._database)
            flows = await self._flows()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._start_runs(flows))
                tasks.create_task(self._kill(self._plan.service_kills, self._kill_service))
                tasks.create_task(self._kill(self._plan.broker_kills, self._kill_broker))
                for _ in range(WORKERS):
                    tasks.create_task(self._kill_workers())
            await self._until_ended(flows)
        self._outcome.notes = self._notes.read()
        self._outcome.transactions = Counter(await effects(self._database))
        return self._outcome

    async def _flows(self) -> Flows:
        connection = await nats.connect(self._broker.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
        self._stack.push_async_callback(connection.close)
        journal = await self._stack.enter_async_context(open_journal(self._database))
        flows = Flows(Timers(connection, tenant="acme"), journal, name=NAME)
        register(flows, self._notes)
        return flows

    async def _start_runs(self, flows: Flows) -> None:
        outcome = self._outcome
        while outcome.runs < self._plan.runs:
            # The last ones start when the last worker is about to be killed, and not before.
            share = len(outcome.killed) / max(1, self._plan.worker_kills)
            ahead = outcome.runs - share * self._plan.runs
            if ahead > self._plan.runs / 10 or outcome.runs - self._shipped() > MAX_OPEN:
                await asyncio.sleep(0.05)
                continue
            order = Order(
                first_ms=self._chance.randrange(MAX_SLEEP_MS), second_ms=self._chance.randrange(MAX_SLEEP_MS)
            )
            await _start(flows, f"order-{outcome.runs}", order)
            outcome.runs += 1

    def _shipped(self) -> int:
        last = "done", STEPS[-1]
        return len({note.run_id for note in self._notes.read() if (note.word, note.step) == last})

    async def _kill_workers(self) -> None:
        for life in self._lives:
            die_at = self._chance.randint(1, MAX_STEPS) if life % 2 else 0
            life_s = MAX_LIFE_S if die_at else self._chance.random() * MAX_LIFE_S
            worker = self._worker(die_at=die_at)
            self._outcome.killed[worker.pid] = await asyncio.to_thread(_see_die, worker, life_s)
        self._worker()  # It finishes what the others have left.

    def _worker(self, **options: object) -> "subprocess.Popen[str]":
        worker = start_worker(
            self._broker.url,
            "timer",
            "acme",
            self._database,
            self._notes_path,
            ack_wait_ms=ACK_WAIT_MS,
            **options,
        )
        self._stack.callback(end_worker, worker)
        return worker

    async def _kill(self, times: int, kill: Callable[[], Awaitable[None]]) -> None:
        """Do it evenly over all the kills of workers."""
        for number in range(times):
            while len(self._outcome.killed) < (number + 0.5) / times * self._plan.worker_kills:
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._chance.random())
            await kill()

    async def _kill_service(self) -> None:
        await asyncio.to_thread(self._service.kill)
        self._outcome.service_kills += 1
        await asyncio.sleep(self._chance.choice((0.0, 0.2, 1.0)))
        self._service.restart()

    async def _kill_broker(self) -> None:
        await asyncio.to_thread(self._broker.kill)
        self._outcome.broker_kills.append(time.monotonic())
        await asyncio.sleep(self._chance.choice((0.0, 0.2, 1.0)))
        await asyncio.to_thread(self._broker.start)

    async def _until_ended(self, flows: Flows) -> None:
        """Wait for every run, as long as more of them end from time to time."""
        deadline = time.monotonic() + PATIENCE_S
        open_runs = {f"order-{number}" for number in range(self._outcome.runs)}
        while open_runs and time.monotonic() < deadline:
            async for found in flows.list(state=RunState.COMPLETED):
                if found.id in open_runs:
                    self._outcome.ended[found.id] = found.result
                    open_runs.discard(found.id)
                    deadline = time.monotonic() + PATIENCE_S
            await asyncio.sleep(0.5)


async def _start(flows: Flows, run_id: str, order: Order) -> None:
    while True:
        try:
            await flows.start(FLOW, id=run_id, input=order)
        except TimerError:
            await asyncio.sleep(0.1)  # The broker is away; to start it again is the same run.
        else:
            return


def _see_die(worker: "subprocess.Popen[str]", life_s: float) -> float:
    """Kill a worker after so long, or see it kill itself; return when that was."""
    assert worker.stdout is not None
    worker.stdout.readline()
    with suppress(subprocess.TimeoutExpired):
        worker.wait(life_s)
    worker.kill()
    code = worker.wait()
    assert code == -signal.SIGKILL, f"a worker ended by itself with {code}"
    return time.monotonic()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    plan = Plan(options.runs, options.kills, options.kills // 5, options.kills // 10)
    counts: dict[str, int] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        async with fresh_schema() as schema:
            databases = {"SQLite": f"{name}/journal.db", "PostgreSQL": schema}
            outcomes = await asyncio.gather(
                *(
                    Site(Path(name) / kind, database, plan, seed).run()
                    for seed, (kind, database) in enumerate(databases.items())
                )
            )
    for kind, outcome in zip(databases, outcomes, strict=True):
        counts |= {f"{kind}: {what}": count for what, count in outcome.counts().items()}
    counts["seconds"] = round(time.monotonic() - began)
    print("\n".join(f"{name}: {count}" for name, count in counts.items()))
    if options.record:
        record(options.record, dict(counts))
    wrong = ("lost", "wrong result", "exactly once", "without a kill")
    return int(any(count for name, count in counts.items() if name.endswith(wrong)))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
