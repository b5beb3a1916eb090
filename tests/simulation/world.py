"""One run: the service, its broker, its disk, its clock, and everything that happens to them."""

import asyncio
import hashlib
import shutil
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tests.simulation.broker import COMMANDS, EVENTS, TENANTS_INBOX, Broker, Message, Position, Stored
from tests.simulation.callbacks import Callbacks
from tests.simulation.client import SimulatedNats
from tests.simulation.clock import START_MS, WallClock
from tests.simulation.disk import Disk
from tests.simulation.hook_story import Watch
from tests.simulation.loop import PROCESS, BusyLoop, Lively, VirtualLoop
from tests.simulation.model import Counts, Model, Request, Surroundings, Wish
from tests.simulation.plan import Asking, Fault, Plan, Sending, asking, iso, make_plan
from tests.simulation.process import Process, build_template, logs_heard, settings
from timer_service.domain.errors import CriticalError

SETTLED_AFTER_S = 45.0
LETTERS_SETTLED_AFTER_S = 90.0
"""A refused message comes again a minute later where its letter could not be written for long."""
"""Once faults stop, everything due is out and every message is consumed within this time."""
PROBE_S = 3.0
PUNCTUAL_S = 1.0
IDLE_S = 10.0
CALL_TIMEOUT_S = 15.0
RETRY_S = 0.5
MAX_RETRY_S = 3600.0
MOST_POLLS_A_SECOND = 3.0
MOST_STEPS_A_SECOND = 80.0
"""A poll each second, which asks the broker what waits, takes about 60; a busy loop takes thousands."""
MOST_LOG_BYTES = 8 * 1024 * 1024
MOST_CANCELS = 3
"""How often the tasks of a killed process are cancelled until they have to be gone."""
MOST_TASKS = 40
MOST_ENTRIES = 16
"""This many entries a container of the service may hold while nothing happens."""


