"""Crash at every step of workers and journals: every run of a durable function ends with the right result."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation.awaits import Place, all_places
from tests.simulation.flow_process import PACKAGE, Killed, Process, first_of, new_task, open_process
from tests.support.flows import JOURNALS, Connect, Shop
from tests.support.guarantees import record
from tests.support.patience import PATIENCE_S
from timer_client import Firing
from timer_client.errors import Fenced
from timer_client.flows import Flows, Run, RunState, StepFailed
from timer_client.flows.reconcile import reconcile
from timer_client.testing import FakeTimers

WATCHED = ("flows.py", "journal.py", "postgres.py", "reconcile.py", "run.py", "sqlite.py", "worker.py")
CRASHED_ON = ("sqlite", "postgres")
"""What is in memory is gone with its process."""
HOUR = timedelta(hours=1)
PATIENCE = timedelta(seconds=PATIENCE_S)
MAX_MOVES = 60
"""Moments after which a run counts as lost."""
RUNS = ("timed-out", "told-early", "told-late")
OVERTAKEN_FOR = (1, 3, 6)

Seen = list[set[Place]]
"""Where a process was at each of its steps."""


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
    """Instead: another worker takes over for so many steps, then dies, and the first one goes on."""


def define(shop: Shop, flows: Flows) -> None:
    """Define the function of the story, which does everything that such functions can."""

    async def fail(name: str) -> None:
        await shop.do(name)
        raise ZeroDivisionError

    async def nap(run: Run, hours: int) -> datetime:
        await run.sleep("nap", hours * HOUR)
        await run.step("up", shop.do, f"{run.id} up after {hours}")
        return await run.now("now")

    @flows.flow("story")
    async def story(run: Run, _: None) -> dict[str, Any]:
        await run.wait("go")
        began = await run.now("began")
        await run.step("step", shop.do, f"{run.id} step")
        await run.transaction("first", shop.insert, f"{run.id} first")
        try:
            await run.step("fail", fail, f"{run.id} fail")
        except StepFailed as failure:
            kind = failure.kind
        await run.sleep("nap", HOUR)
        naps = await run.gather(long=partial(nap, hours=3), short=partial(nap, hours=1))
        told = await run.wait("told", timeout=2 * HOUR)
        await run.transaction("last", shop.insert, f"{run.id} last")
        ended = await run.now("ended")
        spans = [(moment - began) / HOUR for moment in (naps["short"], naps["long"], ended)]
        return {"kind": kind, "told": told, "spans": spans}


@dataclass
class World:
    """One telling of the story."""

    connect: Connect
    plan: Plan
    timers: FakeTimers = field(default_factory=lambda: FakeTimers(settle_timeout=PATIENCE))
    done: list[str] = field(default_factory=list)
    steps: int = 0
    deaths: int = 0
    places: set[Place] = field(default_factory=set)
    seen: Seen = field(default_factory=list)
    """Where the process was at each step, if nothing goes wrong."""
    _process: Process | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _extra: Counter[str] = field(default_factory=Counter)
    """Deliveries of which the broker in memory does not know."""
    _stops_at: int | None = None

    async def tell(self) -> list[str]:
        """Tell the story to its end, and return what is wrong."""
        consumer = self.timers.of(self.timers.tenant)
        async with consumer.consume(
            "flow-shop", self._deliver, concurrency=1, retry_delays=[timedelta(seconds=1)]
        ):
            for run_id in (*RUNS, "cancelled"):
                await self._insist(partial(_start, run_id=run_id))
            await self.timers.settle()
            await self._insist(lambda process: process.flows.cancel("cancelled"))
            for run_id in RUNS:
                await self._insist(partial(_go, run_id=run_id))
            await self.timers.settle()
            await self._insist(lambda process: process.flows.signal("told-early", "told", by="ann"))
            await self._move_on(until=self.timers.now() + 4.5 * HOUR)
            await self._insist(lambda process: process.flows.signal("told-late", "told", by="bob"))
            await self._move_on(until=None)
            problems = await self._problems()
        await (await self._running()).kill()
        return problems

    async def _move_on(self, until: datetime | None) -> None:
        """Let time pass until a moment, or until every run has ended."""
        for _ in range(MAX_MOVES):
            if self.timers.now() >= until if until is not None else await self._have_ended():
                return
            if self.plan.loses_event:
                await self.timers.advance(minutes=12)
                await self._insist(lambda process: reconcile(process.flows, process.worker))
            elif until is not None:
                await self.timers.advance(to=until)
            else:
                await self.timers.advance_to_next()

    async def _deliver(self, firing: Firing) -> None:
        """Hand a firing to the process, as the broker does; what is not answered comes again."""
        firing = replace(firing, deliveries=firing.deliveries + self._extra[firing.id])
        process = await self._running()
        handling = process.start(process.worker.handle(firing))
        await first_of(handling, process.is_stopped, process.is_over)
        if process.is_stopped.is_set() and not process.holds_a_lock():
            await self._overtake(process, handling, firing)
            return
        process.go_on()
        try:
            await process.result(handling)
        except Killed:
            if not self.plan.loses_event:
                raise
        except Fenced as error:
            raise Killed from error  # Nobody answers, and it comes again.

    async def _overtake(self, first: Process, handling: "asyncio.Task[None]", firing: Firing) -> None:
        """Let another worker have the firing; then the first goes on, and the second dies."""
        self._process = None
        self._extra[firing.id] += 1
        second = await self._running()
        self._stops_at = self.steps + (self.plan.overtaken_for or 0)
        taking = second.start(second.worker.handle(replace(firing, deliveries=firing.deliveries + 1)))
        await first_of(taking, second.is_stopped, second.is_over)
        self._stops_at = None
        if second.holds_a_lock():
            second.go_on()
        first.go_on()
        await first_of(handling, first.is_over)
        is_answered = any(task.done() and task.exception() is None for task in (handling, taking))
        await second.kill()
        await first.kill()
        if not is_answered:
            raise Killed

    async def _insist(self, call: Callable[[Process], Awaitable[Any]]) -> None:
        """Have a caller do something, and again if its process is killed."""
        while True:
            process = await self._running()
            task = process.start(_awaited(call(process)))
            await first_of(task, process.is_stopped, process.is_over)
            process.go_on()  # A caller is only slow.
            with suppress(Killed):
                await process.result(task)
                return

    async def _running(self) -> Process:
        async with self._opening:
            if self._process is not None and self._process.is_dead:
                await self._process.kill()
                self._process = None
            if self._process is None:
                self._process = await open_process(
                    self.connect, self.timers, self.done, define, self._before_step
                )
            return self._process

    def _before_step(self, process: Process, *, after: bool) -> None:
        plan = self.plan
        if not after:
            self.steps += 1
            if plan.step is None:
                self.seen.append(process.places())
            is_second = self._stops_at is not None and process is self._process
            if is_second and self.steps >= (self._stops_at or 0):
                process.stop()
        deadly = plan.step if self.deaths == 0 else (plan.step or 0) + (plan.again_in or 0)
        if self.steps != deadly or after != plan.after or self.deaths > (plan.again_in is not None):
            return
        self.deaths += 1
        self.places |= process.places()
        if plan.overtaken_for is None:
            process.die()
        else:
            process.stop()

    async def _have_ended(self) -> bool:
        flows = (await self._running()).flows
        return all([run.state not in (RunState.SLEEPING, RunState.RUNNING) async for run in flows.list()])

    async def _problems(self) -> list[str]:
        process = await self._running()
        found = {run.id: run async for run in process.flows.list()}
        problems = [
            f"{run_id}: {found.get(run_id)}"
            for run_id in RUNS
            if run_id not in found or _is_wrong(run_id, found[run_id].result)
        ]
        if await process.shop.effects() != sorted(
            f"{run} {name}" for run in RUNS for name in ("first", "last")
        ):
            problems.append(f"transactions: {await process.shop.effects()}")
        # One step was under way when a process died, or two in branches, or in two workers.
        if sum(number - 1 for number in Counter(self.done).values()) > 2 * self.deaths:
            problems.append(f"steps: {self.done}")
        return problems


def _is_wrong(run_id: str, result: Any) -> bool:
    if result is None:
        return True
    told = {"timed-out": None, "told-early": {"by": "ann"}, "told-late": {"by": "bob"}}[run_id]
    short, long, ended = result["spans"]
    wanted = (2, 4, {"timed-out": 6, "told-early": 4, "told-late": 4.4}[run_id])
    in_time = all(0 <= is_at - due < 1 for is_at, due in zip((short, long, ended), wanted, strict=True))
    return result["kind"] != "ZeroDivisionError" or result["told"] != told or not in_time


async def _start(process: Process, run_id: str) -> bool:
    return await process.flows.start("story", id=run_id)


async def _go(process: Process, run_id: str) -> bool:
    return await process.flows.signal(run_id, "go")


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def tell(connect: Connect, plan: Plan) -> tuple[World, list[str]]:
    """Tell the story once, on an empty journal, and return what is wrong."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(new_task)
    loop.set_exception_handler(lambda *_: None)  # Tasks of the dead are nobody's any more.
    logging.getLogger("timer_client").setLevel(logging.CRITICAL)
    async with connect() as journal:
        shop = Shop(journal)
        await shop.prepare()
    world = World(connect, plan)
    return world, await world.tell()


