"""A service whose time stands until somebody moves it, with consumers that react: what a seed makes of it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from uuid import UUID

from nats.aio.client import Client
from nats.js.errors import NotFoundError

from tests.simulation.broker import COMMANDS, EVENTS, Broker, Message, Position, Stored, matches
from tests.simulation.client import SimulatedNats
from tests.simulation.clock_hooks import BATCH, GATHERS_S, Hooks
from tests.simulation.loop import PROCESS, VirtualLoop
from tests.simulation.process import Machine, logs_heard, settings
from tests.support.messages import cancel, decode, encode, parse, schedule
from timer_service.adapters.nats.bus import NatsBus, NatsMeans
from timer_service.adapters.nats.client import TolerantClient
from timer_service.adapters.nats.session import SessionMeans
from timer_service.bootstrap import Parts, open_service
from timer_service.config import Settings
from timer_service.ports.time_travel import TimeTravel
from timer_service.service.run import Service, run_service
from timer_service.testing import START
from timer_service.testing.deliveries import MemoryDeliveries
from timer_service.testing.settling import Settling
from timer_service.testing.virtual import in_memory
from timer_service.testing.virtual_clock import VirtualClock
from timer_service.testing.walk import Walk
from timer_service.wiring.stores import OpenedStore, Store

HOUR = timedelta(hours=1)
TENANTS = ("acme", "globex")
SPANS_H = (0, 1, 1, 2, 5, 24, 24.5)
MAX_REACTIONS = 25
"""So that a chain of reactions ends."""
LAG_S = 0.02
"""By which the broker's counters may be behind what it has stored."""

Key = tuple[str, str]
T = TypeVar("T")