@dataclass(slots=True)
class Tally:
    """What a run amounted to."""

    seed: int
    trace_hash: str = ""
    violations: list[tuple[float, str, str]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    virtual_s: float = 0.0
    steps: int = 0
    steps_before: int = 0
    """Steps before crashes are of interest."""
    steps_to_calm: int = 0
    """Steps until nothing went wrong any more."""
    crashes: int = 0
    restarts: int = 0
    outages: int = 0
    faults: int = 0
    settled_s: float = 0.0
    """How long it took after the last fault."""
    store_errors: int = 0


class World:
    """Everything there is in one run."""

    def __init__(self, plan: Plan, folder: Path, template: Path | None, *, verbose: bool = False) -> None:
        self.plan = plan
        self.verbose = verbose
        self.loop = VirtualLoop()
        self.tally = Tally(plan.seed)
        self.wall = WallClock(self.loop)
        self.chance = Random(f"chance-{plan.seed}").random
        self.random = Random(f"world-{plan.seed}")
        self.broker = Broker(self.loop, Random(f"net-{plan.seed}"), self, self._epoch_us)
        self.broker.latency_s = plan.net_latency_s
        self.broker.takes_batches = plan.takes_batches
        self.disk = self._make_disk(folder, None if plan.fresh_database else template)
        self.disk.log_limit_bytes = plan.log_limit_bytes
        self.disk.latency_s = plan.disk_latency_s
        self.disk.on_commit = self._committed
        self.disk.on_poll = self._polled
        self.nats = SimulatedNats(self.broker, self._sent, self._confirmed)
        self.nats.suspends = plan.suspends
        self.model = Model(
            Surroundings(
                now=self.loop.time,
                wall_ms=self.wall.now_ms,
                wall_shown_since=self.wall.shown_since,
                violated=self.violated,
                note=self.note,
                slack_s=_slack_s(plan),
                punctual_s=plan.punctual_s,
                unread_s=plan.poll_interval_ms / 1000,
                disturbed=plan.is_disturbed,
                batch_size=plan.batch_size,
                catch_up_s=plan.catch_up_s,
                retention_ms=60_000 if plan.retention == "1m" else None,
            )
        )
        self.tally.counts = self.model.counts
        watch = Watch(
            now_s=self.loop.time,
            wall_ms=self.wall.now_ms,
            violated=self.violated,
            note=self.note,
            slack_s=_slack_s(plan),
            punctual_s=plan.callbacks_punctual_s,
            disturbed=plan.is_disturbed,
        )
        # Of a timer that was purged nobody knows that it had been asked for.
        self.callbacks = Callbacks(plan.hooks, self.loop, watch, insists=plan.retention == "off")
        self.process: Process | None = None
        self.on_crash: Callable[[Process], None] = lambda _: None
        self.on_counting: Callable[[], None] = lambda: None
        self.polls = 0
        self.polled_at: list[float] = []
        self._lives = 0
        self._requests = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._finished: asyncio.Future[None] | None = None
        self._down_for: float | None = None
        self._down_until = 0.0
        self._calm_since = 0.0
        self._exit_expected = 0
        self._unsent: list[Sending] = []
        self._next_try = 0
        self._pause = RETRY_S

    def _make_disk(self, folder: Path, template: Path | None) -> Disk:
        return Disk(self.loop, folder, Random(f"disk-{self.plan.seed}"), template)

    # The run.

    def run(self) -> Tally:
        """Play the whole plan and return what came of it."""
        self.loop.set_exception_handler(self._unhandled)
        try:
            with logs_heard(self):
                try:
                    self.loop.run_until_complete(self._play())
                except BusyLoop as error:
                    self.violated("I7", f"a busy loop: {error}")
                finally:
                    self._tear_down()
        finally:
            self.disk.forget_observer()
            asyncio.set_event_loop(None)
            self.loop.close()
        self.tally.trace_hash = self._hash.hexdigest()
        self.tally.virtual_s = self.loop.time()
        self.tally.steps = self.loop.steps
        self.tally.store_errors = self.disk.injected
        return self.tally

    async def _play(self) -> None:
        self._finished = self.loop.create_future()
        plan = self.plan
        self.start_process()
        self.loop.world_at(plan.crash_from_s, self._count_steps)
        for sending in plan.sendings:
            self.loop.world_at(sending.at, self.send, sending)
        for question in plan.askings:
            self.loop.world_at(question.at, self.ask, question)
        self.callbacks.begin()
        for fault in plan.faults:
            self.loop.world_at(fault.at, self.begin, fault)
        self.loop.world_at(plan.ends_at + 0.001, self._calm_down)
        await self._finished

    def _count_steps(self) -> None:
        self.tally.steps_before = self.loop.steps
        self.on_counting()
        crash = self.plan.crash
        if crash is not None:
            self.crash_in(crash.step, crash.down_for, after=crash.after)

    def _tear_down(self) -> None:
        """End what still runs, so that nothing is left behind."""
        self.loop.before_step = self.loop.after_step = None
        process, self.process = self.process, None
        if process is not None and not process.is_gone:
            process.kill()

        async def wait_until_gone() -> None:
            for _ in range(200):
                if process is None or process.is_gone:
                    return
                await asyncio.sleep(0)
            raise RuntimeError(f"process {process} does not end")

        self.loop.run_until_complete(wait_until_gone())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    def _finish(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    # The process.

    def start_process(self) -> None:
        if self.process is not None or self.loop.time() < self._down_until:
            return
        self._lives += 1
        self.model.reopened(self.disk.rows())
        self.model.began(self._lives)
        configured = settings(
            db_path=self.disk.path,
            polling_interval=self.plan.poll_interval_ms,
            batch_size=self.plan.batch_size,
            ack_wait=self.plan.ack_wait_ms,
            max_clock_step=self.plan.max_clock_step,
            retention=self.plan.retention,
            catch_up=self.plan.catch_up,
            api_port=1 if self.plan.hooks else 0,
        )
        self.note(f"process {self._lives} starts")
        if self._unsent:
            self._send_again_in(RETRY_S)
        self.process = Process(self._lives, self, configured)
        self.process.main.add_done_callback(self._process_ended)

    def _process_ended(self, main: "asyncio.Task[Any]") -> None:
        process = self.process
        if process is None or process.main is not main:
            if not main.cancelled():
                main.exception()  # It was killed: whatever it says then does not matter.
            return
        self.process = None
        process.dead = True
        self.nats.process_died(process)
        self.disk.forget_observer()
        error = None if main.cancelled() else main.exception()
        self.note(f"process {process.number} ends: {type(error).__name__ if error else 'in order'}")
        expected = self._down_for is not None if error is None else self._exit_is_explained(error)
        if not expected:
            self.violated("I0", f"process {process.number} ended by itself: {error!r}")
        elif error is None and self.plan.only_restarts:
            self.model.ended_in_order(process.number)
        self.tally.restarts += 1
        pause, self._down_for = self._down_for or 0.5, None
        self.loop.world_at(self.loop.time() + pause, self.start_process)

    def _exit_is_explained(self, error: BaseException) -> bool:
        """A store that fails for good, or that cannot be written at the start, ends the process."""
        if isinstance(error, BaseExceptionGroup):
            # One failure may be told by several: by a loop, and by the request that has met it.
            return all(map(self._exit_is_explained, error.exceptions))
        return isinstance(error, CriticalError) and self.disk.injected > self._exit_expected

    def crash(self, down_for: float) -> None:
        """Kill the process and start it again later."""
        process, self.process = self.process, None
        if process is None:
            return
        self.note(f"process {process.number} is killed")
        self.tally.crashes += 1
        self.on_crash(process)
        process.kill()
        self._down_until = self.loop.time() + down_for
        self.loop.world_at(self.loop.time() + down_for, self._start_after, process)

    def _start_after(self, process: Process, cancels: int = 1) -> None:
        if not process.is_gone:
            if cancels == MOST_CANCELS:
                left = [task for task in process.tasks if not task.done()]
                raise RuntimeError(f"tasks outlive their process: {left}")
            # `asyncio.wait_for` swallows a cancellation that comes together with its result (Python 3.11).
            process.cancel_tasks()
            self.loop.world_at(self.loop.time(), self._start_after, process, cancels + 1)
            return
        self.start_process()
        if self.plan.crash is not None and self.plan.crash.again_in is not None and self.tally.crashes == 1:
            self.crash_in(self.plan.crash.again_in, self.plan.crash.down_for)

    def crash_in(self, steps: int, down_for: float, *, after: bool = False) -> None:
        """Kill the process this many of its steps from now: right before the step, or right after it."""
        left = steps

        def count() -> None:
            nonlocal left
            if left == 0:
                self.loop.before_step = self.loop.after_step = None
                self.crash(down_for)
            left -= 1

        if after:
            self.loop.after_step = count
        else:
            self.loop.before_step = count

    # What tenants do.

    def send(self, sending: Sending) -> None:
        message = Message(sending.subject, sending.body, headers=sending.headers)
        self.model.expects(sending.subject, sending.body, sending.wish)
        if not self.broker.publish_command(message):
            self._unsent.append(sending)
            if len(self._unsent) == 1:
                self._send_again_in(RETRY_S)

    def _send_again_in(self, pause: float) -> None:
        """Try again what nobody took; less and less often, because the service may be away for days."""
        self._next_try += 1
        self._pause = pause
        self.loop.world_at(self.loop.time() + pause, self._send_again, self._next_try)

    def _send_again(self, number: int) -> None:
        if number != self._next_try:
            return  # Another try was set since.
        unsent, pause = self._unsent, self._pause
        self._unsent = []
        for sending in unsent:
            self.send(sending)
        if self._unsent:
            self._send_again_in(min(2 * pause, MAX_RETRY_S))

    def ask(self, asked: Asking) -> None:
        self._requests += 1
        inbox = f"{TENANTS_INBOX}{self._requests}"
        number = self._requests
        request = None if asked.wish is None else self.model.requested(asked.wish)
        self.broker.answers[inbox] = lambda answer: self._answered(number, request, answer)
        self.note(f"request {number}: {asked.subject} {asked.body!r}")
        if not self.broker.request(Message(asked.subject, asked.body, inbox)):
            self.note(f"request {number}: nobody answers")

    def _answered(self, number: int, request: Request | None, answer: Message) -> None:
        code = (answer.headers or {}).get("Nats-Service-Error-Code")
        if request is None:
            self.note(f"request {number}: answered {code}")
            return
        self.note(f"request {number}: answered {code or answer.data.decode()[:40]}")
        if code == "500" and self.disk.failed_for_good:
            code = "503"  # The last words of a process whose disk failed.
        self.model.answered(request, code, answer.data)

    # What goes wrong.

    def begin(self, fault: Fault) -> None:
        self.tally.faults += 1
        self.note(f"fault: {fault.kind} for {fault.lasts:g} s, size {fault.size:g}, steps {fault.steps}")
        undo = self._FAULTS[fault.kind](self, fault)
        if undo is not None:
            self.loop.world_at(self.loop.time() + fault.lasts, self._end, fault, undo)

    def _end(self, fault: Fault, undo: Callable[[], None]) -> None:
        self.note(f"fault over: {fault.kind}")
        undo()

    def _crash(self, fault: Fault) -> None:
        self.crash_in(fault.steps, fault.lasts, after=fault.steps % 2 == 1)

    def _absence(self, fault: Fault) -> None:
        back_at = self.loop.time() + fault.lasts

        def leave() -> None:
            """Be gone by now, at whatever step."""
            self._down_until = max(self._down_until, back_at)
            self.crash(back_at - self.loop.time())
            self.loop.world_at(back_at, self.start_process)

        self.crash_in(fault.steps, fault.lasts)
        self.loop.world_at(self.loop.time() + 0.5, leave)

    def _stop(self, fault: Fault) -> None:
        if self.process is not None:
            self._down_for = fault.lasts
            self.process.stop()

    def _outage(self, fault: Fault) -> Callable[[], None]:
        self.tally.outages += 1
        self.broker.stop()
        return self.broker.start

    def _lost_tail(self, fault: Fault) -> Callable[[], None]:
        put_back = self.broker.keep_copy()

        def lose() -> None:
            self.tally.outages += 1
            self.broker.stop()
            put_back()
            self.loop.world_at(self.loop.time() + fault.size, self.broker.start)

        return lose

    def _half_open(self, fault: Fault) -> None:
        for link in self.broker.links:
            if "deaf" in fault.kind:
                link.deaf_until = self.loop.time() + fault.lasts
            if "mute" in fault.kind:
                link.mute_until = self.loop.time() + fault.lasts

    def _cut(self, fault: Fault) -> None:
        for link in list(self.broker.links):
            link.cut()

    def _broker_fault(self, **values: Any) -> Callable[[], None]:
        self._set(self.broker.faults, values)

        def undo() -> None:
            self._set(self.broker.faults, {name: type(value)() for name, value in values.items()})
            self.broker.wake()

        return undo

    def _silence(self, fault: Fault) -> Callable[[], None]:
        self.model.around.silent_since = self.loop.time()
        undo = self._broker_fault(commands_silent=True)

        def answer() -> None:
            self.model.around.silent_since = None
            undo()

        return answer

    def _disk_fault(self, **values: Any) -> Callable[[], None]:
        self._set(self.disk.faults, values)
        return lambda: self._set(self.disk.faults, {name: type(value)() for name, value in values.items()})

    @staticmethod
    def _set(target: object, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(target, name, value)

    def _step(self, fault: Fault) -> None:
        self.wall.step(round(fault.size * 1000))

    def _drift(self, fault: Fault) -> Callable[[], None]:
        self.wall.drift(1.0 + max(-0.5, min(fault.size, 100.0) / 200.0))
        return lambda: self.wall.drift(1.0)

    def _freeze(self, fault: Fault) -> Callable[[], None] | None:
        process = self.process
        if process is None or process.frozen:
            return None
        process.freeze()
        if fault.kind == "suspend":
            self.loop.suspend(process, fault.lasts)

        def thaw() -> None:
            self.model.around.last_freeze_end = self.loop.time()
            process.thaw()

        return thaw

    def _delete_commands(self, fault: Fault) -> None:
        stream = self.broker.streams.get(COMMANDS)
        if stream is not None:
            self.model.commands_deleted(stored.position for stored in stream.messages.values())
            self.broker.delete_stream(COMMANDS)

    _FAULTS: ClassVar[dict[str, Callable[["World", Fault], Callable[[], None] | None]]] = {
        "crash": _crash,
        "absence": _absence,
        "stop": _stop,
        "outage": _outage,
        "lost tail": _lost_tail,
        "deaf": _half_open,
        "mute": _half_open,
        "deaf and mute": _half_open,
        "cut": _cut,
        "lost acks": lambda self, fault: self._broker_fault(lost_acks=fault.size),
        "lost confirmations": lambda self, fault: self._broker_fault(lost_confirmations=fault.size),
        "late confirmations": lambda self, fault: self._broker_fault(
            late_confirmations=fault.size, late_by_s=10.0
        ),
        "lost statuses": lambda self, fault: self._broker_fault(lost_statuses=True),
        "jetstream away": lambda self, fault: self._broker_fault(jetstream_away=True),
        "commands silent": _silence,
        "slow network": lambda self, fault: self._broker_fault(slow_s=fault.size),
        "failing in batches": lambda self, fault: self._broker_fault(failing_in_batches=fault.size),
        "events full": lambda self, fault: self._broker_fault(events_full=True),
        "forbidden": lambda self, fault: self._broker_fault(forbidden_tenants={"acme"}),
        "letters full": lambda self, fault: self._broker_fault(letters="full"),
        "letters forbidden": lambda self, fault: self._broker_fault(letters="forbidden"),
        "letters silent": lambda self, fault: self._broker_fault(letters="silent"),
        "busy": lambda self, fault: self._disk_fault(
            busy=fault.size, busy_after_wait=0.1 if fault.size < 1 else 0.0
        ),
        "full": lambda self, fault: self._disk_fault(full=True),
        "read busy": lambda self, fault: self._disk_fault(read_busy=fault.size),
        "slow disk": lambda self, fault: self._disk_fault(slow=fault.size / 2),
        "slow questions": lambda self, fault: self._disk_fault(slow_questions=fault.size),
        "lost answers": lambda self, fault: self._disk_fault(lost_answers=int(fault.size * 5)),
        "io error": lambda self, fault: self._disk_fault(io_errors=1),
        "step": _step,
        "drift": _drift,
        "freeze": _freeze,
        "suspend": _freeze,
        "delete consumer": lambda self, fault: self.broker.delete_consumer(),
        "delete events": lambda self, fault: self.broker.delete_stream(EVENTS),
        "delete commands": _delete_commands,
    }

    # The end.

    def _calm_down(self) -> None:
        """Stop all faults; from here on the service has SETTLED_AFTER_S."""
        self.note("all faults are over")
        self.tally.steps_to_calm = self.loop.steps
        self.loop.before_step = self.loop.after_step = None
        self.wall.mend()
        self._down_until = 0.0
        if self._unsent:
            self._send_again_in(RETRY_S)
        if self.process is None:
            self.start_process()
        elif self.process.frozen:
            self.process.thaw()
        if self.plan.max_clock_step != "off":
            self.loop.world_at(self.loop.time() + 2.0, self._accept_clock)
        self._calm_since = self.loop.time()
        # At least one look after the clock was set right.
        at_least_s = max(self.plan.settled_at_least_s, self.plan.poll_interval_ms / 1000 + 1)
        self.loop.world_at(self.loop.time() + at_least_s, self._check_settled)

    def _accept_clock(self) -> None:
        """Confirm, as the operator, that the clock is right now; again and again until somebody listens."""
        inbox = f"{TENANTS_INBOX}operator"
        self.broker.answers[inbox] = lambda answer: self.note(
            f"operator: the clock is accepted, {answer.data!r}"
        )
        if not self.broker.request(Message("timer.clock.accept", b"{}", inbox)):
            self.loop.world_at(self.loop.time() + 2.0, self._accept_clock)

    def _check_settled(self) -> None:
        stream = self.broker.streams.get(COMMANDS)
        left = [] if stream is None else sorted(stream.messages)
        waited_s = self.loop.time() - self._calm_since
        refused = stream is not None and any(
            self.model.is_refused(stream.messages[sequence].position) for sequence in left
        )
        limit_s = LETTERS_SETTLED_AFTER_S if refused else SETTLED_AFTER_S
        limit_s += self.plan.callbacks_s
        # A receiver that fails is left alone after each request, as often as it has failures left to answer.
        unchanged_s = self.loop.time() - max(self._calm_since, self.callbacks.requested_s)
        late = self.model.overdue() or self.callbacks.owed() or self.callbacks.are_unheard()
        if unchanged_s < limit_s and (left or late or not self._is_well()):
            self.loop.world_at(self.loop.time() + 1.0, self._check_settled)
            return
        self.note(f"settled after {waited_s:.1f} s")
        self.tally.settled_s = waited_s
        if left:
            self.violated("I1", f"the commands {left} are still in the stream")
        self.model.settled()
        for owed in self.callbacks.owed():
            self.violated("I1", f"{owed} has not come")
        if self.callbacks.are_unheard():
            self.violated("I7", "the service has settled, but does not answer what is asked of callbacks")
        if self.process is None or self.process.service is None:
            self.violated("I7", "the service does not run")
            return
        health = self.process.service.health()
        if health.stuck or health.problems:
            self.violated("I7", f"the service says that it is not well: {health}")
        if self.plan.is_probed:
            self._probe()
        else:
            self._finish()

    def _is_well(self) -> bool:
        service = None if self.process is None else self.process.service
        return service is not None and not service.health().problems

    def _probe(self) -> None:
        """Ask for one more timer: it must come on time."""
        now = self.loop.time()
        # One before it, for what is noticed only when it is needed, such as a stream that is gone.
        first = Wish("schedule", "acme", "before-the-probe", START_MS)
        self.ask(asking(now, first, iso(first.due_ms)))
        wish = Wish("schedule", "acme", "probe", START_MS + int((now + PROBE_S) * 1000))
        text = iso(wish.due_ms)
        self.ask(asking(now, wish, text))
        self.polls, steps = 0, self.loop.steps
        self.loop.world_at(now + PROBE_S + PUNCTUAL_S, self._check_probe, wish)
        self.loop.world_at(now + IDLE_S, self._check_idle, steps)

    def _check_probe(self, wish: Wish) -> None:
        if ("acme", "probe", 1, wish.due_ms) not in self.model.fired:
            self.violated("I7", "the service has settled, but one more timer does not come on time")

    def _check_idle(self, steps: int) -> None:
        self._check_rates(self.polls / IDLE_S, (self.loop.steps - steps) / IDLE_S)
        process = self.process
        tasks = 0 if process is None else sum(not task.done() for task in process.tasks)
        if tasks > MOST_TASKS:
            self.violated("I6", f"{tasks} tasks are left while nothing happens")
        if self.disk.log_bytes() > max(MOST_LOG_BYTES, self.plan.log_limit_bytes):
            self.violated("I6", f"the write-ahead log has {self.disk.log_bytes()} bytes")
        for name, size in _sizes(process.service if process else None):
            if size > MOST_ENTRIES:
                self.violated("I6", f"{name} holds {size} entries while nothing happens")
        found = self.disk.read("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            self.violated("I6", f"the database is damaged: {found}")
        self.model.reopened(self.disk.rows())
        self.model.settled()
        self._finish()

    def _check_rates(self, polls: float, steps: float) -> None:
        if polls > MOST_POLLS_A_SECOND or steps > MOST_STEPS_A_SECOND:
            self.violated("I7", f"idle, but {polls:.1f} polls and {steps:.1f} steps a second")
        longest = self.plan.poll_interval_ms / 1000
        if polls < 0.5 / longest and longest < IDLE_S:
            self.violated("I7", f"only {polls:.2f} polls a second, with an interval of {longest} s")

    # What is noticed.

    def note(self, text: str) -> None:
        line = f"{self.loop.time():.6f} {text}"
        self._hash.update(line.encode())
        if self.verbose:
            self.tally.story.append(line)

    def violated(self, invariant: str, text: str) -> None:
        self.note(f"VIOLATION {invariant}: {text}")
        self.tally.violations.append((self.loop.time(), invariant, text))
        self._finish()

    def logged(self, level: str, event: str, fields: dict[str, Any]) -> None:
        process = PROCESS.get()
        if process is None or process.dead:
            return
        if self.verbose:
            told = {name: value for name, value in fields.items() if name != "exc_info"}
            self.tally.story.append(f"{self.loop.time():.6f}     log {event} {told}")
        if event == "request.failed":
            self.violated("I0", f"an internal error in a request: {fields} {traceback.format_exc()}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process_is_dead = self.process is None
        if not process_is_dead:
            self.violated("I0", f"an error that nobody handles: {context}")

    def _committed(self) -> None:
        self.model.committed(self.disk.rows())

    def _polled(self) -> None:
        self.polls += 1
        self.polled_at.append(self.loop.time())
        self.model.looked()

    def _sent(self, process: Lively, message: Message) -> None:
        assert isinstance(process, Process)
        subject = message.subject
        if subject.startswith("timer.events."):
            self.note(f"event sent on {subject}: {message.data.decode()}")
            self.model.event_sent(process.number, subject, message.data, message.headers or {}, message.reply)
        elif subject.startswith("$JS.ACK."):
            stream = self.broker.streams.get(COMMANDS)
            sequence, word = int(subject.split(".")[5]), message.data.decode().split(" ")[0]
            self.note(f"{word} sent for {sequence}")
            if message.data == b"-NAK":
                self.model.asked_for_at_once(process.number, sequence)
            if stream is not None and sequence in stream.messages and self._was_delivered(sequence):
                position = stream.messages[sequence].position
                self.model.acknowledged(position, word)
                if word in ("+ACK", "+TERM"):
                    self.model.let_go(process.number, position)

    def _was_delivered(self, sequence: int) -> bool:
        consumer = self.broker.consumer
        return consumer is not None and sequence in consumer.deliveries

    def _confirmed(self, inbox: str, body: bytes) -> None:
        self.model.confirmation_arrived(inbox, body)

    def commands_created(self, created_us: int) -> None:
        self.model.commands_created(created_us)

    def command_stored(self, stored: Stored) -> None:
        self.note(f"command {stored.position[1]} stored on {stored.subject}: {stored.data[:300]!r}")
        stream = self.broker.streams[COMMANDS]
        self.model.command_stored(
            stored.position, stored.subject, stored.data, stored.stored_ns // 1000, losses=stream.losses
        )

    def commands_lost(self, lost: Sequence[Stored], newest: Position) -> None:
        self.note(f"the broker comes back with {newest[1]} as its newest command, {len(lost)} are lost")
        self.model.commands_lost([stored.position for stored in lost], newest)

    def command_ended(self, position: Position, word: str) -> None:
        self.note(f"command {position[1]} leaves the stream by {word}")
        self.model.acknowledged(position, word)
        self.model.left(position)

    def event_stored(self, message: Message, *, duplicate: bool) -> None:
        self.note(f"event {(message.headers or {})['Nats-Msg-Id']} {'dropped' if duplicate else 'stored'}")
        self.model.event_stored(message.data, duplicate=duplicate)

    def event_forbidden(self, message: Message) -> None:
        self.note(f"broker: forbids {message.subject}")
        self.model.event_forbidden(message.subject)

    def letter_stored(self, message: Message) -> None:
        self.note(f"letter stored on {message.subject}")
        self.model.letter_stored(message.subject, message.data)

    def _epoch_us(self) -> int:
        return self.wall.true_ms() * 1000


FAULT_KINDS = frozenset(World._FAULTS)


def _sizes(root: object, name: str = "service", depth: int = 6) -> Iterator[tuple[str, int]]:
    """Yield the size of every container that the service's own objects hold."""
    for attribute in vars(root) if hasattr(root, "__dict__") else ():
        if attribute == "_parked":
            continue  # What never comes back is forgotten within two minutes.
        value = getattr(root, attribute)
        path = f"{name}.{attribute}"
        if isinstance(value, dict | set | list | deque):
            yield path, len(value)
        elif depth and _is_watched(type(value).__module__):
            yield from _sizes(value, path, depth - 1)


def _is_watched(module: str) -> bool:
    """Metrics hold an entry for every label; everything else of ours must stay small."""
    return module.startswith("timer_service.") and module != "timer_service.observability.metrics"


def _slack_s(plan: Plan) -> float:
    slow = {"slow disk", "slow network", "freeze", "suspend"}
    return 40.0 if any(fault.kind in slow for fault in plan.faults) else 0.5


Workshop = tuple[Path, Path]
"""A folder to work in, and a database to start from."""


@contextmanager
def workshop() -> Iterator[Workshop]:
    """Give a folder in memory where there is one, and a database to start from."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="timers-", dir=memory if memory.is_dir() else None))
    try:
        yield folder, build_template(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_plan(plan: Plan, folder: Path, template: Path, *, verbose: bool = False) -> Tally:
    """Run one plan in a folder of its own."""
    own = folder / f"run-{plan.seed}"
    own.mkdir()
    try:
        return World(plan, own, template, verbose=verbose).run()
    finally:
        shutil.rmtree(own, ignore_errors=True)


def run_seed(seed: int, folder: Path, template: Path, *, verbose: bool = False) -> Tally:
    """Run what one seed chooses."""
    return run_plan(make_plan(seed), folder, template, verbose=verbose)