def every_plan(seen: Seen, *, loses_event: bool) -> Iterator[Plan]:
    """Yield all that can go wrong in a story of so many steps."""
    for step in range(1, len(seen) + 1):
        for after in (False, True):
            yield Plan(step, after, loses_event)
        yield Plan(step, False, loses_event, again_in=1 + step % 23)
        if not loses_event:
            yield Plan(step, overtaken_for=OVERTAKEN_FOR[step % len(OVERTAKEN_FOR)])


def some_plans(seen: Seen, *, loses_event: bool) -> Iterator[Plan]:
    """Yield a death wherever the process waits at a place for the first time, in one way or another."""
    met: set[Place] = set()
    for step, places in enumerate(seen, 1):
        if places - met:
            is_overtaken = not loses_event and step % 3 == 0
            yield Plan(step, step % 2 == 0, loses_event, overtaken_for=3 if is_overtaken else None)
        met |= places


async def crash(
    kind: str, plans: Callable[..., Iterable[Plan]]
) -> tuple[Counter[str], set[Place], list[str]]:
    """Tell the story with everything that is planned."""
    counts, places, broken = Counter[str](), set[Place](), list[str]()
    for loses_event in (False, True):
        world, problems = await told(kind, Plan(loses_event=loses_event))
        broken += problems
        for plan in plans(world.seen, loses_event=loses_event):
            world, problems = await told(kind, plan)
            places |= world.places
            counts[f"{kind}: crash scenarios"] += 1
            broken += [f"{kind}, {plan}: {problem}" for problem in problems]
    return counts, places, broken