@dataclass
class ClockTally:
    """What a seed amounted to."""

    seed: int
    trace_hash: str = ""
    violations: list[tuple[float, str, str]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    advances: int = 0
    moves: int = 0
    events: int = 0
    reactions: int = 0
    callbacks: int = 0


@dataclass
class _Timer:
    """What becomes of a timer, by the commands that the broker has stored."""

    due_at: datetime | None
    is_ahead: bool
    """Whether it was scheduled before it was due."""
    reached: bool = False


@dataclass
class _Consumer:
    """A durable consumer of the events, and whoever works on it."""

    name: str
    subject: str
    slow_s: float
    concurrency: int
    pending: list[tuple[int, float]] = field(default_factory=list)
    """What is to be delivered, and since when the counters know of it."""
    unanswered: set[int] = field(default_factory=set)
    delivered: int = 0
    answered: int = 0


class Watched(VirtualClock):
    """Says whenever somebody is about to move it."""

    before_move: Callable[[datetime], None]

    def move_to(self, moment: datetime) -> None:
        """Set the time."""
        self.before_move(moment)
        super().move_to(moment)


class _Process:
    """The service, which nothing happens to here."""

    dead = frozen = False

    def __init__(self) -> None:
        self.parked: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []


class ClockWorld:
    """One seed from its beginning to its end; it sees what the broker sees."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"clock-{seed}")
        self.loop = VirtualLoop()
        self.tally = ClockTally(seed)
        self.broker = Broker(self.loop, Random(f"clock-net-{seed}"), self, lambda: 1_772_000_000_000_000)
        self.broker.latency_s = self.random.choice((0.001, 0.02, 0.2))
        self.clock = Watched(START)
        self.clock.before_move = self._before_move
        self._hooks = Hooks(seed, self.clock, self.note, self.violated)
        self._timers: dict[Key, _Timer] = {}
        self._messages = 0
        self._only_next = False
        self._wishes = 0
        self._consumers = [
            _Consumer(
                f"consumer-{number}",
                self.random.choice(("timer.events.>", *(f"timer.events.{name}.>" for name in TENANTS))),
                self.random.choice((0.0, 0.01, 0.3, 2.0)),
                self.random.choice((1, 3)),
            )
            for number in range(self.random.randint(1, 3))
        ]

    def violated(self, text: str) -> None:
        """Keep what is wrong."""
        self.note(f"VIOLATED: {text}")
        self.tally.violations.append((self.loop.time(), "clock", text))

    verbose = False

    def logged(self, level: str, event: str, _: dict[str, Any]) -> None:
        """Hear what the service logs: it has no reason to complain."""
        self.violated(f"{level}: {event}")

    # What the broker sees.

    def note(self, text: str) -> None:
        self.tally.story.append(f"{self.loop.time():9.4f} {self.clock.now():%d %H:%M} {text}")

    def commands_created(self, created_us: int) -> None: ...
    def command_stored(self, stored: Stored) -> None: ...
    def commands_lost(self, lost: Sequence[Stored], newest: Position) -> None: ...
    def command_ended(self, position: Position, word: str) -> None: ...
    def event_forbidden(self, message: Message) -> None: ...

    def letter_stored(self, message: Message) -> None:
        self.violated(f"a letter: {message.data!r}")

    def event_stored(self, message: Message, *, duplicate: bool) -> None:
        """Judge an event, and let everybody have it who wants it."""
        if duplicate:
            return
        payload = decode(message.data)["payload"]
        key = payload["tenantId"], payload["serviceCallId"]
        due_at, reached_at = parse(payload["dueAt"]), parse(payload["reachedAt"])
        timer = self._timers[key]
        self.note(f"{key} fires, due {due_at:%d %H:%M}")
        self.tally.events += 1
        exact = due_at if timer.is_ahead else self.clock.now()
        if timer.reached or due_at != timer.due_at:
            self.violated(f"{key} fires for {due_at}, and it is {timer}")
        elif reached_at < due_at or reached_at != exact or self.clock.now() != exact:
            self.violated(f"{key} is due at {due_at}, reached at {reached_at}, stored at {self.clock.now()}")
        timer.reached = True
        sequence = self.broker.streams[EVENTS].last_sequence
        for consumer in self._consumers:
            if matches(consumer.subject.split("."), message.subject.split(".")):
                consumer.pending.append((sequence, self.loop.time() + self.random.random() * LAG_S))
                self._later(partial(self._deliver, consumer))

    # The consumers, who react before they acknowledge.

    def _later(self, work: Callable[[], None], most_s: float = 0.03) -> None:
        self.loop.world_at(self.loop.time() + self.random.random() * most_s, work)

    def _deliver(self, consumer: _Consumer) -> None:
        while consumer.pending and len(consumer.unanswered) < consumer.concurrency:
            consumer.delivered, _ = consumer.pending.pop(0)
            consumer.unanswered.add(consumer.delivered)
            self._later(partial(self._react, consumer, consumer.delivered), consumer.slow_s)

    def _react(self, consumer: _Consumer, sequence: int) -> None:
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            if self.tally.reactions < MAX_REACTIONS:
                self.tally.reactions += 1
                self._wish(consumer.name)
        self._later(partial(self._answer, consumer, sequence), consumer.slow_s)

    def _answer(self, consumer: _Consumer, sequence: int) -> None:
        self.note(f"{consumer.name} acknowledges {sequence}")
        consumer.unanswered.remove(sequence)
        consumer.answered += 1
        self._deliver(consumer)

    def _wish(self, who: str) -> None:
        """Schedule another timer, or move or cancel one that is not due yet."""
        ahead = sorted(key for key, timer in self._timers.items() if self._is_ahead(timer))
        kind = self.random.choice(("schedule", "schedule", "move", "cancel")) if ahead else "schedule"
        if kind == "schedule":
            self._wishes += 1
            key = self.random.choice(TENANTS), f"call-{self._wishes}"
        else:
            key = self.random.choice(ahead)
        due_at = None if kind == "cancel" else self.clock.now() + HOUR * self.random.choice(SPANS_H)
        self._timers[key] = _Timer(due_at, due_at is not None and due_at > self.clock.now())
        self.note(f"{who}: {kind} {key} {due_at}")
        self._messages += 1
        fixed: dict[str, Any] = {"id": str(UUID(int=self._messages)), "timestampMs": 1_772_000_000_000}
        body = cancel(*key, **fixed) if due_at is None else schedule(*key, due_at, **fixed)
        subject = f"timer.commands.{key[0]}.{body['type']}"
        assert self.broker.publish_command(Message(subject, encode(body), headers={}))

    def _is_ahead(self, timer: _Timer) -> bool:
        return timer.due_at is not None and not timer.reached and timer.due_at > self.clock.now()

    # Whoever moves the clock.

    def _unsettled(self) -> str:
        """Return what is not done at this moment, by all that the world knows."""
        now = self.clock.now()
        due = [key for key, t in self._timers.items() if t.due_at and not t.reached and t.due_at <= now]
        busy = [each.name for each in self._consumers if each.pending or each.unanswered]
        commands = len(self.broker.streams[COMMANDS].messages)
        called = self._hooks.unsettled(now)
        if not (due or busy or commands or called):
            return ""
        return f"due {due}, consumers {busy}, {commands} commands, callbacks {called}"

    def _next_due(self) -> datetime | None:
        due = [t.due_at for t in self._timers.values() if t.due_at and not t.reached]
        return min([*due, *self._hooks.next_due()], default=None)

    def _before_move(self, target: datetime) -> None:
        self.tally.moves += 1
        self.note(f"time moves to {target:%d %H:%M}")
        next_due = self._next_due()
        if unsettled := self._unsettled():
            self.violated(f"time moves on while {unsettled}")
        if next_due is not None and target > next_due:
            self.violated(f"time moves to {target}, over {next_due}")
        if self._only_next and target != next_due:
            self.violated(f"time moves to {target}, the next due time is {next_due}")

    async def play(self) -> None:
        """Run the service, move its clock, judge each move and each return."""
        process, stores = _Process(), list[Store]()
        token = PROCESS.set(process)
        try:
            async with open_service(self._settings(), parts=self._parts(stores)) as service:
                stop = asyncio.Event()
                running = self.loop.create_task(run_service(service, stop))
                PROCESS.reset(token)
                await self._use(service, stores[0])
                stop.set()
                await running
        except Exception as error:
            self.violated(repr(error))

    def _settings(self) -> Settings:
        return settings(api_port=1, batch_size=BATCH) if self._hooks.has_any else settings(api_port=0)

    def _parts(self, stores: list[Store]) -> Parts:
        nats = SimulatedNats(self.broker, lambda *_: None, lambda *_: None)
        session = SessionMeans(make_client=cast("type[TolerantClient]", nats), elapsed_s=self.loop.time)
        means = NatsMeans(session=session, min_batched=2, delays_from=self.clock.delays_from)
        parts = in_memory(
            Parts(
                make_clock=lambda _: self.clock,
                chance=Random(f"clock-chance-{self.tally.seed}").random,
                elapsed_s=self.loop.time,
                make_bus=partial(NatsBus, means=means),
                open_sender=self._hooks.sender if self._hooks.has_any else lambda *_, **__: nullcontext(None),
                serve_api=lambda *_, **__: nullcontext(None),
                travel=cast(TimeTravel, object()),
            )
        )
        return _keeping(parts, stores)

    async def _use(self, service: Service, store: Store) -> None:
        while service.health().problems:
            await asyncio.sleep(0.01)
        settling = Settling(cast(Client, _Counters(self)), "timer", store, self.clock)
        walk = Walk(self.clock, settling, lambda: service.health().problems)
        for _ in range(self.random.randint(1, 4)):
            for _ in range(self.random.randint(0, 6)):
                self._wish("user")
            if self._hooks.has_any:
                await self._hooks.ask(store)
            await self._advance(walk)
        await self._advance(walk, HOUR * 24 * 365)
        self._hooks.judge()
        self.tally.callbacks = self._hooks.calls
        if (left := self._next_due()) is not None:
            self.violated(f"a timer of {left} has not fired")

    async def _advance(self, walk: Walk, by: timedelta | None = None) -> None:
        self.tally.advances += 1
        self._only_next = by is None and self.random.random() < 0.4
        target = self.clock.now() + (by or HOUR * self.random.choice((0, 1, 3, 10, 50)))
        self.note("to the next" if self._only_next else f"advance to {target:%d %H:%M}")
        moves = self.tally.moves
        walked = await (walk.advance_to_next() if self._only_next else walk.advance_to(target))
        if unsettled := self._unsettled():
            self.violated(f"advance returns while {unsettled}")
        if walked.now != self.clock.now() or (not self._only_next and walked.now != target):
            self.violated(f"advance to {target} ends at {walked.now}")
        if self._only_next and self.tally.moves - moves > 1:
            self.violated("to the next due time in more than one move")

    # What the broker answers about itself.

    def counters(self, consumer: _Consumer) -> SimpleNamespace:
        """Return what the broker says of a consumer: it knows of what was just stored a moment later."""
        known = [each for each in consumer.pending if each[1] <= self.loop.time()]
        return SimpleNamespace(
            name=consumer.name,
            config=SimpleNamespace(
                durable_name=consumer.name, filter_subject=consumer.subject, filter_subjects=None
            ),
            num_pending=len(known),
            num_ack_pending=len(consumer.unanswered),
            ack_floor=SimpleNamespace(consumer_seq=consumer.answered),
            delivered=SimpleNamespace(stream_seq=consumer.delivered),
        )


class _Counters:
    """A connection on which the broker is asked about its streams; each answer takes its time."""

    def __init__(self, world: ClockWorld) -> None:
        self._world = world

    def jetstream(self, **_: object) -> "_Counters":
        return self

    async def stream_info(self, name: str) -> SimpleNamespace:
        return await self._asked(lambda: self._state(name))

    async def consumers_info(self, _: str, offset: int) -> list[SimpleNamespace]:
        world = self._world
        return await self._asked(lambda: [world.counters(each) for each in world._consumers][offset:])

    async def get_last_msg(self, name: str, subject: str) -> SimpleNamespace:
        return await self._asked(lambda: self._newest(name, subject.split(".")))

    def _state(self, name: str) -> SimpleNamespace:
        stream = self._world.broker.streams[name]
        state = SimpleNamespace(last_seq=stream.last_sequence, messages=len(stream.messages))
        return SimpleNamespace(state=state)

    def _newest(self, name: str, pattern: list[str]) -> SimpleNamespace:
        stored = self._world.broker.streams[name].messages.items()
        found = [number for number, each in stored if matches(pattern, each.subject.split("."))]
        if not found:
            raise NotFoundError(code=404, err_code=10037, description="no message found")
        return SimpleNamespace(seq=max(found))

    async def _asked(self, question: Callable[[], T]) -> T:
        await asyncio.sleep(self._world.random.random() * 0.005)
        answer = question()
        await asyncio.sleep(self._world.random.random() * 0.005)
        return answer


def _keeping(parts: Parts, stores: list[Store]) -> Parts:
    """Note which store is opened, for those who look at it beside the service."""

    @asynccontextmanager
    async def opened(*arguments: Any) -> AsyncIterator[OpenedStore]:
        async with parts.open_store(*arguments) as store:
            stores.append(store.store)
            # As where one writer serves all: batches of a backlog are handed over with pauses.
            cast(MemoryDeliveries, store.store.deliveries).gathers_s = GATHERS_S
            yield store

    return replace(parts, open_store=opened)


def run_clock_seed(seed: int) -> ClockTally:
    """Play what a seed chooses for a service whose time stands."""
    world = ClockWorld(seed)
    try:
        with logs_heard(cast(Machine, world)):
            world.loop.run_until_complete(world.play())
    finally:
        world.loop.close()
    world.tally.trace_hash = hashlib.sha256("\n".join(world.tally.story).encode()).hexdigest()[:16]
    return world.tally
