"""Workers of durable functions that are stopped, or whose clocks are wrong; `make flow-kills` kills them."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats

from tests.support.broker import NatsServer
from tests.support.clients import PREFIX, start_service
from tests.support.flow_worker import (
    FLOW,
    NAME,
    Note,
    Notes,
    Order,
    end_worker,
    open_journal,
    prepare,
    register,
    start_worker,
)
from tests.support.patience import PATIENCE_S
from tests.torture.flows import CUT_OFF_S, STEPS, Outcome
from timer_client import Timers
from timer_client.flows import Flows, RunState

YEAR_S = 31_536_000
SLEEP_MS = 300

_tenants = (f"flows-{number}" for number in itertools.count(1))


class Office:
    """Workers in processes of their own, on one journal in a file."""

    def __init__(self, broker: NatsServer, folder: Path, stack: AsyncExitStack) -> None:
        self.notes = Notes(folder / "notes")
        self.flows: Flows
        self._place = broker.url, PREFIX, next(_tenants), str(folder / "journal.db"), folder / "notes"
        self._stack = stack

    async def open(self) -> None:
        """Have the service, and what a caller has."""
        url, prefix, tenant, database, _ = self._place
        await prepare(database)
        connection = await self._stack.enter_async_context(await nats.connect(url))
        journal = await self._stack.enter_async_context(open_journal(database))
        self.flows = Flows(Timers(connection, tenant=tenant, prefix=prefix), journal, name=NAME)
        register(self.flows, self.notes)

    async def worker(self, **options: object) -> "subprocess.Popen[str]":
        """Start a worker and wait until it is ready."""
        worker = start_worker(*self._place, ack_wait_ms=1_000, **options)
        self._stack.callback(end_worker, worker)
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "ready\n"
        return worker

    async def result(self, run_id: str) -> object:
        """Wait until a run has ended well and return what it returned."""
        async with asyncio.timeout(PATIENCE_S):
            while (run := await self.flows.get(run_id)).state is not RunState.COMPLETED:
                await asyncio.sleep(0.02)
        return run.result


@asynccontextmanager
async def office(broker: NatsServer, folder: Path) -> AsyncIterator[Office]:
    start_service(broker)
    async with AsyncExitStack() as stack:
        opened = Office(broker, folder, stack)
        await opened.open()
        yield opened


async def test_a_worker_that_was_stopped_in_a_step_is_overtaken_and_its_result_is_dropped(
    shared_broker: NatsServer, tmp_path: Path
) -> None:
    async with office(shared_broker, tmp_path) as site:
        stopped = await site.worker(stop_at=1)
        await site.flows.start(FLOW, id="order-1", input=Order())
        await asyncio.to_thread(os.waitpid, stopped.pid, os.WUNTRACED)
        other = await site.worker()
        result = await site.result("order-1")
        stopped.send_signal(signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while (stopped.pid, "done") not in {(note.pid, note.word) for note in site.notes.read()}:
                await asyncio.sleep(0.02)
        stopped.terminate()
        told, _ = await asyncio.to_thread(stopped.communicate)

        assert json.loads(told)["flow.fenced"] == 1
        assert result == await site.result("order-1")
        assert result == ", ".join(f"{step} by {other.pid}" for step in STEPS)


async def test_no_sleep_is_shorter_or_a_year_longer_with_workers_whose_clocks_are_a_year_off(
    shared_broker: NatsServer, tmp_path: Path
) -> None:
    order, runs = Order(first_ms=SLEEP_MS, second_ms=SLEEP_MS), [f"order-{number}" for number in range(8)]
    async with office(shared_broker, tmp_path) as site:
        workers = [await site.worker(clock_off_s=off_s, concurrency=2) for off_s in (YEAR_S, -YEAR_S)]
        for run_id in runs:
            await site.flows.start(FLOW, id=run_id, input=order)
        for run_id in runs:
            await site.result(run_id)

    noted = {(note.run_id, note.step, note.word): note for note in site.notes.read()}
    slept_ms = [
        (noted[run_id, after, "begun"].at - noted[run_id, before, "done"].at) * 1000
        for run_id in runs
        for before, after in itertools.pairwise(STEPS)
    ]
    assert {note.pid for note in noted.values()} == {worker.pid for worker in workers}
    assert min(slept_ms) >= SLEEP_MS


def test_the_counts_find_what_is_lost_wrong_done_twice_or_repeated_without_a_kill() -> None:
    outcome = Outcome(runs=3, killed={1: 5.0}, broker_kills=[100.0])
    outcome.ended = {"a": "charge by 2, book by 2, ship by 2", "b": "charge by 3, book by 2, ship by 2"}
    outcome.transactions = Counter(a=1, b=2)
    outcome.notes = [
        *(Note(10.0, 2, word, "a", step) for step in STEPS[1:] for word in ("begun", "done")),
        *(Note(10.0, 2, word, "b", step) for step in STEPS for word in ("begun", "done")),
        *(Note(1.0, 1, "begun", "a", "charge"), Note(6.0, 2, "begun", "a", "charge")),
        Note(6.0, 2, "done", "a", "charge"),
        *(Note(20.0, 2, "begun", "c", "charge"), Note(30.0, 3, "begun", "c", "charge")),
        *(Note(101.0, 2, "begun", "c", "book"), Note(105.0, 3, "begun", "c", "book")),
        *(Note(100.0 + CUT_OFF_S, 2, "begun", "c", "ship"), Note(130.0, 3, "begun", "c", "ship")),
    ]

    counts = outcome.counts()

    assert counts["runs lost"] == 1
    assert counts["runs with a wrong result"] == 1
    assert counts["transactions not done exactly once"] == 1
    assert counts["steps repeated after a kill"] == 2
    assert counts["steps repeated without a kill"] == 2
