"""Two workers of durable functions in one world: what a seed chooses happens to them and to their runs."""

import asyncio
import hashlib
import logging
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.flow_databases import SharedSqlite
from tests.simulation.flow_judge import Judge
from tests.simulation.flow_plan import HOUR, RETRIES, Call, Fault, FlowPlan, Move, make_flow_plan
from tests.simulation.flow_process import Process
from tests.simulation.loop import VirtualLoop
from tests.support.flows import Shop
from timer_client.flows import Flows, Run, RunView, StepFailed
from timer_client.flows.reconcile import reconcile
from timer_client.testing import FakeTimers
from timer_client.testing.memory_broker import matches
from timer_client.testing.memory_service import MemoryService

START = datetime.fromisoformat("2026-01-01T12:00:00Z")
WORKERS = 2
TICK_S = 0.001
MAX_TICKS = 400
ACK_WAIT_TICKS = 30
"""After which the broker delivers again whatever is not answered."""
STEPS_S = (0.0, 0.0, 0.002, 0.005)
"""What a step may take: others come in between."""
MAX_TIMES = 600
"""Moments after which a run counts as lost."""


class Stuck(Exception):
    """Nothing goes on any more."""


@dataclass
class FlowTally:
    """What a seed amounted to."""

    seed: int
    trace_hash: str = ""
    violations: list[tuple[float, str, str]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    runs: int = 0
    steps: int = 0
    crashes: int = 0
    faults: int = 0
    overtaken: int = 0
    """How often a worker found that another one had its run."""


class FlowWorld:
    """One seed from its beginning to its end."""

    def __init__(self, plan: FlowPlan, database: SharedSqlite) -> None:
        self.plan = plan
        self.loop = VirtualLoop()
        self.tally = FlowTally(plan.seed, runs=len(plan.runs))
        self.judge = Judge(plan, database)
        self._database = database
        self._random = Random(f"flow-world-{plan.seed}")
        self._service = MemoryService("timer", START)
        self._timers = FakeTimers(service=self._service)
        self._slots: list[Process | None] = [None] * WORKERS
        self._back_at = [0] * WORKERS
        """The tick at which a process is started in the place of one that is gone."""
        self._faults = list(plan.faults)
        self._freezing: list[tuple[Process, int]] = []
        self._thawing: list[tuple[Process, int]] = []
        self._calls = list(plan.calls)
        self._breaks: Counter[str] = Counter()
        self._ticks = 0

    def note(self, text: str) -> None:
        """Take down what has happened."""
        self.tally.story.append(f"{self._service.now:%d %H:%M} {self.loop.steps:5} {text}")

    async def play(self) -> None:
        """Play all of it, and judge what has become of it."""
        await self._database.empty()
        self.loop.before_step = partial(self._at_step, after=False)
        self.loop.after_step = partial(self._at_step, after=True)
        try:
            await self._live()
            self.judge.at_the_end(await self._runs(), self._service.scheduled(self._timers.tenant))
        except Exception as error:
            self.judge.found(f"{type(error).__name__}: {error}")
        self.loop.before_step = self.loop.after_step = None
        for process in self._slots:
            if process is not None:
                process.kill()
        await asyncio.sleep(TICK_S)
        self._database.close()

    async def _live(self) -> None:
        """Let time pass, from one moment at which something happens to the next, until all have ended."""
        await self._settle()
        for _ in range(MAX_TIMES):
            while self._calls and START + self._calls[0].at <= self._service.now:
                call = self._calls.pop(0)
                await asyncio.gather(*(self._call(call, f"caller-{n}") for n in range(call.callers)))
            if self.plan.is_losing or self._random.random() < 0.2:
                await asyncio.gather(*(self._insist(self._reconcile, slot) for slot in range(WORKERS)))
            await self._settle()
            if not self._calls and self.judge.have_ended():
                return
            self._service.now = self._next()
        raise Stuck(f"not ended: {await self._runs()}")

    def _next(self) -> datetime:
        moments = [self._service.now + HOUR / 5 if self.plan.is_losing else self._service.now + HOUR]
        if (at := self._service.next_at()) is not None:
            moments.append(at)
        moments += [START + call.at for call in self._calls[:1]]
        return max(self._service.now, min(moments))

    async def _call(self, call: Call, caller: str) -> None:
        work: dict[str, Callable[[Flows], Awaitable[bool]]] = {
            "start": lambda flows: flows.start("planned", id=call.run, input=self._moves_of(call.run)),
            "signal": lambda flows: flows.signal(call.run, call.signal, by=caller),
            "cancel": lambda flows: flows.cancel(call.run),
        }
        answer = await self._insist(work[call.what], self._random.randrange(WORKERS))
        self.note(f"{caller}: {call.what} {call.run} {call.signal}: {answer}")
        self.judge.answered(call, caller, counts=answer)

    def _moves_of(self, run_id: str) -> list[Move]:
        return next(run.moves for run in self.plan.runs if run.id == run_id)

    async def _reconcile(self, flows: Flows) -> None:
        process = next(each for each in self._slots if each is not None and each.flows is flows)
        if process.worker is not None:
            await reconcile(process.worker)

    async def _runs(self) -> list[RunView]:
        async def listed(flows: Flows) -> list[RunView]:
            return [await flows.get(run.id) async for run in flows.list()]

        found: list[RunView] = await self._insist(listed, 0)
        return found

    # The processes.

    async def _settle(self) -> None:
        """Wait until nobody has anything to do at this moment."""
        for tick in range(1, MAX_TICKS):
            self._service.fire_due()
            await self._tick()
            is_whole = all(process is not None and not process.frozen for process in self._slots)
            if is_whole and not self._service.broker.at_work():
                return
            if tick % ACK_WAIT_TICKS == 0:
                self._deliver_again()
        raise Stuck(f"{self._service.broker.at_work()} do not end")

    async def _tick(self) -> None:
        """Let the processes go on, and start those that are due."""
        for slot in range(WORKERS):
            process = self._slots[slot]
            if process is not None and process.main.done() and not process.dead:
                self._ended(process)
            if process is not None and process.dead:
                self._slots[slot] = process = None
            if process is None and self._ticks >= self._back_at[slot]:
                self.note(f"worker {slot} starts")
                self._slots[slot] = self._opened()
        if self._thawing and not self._moves():
            self._thaw(self._thawing.pop(0)[0])
        self._ticks += 1
        await asyncio.sleep(TICK_S)

    def _moves(self) -> bool:
        """Return whether anybody works while another one is frozen."""
        frozen = {id(process) for process, _ in self._thawing}
        return any(process is not None and id(process) not in frozen for process in self._slots) and (
            self._ticks % ACK_WAIT_TICKS != 0
        )

    def _opened(self) -> Process:
        made: list[Process] = []

        def told(event: str, run_id: str, _: object) -> None:
            self.note(f"{event} {run_id}")
            self.tally.overtaken += event == "flow.fenced"
            self.judge.told(event, run_id)

        def define(flows: Flows) -> None:
            self._define(flows, made)

        around = self._service.broker, self._timers
        made.append(Process(self.loop, self._database, *around, define, told, answers_late=False))
        return made[0]

    def _ended(self, process: Process) -> None:
        error = process.main.exception()
        if not process.is_stopping or error is not None:
            self.judge.found(f"a worker ends by itself, or not in order: {error!r}")
        process.kill()

    def _deliver_again(self) -> None:
        """Have the broker deliver again whatever is not answered; who is gone asks for nothing."""
        self.judge.disturbances += 1
        living = [process for process in self._slots if process is not None and not process.dead]
        alive = {inbox for process in living for inbox in process.inboxes}
        for durable in self._service.broker.durables.values():
            for pull in [each for each in durable.pulls if not any(matches(i, each[0]) for i in alive)]:
                durable.pulls.remove(pull)
            durable.pulls.rotate(1)
            durable.pending.extendleft(sorted(durable.unanswered, reverse=True))
            durable.unanswered.clear()
        self._service.broker.at_work()

    async def _insist(self, call: Callable[[Flows], Awaitable[Any]], slot: int) -> Any:
        """Have a caller do something in one of the processes, and again in another if that one is gone."""
        for number in range(MAX_TICKS):
            process = self._slots[(slot + number) % WORKERS]
            if process is None or process.dead or process.frozen:
                await self._tick()
                continue
            task = process.start(_answered(call, process.flows))
            for _ in range(MAX_TICKS):
                if task.done() or process.dead or process.frozen:
                    break
                await self._tick()
            if task.done() and not task.cancelled() and not process.dead:
                return task.result()
        raise Stuck("a caller gets no answer")

    # What goes wrong.

    def _at_step(self, *, after: bool) -> None:
        steps = self.loop.steps
        if after:
            for frozen, until in [each for each in self._thawing if each[1] <= steps]:
                self._thawing.remove((frozen, until))
                self._thaw(frozen)
            for process, lasts in self._freezing[:]:
                self._freeze(process, lasts)
        while (
            self._faults and self._faults[0].step <= steps and (self._faults[0].kind == "kill after") == after
        ):
            self._happen(self._faults.pop(0))

    def _happen(self, fault: Fault) -> None:
        process = self._slots[fault.slot]
        self.note(f"{fault.kind} at worker {fault.slot}")
        self.tally.faults += 1
        self.judge.disturbances += 1
        if fault.kind == "lost timers":
            self._service.timers.clear()
        elif fault.kind == "lost acks":
            for durable in self._service.broker.durables.values():
                durable.pending.extend(sorted(durable.deliveries.keys() - durable.unanswered))
        elif fault.kind == "both have it":
            self._deliver_again()
        elif process is None or process.dead or process.frozen:
            return
        elif fault.kind == "freeze":
            self._freezing.append((process, fault.lasts))
        elif fault.kind == "stop":
            process.stop()
        else:
            self._kill(process, fault)

    def _kill(self, process: Process, fault: Fault) -> None:
        self.tally.crashes += 1
        self._back_at[fault.slot] = self._ticks + fault.lasts % 8
        process.kill()
        if fault.kind == "lost event":
            for durable in self._service.broker.durables.values():
                durable.unanswered.clear()
        else:
            self._deliver_again()

    def _freeze(self, process: Process, lasts: int) -> None:
        """Freeze a process as soon as nobody has to wait for it, and have another worker get what it has."""
        if process.dead:
            self._freezing.remove((process, lasts))
        elif not process.holds_a_lock():
            self._freezing.remove((process, lasts))
            process.freeze()
            self._thawing.append((process, self.loop.steps + lasts))
            self._deliver_again()

    def _thaw(self, process: Process) -> None:
        if not process.dead:
            process.thaw()

    # The durable functions.

    def _define(self, flows: Flows, process: list[Process]) -> None:
        shop = Shop(flows.journal, self._timers)

        async def do(name: str) -> str:
            self.judge.does(name, process[0].worker)
            await asyncio.sleep(self._random.choice(STEPS_S))
            return name

        async def insert(connection: Any, name: str) -> str:
            await shop.insert(connection, name)
            await asyncio.sleep(0)
            return name

        async def fail(name: str) -> None:
            await do(name)
            raise ZeroDivisionError

        async def go(run: Run, moves: list[Move], prefix: str = "") -> list[Any]:
            return [await make(run, prefix, *move) for move in moves]

        async def make(run: Run, prefix: str, kind: str, name: str, more: Any = None) -> Any:
            whole = f"{run.id} {prefix}{name}"
            if kind == "step":
                return await run.step(name, do, whole)
            if kind == "transaction":
                return await run.transaction(name, insert, whole)
            if kind == "fail":
                try:
                    await run.step(name, fail, whole)
                except StepFailed as failure:
                    return failure.kind
            if kind == "gather":
                return await run.gather(
                    **{
                        each: partial(go, moves=inside, prefix=f"{prefix}{each}/")
                        for each, inside in more.items()
                    }
                )
            if kind == "break":
                self._breaks[whole] += 1
                if self._breaks[whole] <= more:
                    raise OSError("it is broken")
                return await run.step(name, do, whole)
            began, told = await run.now(), None
            if kind == "sleep":
                await run.sleep(name, more * HOUR)
            else:
                told = await run.wait(name, timeout=None if more is None else more * HOUR)
            return {"hours": (await run.now() - began) / HOUR, "told": told}

        @flows.flow("planned", retry_delays=[HOUR / 2] * RETRIES)
        async def planned(run: Run, moves: list[Move]) -> list[Any]:
            return await go(run, moves)


async def _answered(call: Callable[[Flows], Awaitable[Any]], flows: Flows) -> Any:
    return await call(flows)


@contextmanager
def flow_database() -> Iterator[SharedSqlite]:
    """Open a file for two workers, on a disk that waits for nothing where there is one."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        yield SharedSqlite(Path(folder))


def run_flow_seed(seed: int, database: SharedSqlite) -> FlowTally:
    """Play what a seed chooses for two workers."""
    logging.getLogger("timer_client").setLevel(logging.CRITICAL)
    world = FlowWorld(make_flow_plan(seed), database)
    world.loop.set_exception_handler(lambda *_: None)  # Tasks of the dead are nobody's any more.
    try:
        world.loop.run_until_complete(world.play())
    finally:
        world.loop.close()
    tally = world.tally
    tally.steps = world.loop.steps
    tally.violations = [(0.0, "flows", problem) for problem in world.judge.problems]
    tally.trace_hash = hashlib.sha256("\n".join(tally.story).encode()).hexdigest()[:16]
    return tally
