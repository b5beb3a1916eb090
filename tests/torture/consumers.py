"""Kill workers of the client at many moments, under load: every firing has its effect exactly once."""

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import nats

from tests.support.broker import NatsServer
from tests.support.guarantees import record
from tests.support.patience import PATIENCE_S
from tests.support.postgres import fresh_schema
from tests.support.process import TimerServiceProcess
from tests.support.worker import effects, prepare, start_worker
from timer_client import Timers

WORKERS = 2
PER_SECOND = 50
MAX_BEHIND = 100
LINES = 40
"""A worker dies after it has said at most this many lines: one as a handler begins, one as it ends.

Every other worker dies at the worst moment instead: a handler has committed, and nothing is acknowledged yet.
"""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    scheduled: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    kills: int = 0

    @property
    def lost(self) -> int:
        return len(self.scheduled - self.done.keys())

    @property
    def doubled(self) -> int:
        return sum(count > 1 for count in self.done.values())


async def kill_workers(
    broker: NatsServer, prefix: str, database: str, *, kills: int, seed: int = 1
) -> Outcome:
    """Have timers fire all the while, kill one worker after another, then let one finish."""
    outcome, chance, tenant = Outcome(), random.Random(seed), f"killed-{seed}"
    lives = iter(range(kills))
    await prepare(database)
    async with await nats.connect(broker.url) as connection, AsyncExitStack() as stack:
        load = asyncio.ensure_future(
            _load(Timers(connection, tenant=tenant, prefix=prefix), database, outcome)
        )
        stack.callback(load.cancel)

        def start(die_at: int = 0) -> "subprocess.Popen[str]":
            worker = start_worker(broker.url, prefix, tenant, database, die_at=die_at)
            stack.callback(_end, worker)
            return worker

        async def one_after_another() -> None:
            for life in lives:
                if life % 2:
                    await asyncio.to_thread(_see_die, start(die_at=chance.randint(1, LINES // 2)))
                else:
                    lines, pause_s = chance.randint(2, LINES), chance.random() / 50
                    await asyncio.to_thread(_kill_after, start(), lines, pause_s)
                outcome.kills += 1

        await asyncio.gather(*(one_after_another() for _ in range(WORKERS)))
        load.cancel()
        start()
        await _until_done(database, outcome)
    outcome.done = Counter(await effects(database))
    return outcome


async def _load(timers: Timers, database: str, outcome: Outcome) -> None:
    """Schedule timers that are due at once, no more of them than workers that keep dying can follow."""
    while True:
        if len(outcome.scheduled) % MAX_BEHIND == 0:
            while len(outcome.scheduled) - len(set(await effects(database))) > MAX_BEHIND:
                await asyncio.sleep(0.1)
        name = f"order-{len(outcome.scheduled)}"
        await timers.schedule(name, timedelta())
        outcome.scheduled.add(name)  # Not earlier: at the end the last one may not have been sent.
        await asyncio.sleep(1 / PER_SECOND)


async def _until_done(database: str, outcome: Outcome) -> None:
    """Wait for every effect, as long as there are more of them from time to time."""
    done, deadline = 0, time.monotonic() + PATIENCE_S
    while done < len(outcome.scheduled) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        found = len(set(await effects(database)))
        if found > done:
            done, deadline = found, time.monotonic() + PATIENCE_S


def _kill_after(worker: "subprocess.Popen[str]", lines: int, pause_s: float) -> None:
    assert worker.stdout is not None
    for _ in range(lines):
        if not worker.stdout.readline():
            raise AssertionError(f"the worker ended by itself with {worker.wait()}")
    time.sleep(pause_s)
    _end(worker)


def _see_die(worker: "subprocess.Popen[str]") -> None:
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL, f"the worker ended by itself with {worker.returncode}"


def _end(worker: "subprocess.Popen[str]") -> None:
    worker.kill()
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = NatsServer(folder / "broker").start()
        service = TimerServiceProcess(folder / "service", broker_url=broker.url, db_path=folder / "timers.db")
        try:
            service.start_ready()
            async with fresh_schema() as schema:
                for seed, (kind, database) in enumerate(
                    {"SQLite": str(folder / "effects.db"), "PostgreSQL": schema}.items()
                ):
                    outcome = await kill_workers(broker, "timer", database, kills=options.kills, seed=seed)
                    counts |= {
                        f"{kind}: kill -9 of a worker": outcome.kills,
                        f"{kind}: timers": len(outcome.scheduled),
                        f"{kind}: timers without effect": outcome.lost,
                        f"{kind}: effects done twice": outcome.doubled,
                    }
        finally:
            service.close()
            broker.stop()
    print("\n".join(f"{name}: {count}" for name, count in counts.items()))
    if options.record:
        record(options.record, dict(counts))
    return int(any(count for name, count in counts.items() if name.endswith(("without effect", "twice"))))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
