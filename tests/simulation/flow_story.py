"""A story of durable functions that uses all of them, told while something goes wrong."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tests.simulation.awaits import Place
from tests.simulation.flow_databases import Database
from tests.simulation.flow_process import Process
from tests.simulation.loop import VirtualLoop
from tests.support.flows import Shop
from timer_client.flows import Flows, Run, RunState, RunView, StepFailed, statements
from timer_client.flows.reconcile import reconcile
from timer_client.testing import FakeTimers
from timer_client.testing.memory_service import MemoryService

HOUR = timedelta(hours=1)
START = datetime.fromisoformat("2026-01-01T12:00:00Z")
TICK_S = 0.001
MAX_TICKS = 300
MAX_MOVES = 80
"""Moments after which a run counts as lost."""
MAX_LATE, MAX_LATE_AFTER_LOSS = 0.05, 3.0
"""Hours; after the loss of an event its run is late by what the reconciler takes to find it."""
RUNS = ("timed-out", "told-early", "told-late")
FRAGILE, CANCELLED = "fragile", "cancelled"

Seen = list[set[Place]]
"""Where a process was at each of its steps."""


class Stuck(Exception):
    """Nothing goes on any more."""


@dataclass(frozen=True)
class Plan:
    """What goes wrong, and when."""

    step: int | None = None
    after: bool = False
    """Whether the process dies when the step was taken, before it has its result; or ahead of it."""
    loses_event: bool = False
    """Whether the broker loses what the process was at, so that only the reconciler helps."""
    again_in: int | None = None
    """Steps until the next process dies, too."""
    overtaken_for: int | None = None
    """Instead: another worker takes over for so many steps, the first one goes on, then both die."""
    stops: bool = False
    """Instead: it is asked to end, and another one is started."""


@dataclass
class World:
    """One telling of the story."""

    loop: VirtualLoop
    database: Database
    plan: Plan
    done: list[str] = field(default_factory=list)
    """What steps have done."""
    steps: int = 0
    deaths: int = 0
    places: set[Place] = field(default_factory=set)
    """Where processes were when they died."""
    seen: Seen = field(default_factory=list)
    """Where the process was at each step, if nothing goes wrong."""
    problems: list[str] = field(default_factory=list)
    _process: Process | None = None
    _second: Process | None = None
    _second_freezes_at: int = 0
    _is_mended: bool = False

    async def tell(self) -> None:
        """Tell the story to its end."""
        await self.database.empty()
        self.service = MemoryService("timer", START)
        self.timers = FakeTimers(service=self.service)
        self.loop.before_step = partial(self._at_step, after=False)
        self.loop.after_step = partial(self._at_step, after=True)
        try:
            await self._tell()
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")
        self.loop.before_step = self.loop.after_step = None
        for process in (self._process, self._second):
            if process is not None:
                process.kill()
        await asyncio.sleep(TICK_S)

    async def _tell(self) -> None:
        for run_id in (*RUNS, CANCELLED):
            await self._insist(partial(_start, run_id=run_id))
        await self._insist(self._start_fragile)
        await self._settle()
        for run_id in (*RUNS, CANCELLED):
            await self._insist(partial(_go, run_id=run_id))
        await self._settle()
        await self._insist(lambda flows: flows.cancel(CANCELLED))
        await self._insist(lambda flows: flows.signal("told-early", "told", by="ann"))
        await self._move_on(until=START + 1.5 * HOUR)
        await self._restart()
        await self._move_on(until=START + 4.5 * HOUR)
        await self._insist(lambda flows: flows.signal("told-late", "told", by="bob"))
        self._is_mended = True
        await self._insist(lambda flows: flows.retry(FRAGILE))
        await self._move_on(until=None)
        self._judge({run.id: run for run in await self._runs()}, await self._insist(self._effects))

    async def _start_fragile(self, flows: Flows) -> None:
        """Start a run; where only the reconciler helps, its caller dies before it has armed the timer."""
        if self.plan.loses_event:
            await flows.journal.commit(statements.start(flows.scope, FRAGILE, FRAGILE, 1, "null"))
        else:
            await flows.start(FRAGILE, id=FRAGILE)

    async def _restart(self) -> None:
        """End the process in order; the broker has lost its newest answers, or the service its timers."""
        process = await self._alive()
        process.stop()
        for _ in range(MAX_TICKS):
            if process.main.done() or process.dead or process.frozen:
                break
            await asyncio.sleep(TICK_S)
        for durable in self.service.broker.durables.values():
            durable.pending.extend(sorted(durable.deliveries.keys() - durable.unanswered))
        if self.plan.loses_event:
            self.service.timers.clear()

    def _define(self, flows: Flows) -> None:
        """Define the functions of the story, which do everything that such functions can."""
        shop = Shop(flows.journal, self.timers, self.done)

        async def do(name: str) -> str:
            await asyncio.sleep(0)
            return await shop.do(name)

        async def insert(connection: Any, name: str) -> str:
            await shop.insert(connection, name)
            await asyncio.sleep(0)
            return name

        async def fail(name: str) -> None:
            await do(name)
            raise ZeroDivisionError

        async def nap(run: Run, hours: int) -> datetime:
            await run.sleep("nap", hours * HOUR)
            await run.step("up", do, f"{run.id} up after {hours}")
            return await run.now()

        @flows.flow("story")
        async def story(run: Run, _: None) -> dict[str, Any]:
            await run.wait("go")
            await run.step("step", do, f"{run.id} step")
            await run.transaction("first", insert, f"{run.id} first")
            try:
                await run.step("fail", fail, f"{run.id} fail")
            except StepFailed as failure:
                kind = failure.kind
            await run.sleep("nap", HOUR)
            naps = await run.gather(long=partial(nap, hours=3), short=partial(nap, hours=1))
            told = await run.wait("told", timeout=2 * HOUR)
            await run.transaction("last", insert, f"{run.id} last")
            ended = await run.now()
            hours = [(moment - START) / HOUR for moment in (naps["short"], naps["long"], ended)]
            return {"kind": kind, "told": told, "hours": hours}

        @flows.flow(FRAGILE, retry_delays=[HOUR])
        async def fragile(run: Run, _: None) -> str:
            await run.step("begin", do, f"{run.id} begin")
            if not self._is_mended:
                raise OSError("it is broken")
            try:
                await run.gather(nap=partial(nap, hours=100), fail=lambda run: run.step("no", fail, "no"))
            except StepFailed:
                return "mended"
            raise AssertionError

    async def _effects(self, flows: Flows) -> list[str]:
        return await Shop(flows.journal).effects()

    async def _move_on(self, until: datetime | None) -> None:
        """Let time pass until a moment, or until every run has ended."""
        for _ in range(MAX_MOVES):
            if self.service.now >= until if until is not None else await self._have_ended():
                return
            at = self.service.next_at() or self.service.now + HOUR
            if self.plan.loses_event:
                at = self.service.now + HOUR / 5
            self.service.now = max(self.service.now, at if until is None else min(at, until))
            if self.plan.loses_event:
                self.service.fire_due()
                await self._insist(self._reconcile)
            await self._settle()
        raise Stuck(f"not ended: {await self._runs()}")

    async def _reconcile(self, flows: Flows) -> None:
        assert self._process is not None
        if self._process.worker is not None:
            await reconcile(self._process.worker)

    async def _have_ended(self) -> bool:
        return all(run.state not in (RunState.SLEEPING, RunState.RUNNING) for run in await self._runs())

    async def _runs(self) -> list[RunView]:
        async def listed(flows: Flows) -> list[RunView]:
            return [await flows.get(run.id) async for run in flows.list()]

        found: list[RunView] = await self._insist(listed)
        return found

    async def _settle(self) -> None:
        """Wait until nobody has anything to do at this moment."""
        for _ in range(MAX_TICKS):
            await self._alive()
            self.service.fire_due()
            await asyncio.sleep(TICK_S)
            if not self.service.broker.at_work() and self._process is await self._alive():
                return
        raise Stuck(f"{self.service.broker.at_work()} do not end")

    async def _insist(self, call: Callable[[Flows], Awaitable[Any]]) -> Any:
        """Have a caller do something, and again if its process is killed."""
        for _ in range(MAX_TICKS):
            process = await self._alive()
            task = process.start(_answered(call, process.flows))
            for _ in range(MAX_TICKS):
                if task.done() or process.dead or process.frozen:
                    break
                await asyncio.sleep(TICK_S)
            if task.done() and not task.cancelled() and not process.dead:
                return task.result()
        raise Stuck("a caller gets no answer")

    async def _alive(self) -> Process:
        """Return a process that works, after whatever has happened to the one before."""
        process = self._process
        if process is not None and process.frozen:
            await self._overtake(process)
        if process is not None and process.main.done() and not process.dead:
            await self._end(process)
        if process is None or process.dead:
            self._lose(process)
            process = self._process = self._opened()
        return process

    def _opened(self) -> Process:
        return Process(self.loop, self.database, self.service.broker, self.timers, self._define)

    def _lose(self, process: Process | None) -> None:
        """Have the broker notice that a process is gone."""
        broker = self.service.broker
        if process is not None and self.plan.loses_event:
            for durable in broker.durables.values():
                durable.unanswered.clear()
        broker.lose_workers()

    async def _end(self, process: Process) -> None:
        if not process.is_stopping:
            self.problems.append(f"the worker has ended by itself: {process.main.exception()!r}")
        elif process.main.exception() is not None:
            self.problems.append(f"the worker ends with {process.main.exception()!r}")
        process.kill()

    async def _overtake(self, first: Process) -> None:
        """Let another worker have what the first one has; then the first goes on, and both die."""
        self.service.broker.lose_workers()
        self._second_freezes_at = self.steps + (self.plan.overtaken_for or 0)
        second = self._second = self._opened()
        while not second.frozen and self.service.broker.at_work():
            await asyncio.sleep(TICK_S)
        second.frozen = True
        first.thaw()
        for _ in range(20):
            await asyncio.sleep(TICK_S)
        second.kill()
        first.kill()

    def _at_step(self, *, after: bool) -> None:
        plan, process = self.plan, self._process
        assert process is not None
        if not after:
            self.steps += 1
            if plan.step is None:
                self.seen.append(process.places())
        if self._second is not None and after:
            self._freeze(self._second, self._second_freezes_at)
        deadly = plan.step if self.deaths == 0 else (plan.step or 0) + (plan.again_in or 0)
        if deadly is None or process.dead or self.deaths > (plan.again_in is not None):
            return
        if plan.overtaken_for is not None and after:
            self._freeze(process, deadly)
        elif plan.overtaken_for is None and self.steps == deadly and after == plan.after:
            self.deaths += 1
            self.places |= process.places()
            if plan.stops:
                process.stop()
            else:
                process.kill()

    def _freeze(self, process: Process, at: int) -> None:
        """Freeze a process from a step on, as soon as nobody has to wait for it."""
        if self.steps >= at and not (process.dead or process.frozen or process.holds_a_lock()):
            self.deaths += 1
            self.places |= process.places()
            process.freeze()

    def _judge(self, found: dict[str, RunView], effects: list[str]) -> None:
        self.problems += [
            f"{run_id}: {found.get(run_id)}"
            for run_id in RUNS
            if run_id not in found or self._is_wrong(run_id, found[run_id].result)
        ]
        if found[FRAGILE].result != "mended" or found[CANCELLED].state is not RunState.CANCELLED:
            self.problems.append(f"{found[FRAGILE]}, {found[CANCELLED]}")
        wanted = [f"{CANCELLED} first", *(f"{run} {name}" for run in RUNS for name in ("first", "last"))]
        # Whose event was lost may be cancelled before it has done anything.
        if effects != sorted(wanted) and not (self.plan.loses_event and effects == sorted(wanted[1:])):
            self.problems.append(f"transactions: {effects}")
        # Each run in hand may have had a step under way; a worker that shuts down in order repeats none.
        repeats = sum(number - 1 for number in Counter(self.done).values())
        if repeats > (0 if self.plan.stops else 4 * self.deaths):
            self.problems.append(f"steps: {self.done}")

    def _is_wrong(self, run_id: str, result: Any) -> bool:
        if result is None:
            return True
        told = {"timed-out": None, "told-early": {"by": "ann"}, "told-late": {"by": "bob"}}[run_id]
        wanted = (2, 4, {"timed-out": 6, "told-early": 4, "told-late": 4.5}[run_id])
        latest = MAX_LATE_AFTER_LOSS if self.plan.loses_event else MAX_LATE
        in_time = all(0 <= at - due <= latest for at, due in zip(result["hours"], wanted, strict=True))
        return result["kind"] != "ZeroDivisionError" or result["told"] != told or not in_time


async def _start(flows: Flows, run_id: str) -> bool:
    return await flows.start("story", id=run_id)


async def _go(flows: Flows, run_id: str) -> bool:
    return await flows.signal(run_id, "go")


async def _answered(call: Callable[[Flows], Awaitable[Any]], flows: Flows) -> Any:
    return await call(flows)


def tell(database: Database, plan: Plan) -> World:
    """Tell the story once, and return what came of it."""
    logging.getLogger("timer_client").setLevel(logging.CRITICAL)
    loop = VirtualLoop()
    loop.set_exception_handler(lambda *_: None)  # Tasks of the dead are nobody's any more.
    world = World(loop, database, plan)
    try:
        loop.run_until_complete(world.tell())
    finally:
        loop.close()
    return world