async def told(kind: str, plan: Plan) -> tuple[World, list[str]]:
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        async with JOURNALS[kind](Path(folder)) as connect:
            return await tell(connect, plan)


NEVER_KILLED = {
    ("flows.py", "self.timers.consume("): "the story delivers by itself",
    ("flows.py", "service_time_ms(self)"): "the same",
    ("flows.py", "asyncio.wait({reconciling})"): "the same",
    ("reconcile.py", "await reconcile(flows, worker)"): "the same",
    ("reconcile.py", "asyncio.sleep(INTERVAL_S)"): "the same",
    ("reconcile.py", "hold.epoch"): "nothing is in hand while the story reconciles",
    ("flows.py", "statements.retry("): "a start in other words",
    ("flows.py", "self.arm(id, [] if wake is None else [wake])"): "the same, where it is that of retry",
    ("flows.py", "statements.get("): "changes nothing",
    ("flows.py", "rows = await self.journal.commit("): "changes nothing",
    ("postgres.py", "_ONE_AT_A_TIME"): "the tables are there",
    ("postgres.py", "async with self._transaction() as connection:"): "the same, where it is that of migrate",
    ("postgres.py", "statements.migrate()"): "the same",
    ("sqlite.py", "statements.migrate()"): "the same",
    ("postgres.py", "settle(work, connection.fetch)"): "only on a connection of the caller's",
    ("sqlite.py", "settle(work, partial(_fetch, connection))"): "the same",
    ("sqlite.py", "(await cursor).fetchall()"): "the same",
    ("sqlite.py", "asyncio.wait({job})"): "only where it is cancelled",
    ("postgres.py", "self._pool.acquire()"): "waits where the database is waited for",
    ("run.py", "await function("): "the steps of the story do not wait",
    ("sqlite.py", "await effect(self._connection)"): "the same",
}
"""Where nobody is killed, each with the reason."""


def forgotten(places: set[Place]) -> dict[Place, str]:
    """Return every place at which a worker can wait and was not killed."""
    return {
        place: source
        for place, source in all_places(PACKAGE, WATCHED).items()
        if place not in places
        if not any(place.module == module and text in source for module, text in NEVER_KILLED)
    }


def main() -> int:
    """Crash everywhere, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", choices=CRASHED_ON, action="append")
    parser.add_argument("--record", metavar="COMMAND")
    options = parser.parse_args()
    started, counts, places, broken = time.monotonic(), Counter[str](), set[Place](), list[str]()
    for kind in options.journal or CRASHED_ON:
        found = asyncio.run(crash(kind, every_plan))
        counts += found[0]
        places |= found[1]
        broken += found[2]
    everywhere = all_places(PACKAGE, WATCHED)
    broken += [f"never killed at {place}" for place in forgotten(places)] if not options.journal else []
    counts["places where a worker can wait"] = len(everywhere)
    counts["of these, killed at"] = len(places & everywhere.keys())
    counts["violations"] = len(broken)
    counts["seconds"] = round(time.monotonic() - started)
    print(*broken[:20], *(f"{name}: {number}" for name, number in counts.items()), sep="\n")
    if options.record is not None:
        record(options.record, dict(counts))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
