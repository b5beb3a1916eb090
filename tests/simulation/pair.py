"""Two instances in one world: they share the table in a real PostgreSQL and the consumer of the commands."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.simulation.hooks import CALLING, PATIENT
from tests.simulation.plan import Fault, Plan, Sending, make_plan
from tests.simulation.process import Process, settings
from tests.simulation.server import Postgres, Server
from tests.simulation.world import Tally, World

INSTANCES = 2
LONGEST_S = 25.0
"""A run in which nothing happens for long takes its time: every look is a question to a real server."""
SHARED = frozenset({
    *("crash", "stop", "outage", "lost tail", "deaf", "mute", "deaf and mute", "cut", "lost acks"),
    *("lost confirmations", "late confirmations", "lost statuses", "freeze", "events full", "forbidden"),
    *("failing in batches", "delete consumer", "delete events", "slow network"),
    *("lost answers", "server cut", "server slow"),
})  # fmt: skip
"""What goes wrong where there are two instances; one of them is hit by what hits a process."""
LATE_S = 8.0
"""A timer or a command may wait for what the other instance has in hand."""


@dataclass(slots=True)
class _Slot:
    """Where one instance runs."""

    process: Process | None = None
    down_until: float = 0.0
    down_for: float | None = None
    """Set while it is asked to stop."""


class Pair(World):
    """Everything there is in one run of two instances."""

    def __init__(self, plan: Plan, postgres: Postgres, *, verbose: bool = False) -> None:
        self._postgres = postgres
        super().__init__(plan, Path(), None, verbose=verbose)
        self._slots = [_Slot() for _ in range(INSTANCES)]
        around = self.model.around
        around.punctual_s += LATE_S
        around.batch_size *= 2 * INSTANCES
        around.is_repetition_explained = self._is_repetition_explained

    def _make_disk(self, folder: Path, template: Path | None) -> Any:
        return Server(self._postgres, self.loop, Random(f"server-{self.plan.seed}"), self.wall)

    @property
    def _running(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.process is not None]

    def _is_repetition_explained(self, since: float, until: float) -> bool:
        """A firing comes from both only after a fault, or where a claim was given up for a command."""
        return bool(self.plan.faults) or not self.plan.is_undisputed

    # The processes.

    def start_process(self) -> None:
        for slot in self._slots:
            if slot.process is None and self.loop.time() >= slot.down_until:
                self._start(slot)
        self._focus()

    def _start(self, slot: _Slot) -> None:
        self._lives += 1
        self.model.reopened(self.disk.rows())
        self.model.began(self._lives)
        configured = settings(
            polling_interval=self.plan.poll_interval_ms,
            batch_size=self.plan.batch_size,
            ack_wait=self.plan.ack_wait_ms,
            catch_up=self.plan.catch_up,
            api_port=1 if self.plan.hooks else 0,
        )
        self.note(f"process {self._lives} starts")
        slot.process = Process(self._lives, self, configured)
        slot.process.main.add_done_callback(self._process_ended)

    def _focus(self) -> None:
        """Let whatever hits one process hit any of those that run."""
        running = self._running
        self.process = self.random.choice(running).process if running else None

    def _process_ended(self, main: "asyncio.Task[Any]") -> None:
        slot = next((each for each in self._running if each.process and each.process.main is main), None)
        if slot is None or slot.process is None:
            if not main.cancelled():
                main.exception()  # It was killed: whatever it says then does not matter.
            return
        process, slot.process = slot.process, None
        process.dead = True
        self.nats.process_died(process)
        self.disk.process_died(process)
        error = None if main.cancelled() else main.exception()
        self.note(f"process {process.number} ends: {error!r}")
        if error is not None or slot.down_for is None:
            self.violated("I0", f"process {process.number} ended by itself: {error!r}")
        self.tally.restarts += 1
        slot.down_until = self.loop.time() + (slot.down_for or 0.5)
        slot.down_for = None
        self.loop.world_at(slot.down_until, self.start_process)
        self._focus()

    def crash(self, down_for: float) -> None:
        self._focus()
        process = self.process
        if process is None:
            return
        slot = next(each for each in self._slots if each.process is process)
        self.note(f"process {process.number} is killed")
        self.tally.crashes += 1
        slot.process, slot.down_until = None, self.loop.time() + down_for
        process.kill()
        self.loop.world_at(slot.down_until, self.start_process)
        self._focus()

    def _stop(self, fault: Fault) -> None:
        self._focus()
        for slot in self._running:
            if slot.process is self.process and slot.process is not None and not slot.process.frozen:
                slot.down_for = fault.lasts
                slot.process.stop()

    def _freeze(self, fault: Fault) -> Callable[[], None] | None:
        self._focus()
        return super()._freeze(fault)

    def _cut_server(self, fault: Fault) -> None:
        self._server.cut()

    def _slow_server(self, fault: Fault) -> Callable[[], None]:
        return self._disk_fault(slow=fault.size / 4)

    @property
    def _server(self) -> Server:
        assert isinstance(self.disk, Server)
        return self.disk

    _FAULTS: ClassVar[dict[str, Callable[[Any, Fault], Callable[[], None] | None]]] = {
        **World._FAULTS,
        "stop": _stop,
        "freeze": _freeze,
        "server cut": _cut_server,
        "server slow": _slow_server,
    }

    # The end.

    def _calm_down(self) -> None:
        for slot in self._slots:
            slot.down_until = 0.0
            if slot.process is not None and slot.process.frozen:
                slot.process.thaw()
        self.start_process()
        super()._calm_down()

    def _is_well(self) -> bool:
        services = [slot.process.service if slot.process else None for slot in self._slots]
        return all(service is not None and not service.health().problems for service in services)

    def _tear_down(self) -> None:
        self.loop.before_step = self.loop.after_step = None
        processes = [slot.process for slot in self._running]
        for slot in self._slots:
            process, slot.process = slot.process, None
            if process is not None and not process.is_gone:
                process.kill()
        self.process = None

        async def wait_until_gone() -> None:
            for _ in range(200):
                if all(process is None or process.is_gone for process in processes):
                    return
                await asyncio.sleep(0)
            raise RuntimeError(f"processes do not end: {processes}")

        self.loop.run_until_complete(wait_until_gone())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


def make_pair_plan(seed: int) -> Plan:
    """Let the seed choose what it chooses for one instance, as far as that means anything for two."""
    random = Random(f"pair-{seed}")
    plan = make_plan(seed)
    faults = [fault for fault in plan.faults if fault.kind in SHARED and fault.at + fault.lasts < LONGEST_S]
    if faults:
        moments = _moments(plan)
        kinds = random.sample(("crash", "freeze", "server cut", "server slow", "lost answers"), 2)
        faults += [
            Fault(random.choice(moments), kind, random.choice((0.5, 2.0, 12.0)), 0.6, random.randrange(60))
            for kind in kinds
        ]
        faults.sort(key=lambda fault: fault.at)
    is_patient = seed % CALLING == 3 and seed // CALLING % PATIENT == 0
    plan = replace(
        plan,
        faults=faults,
        sendings=[sending for sending in plan.sendings if sending.at < LONGEST_S],
        askings=[asked for asked in plan.askings if asked.at < LONGEST_S],
        hooks=[] if is_patient else [hook for hook in plan.hooks if hook.at < LONGEST_S],
        ends_at=min(plan.ends_at, LONGEST_S),
        disk_latency_s=min(plan.disk_latency_s, 0.002),
        retention="off",
        max_clock_step="off",
        is_probed=False,
    )
    if not faults and random.random() < 0.5:
        plan = replace(plan, **_undisputed(plan))
    return plan


def _moments(plan: Plan) -> Sequence[float]:
    return [sending.at for sending in plan.sendings if sending.at < LONGEST_S] or [2.0]


def _undisputed(plan: Plan) -> dict[str, Any]:
    """Let every timer be scheduled once: without a fault, each is then published once."""
    first: dict[tuple[str, str], Sending] = {}
    for sending in plan.sendings:
        if sending.wish.kind == "schedule" and sending.headers is not None:
            first.setdefault((sending.wish.tenant, sending.wish.call), sending)
    return {"sendings": list(first.values()), "askings": [], "is_undisputed": True}


def run_pair(seed: int, postgres: Postgres, *, verbose: bool = False) -> Tally:
    """Run what one seed chooses for two instances."""
    postgres.empty()
    return Pair(make_pair_plan(seed), postgres, verbose=verbose).run()
