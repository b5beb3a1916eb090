"""Crash a flow everywhere: a worker dies before and after everything that it does, and another takes over."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import PubAck

from timer_client.flows import Flows, Journal, MemoryJournal, RunState, RunView
from timer_client.flows.statements import Hold, Memo, Work
from timer_client.testing.fake import START, TENANT, FakeTimers
from timer_client.testing.memory_broker import NEXT, MemoryBroker
from timer_client.testing.memory_service import MemoryService
from timer_client.testing.reordered import reordered
from timer_client.testing.watching import Flow, Watch, shown
from timer_client.timers import Timers

RUN_ID: Final = "rehearsal"
WAITS_FOREVER: Final = "the run waits forever: send what it waits for with signals=, or give a timeout"
MAX_WAKES: Final = 10_000
"""More than that, and a flow never ends."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of it, if nothing was wrong."""

    result: Any
    """What the flow returns, wherever its workers die."""
    crashes: int
    """How often one did."""


async def crash_everywhere(
    flow: Flow,
    input: Any = None,  # noqa: A002 - the word of `flows.start`
    *,
    signals: Mapping[str, Mapping[str, Any]] | None = None,
    effects: list[Any] | None = None,
) -> Rehearsal:
    """Run a flow again and again, its worker killed at every moment in turn; raise FlowMistake if it matters.

    Time passes by itself. `signals` are sent right after the start. `effects` is a list that your fakes
    append to: what is done outside a step is found by it.
    """
    story = _Story(flow, input, dict(signals or {}), [] if effects is None else effects)
    whole = await story.told(die_at=None)
    first = shown(whole.result), {shown(effect) for effect in story.effects}
    story.watch.check()
    for moment in range(1, story.moments + 1):
        view = await story.told(die_at=moment)
        again = shown(view.result), {shown(effect) for effect in story.effects}
        if again != first:
            story.watch.found(f"ends with {again}, and without a crash, with {first}")
        story.watch.check()
    return Rehearsal(whole.result, story.moments)


class _Story:
    """One run of a flow from its start to its end, told as often as one likes."""

    def __init__(
        self, flow: Flow, value: Any, signals: dict[str, Mapping[str, Any]], effects: list[Any]
    ) -> None:
        self.effects = effects
        self.watch = Watch(effects)
        self.moments = 0
        """How often a worker can die, when told without a crash."""
        self._flow = flow
        self._reordered = [reordered(flow, backwards=backwards) for backwards in (False, True)]
        self._value = value
        self._signals = signals

    async def told(self, die_at: int | None) -> RunView:
        """Run it once; the first worker dies at its nth moment, and another one takes over."""
        self.effects.clear()
        journal, service = MemoryJournal(), MemoryService("timer", START)
        try:
            await journal.migrate()
            life = _Life(die_at)
            await self._start(service, journal)
            view = await self._lived(life, service, journal, self._flow)
            if view is None:
                service.broker.lose_workers()
                # Another process: what it does with sets, it may do in another order.
                view = await self._lived(_Life(None), service, journal, self._reordered[(die_at or 0) % 2])
            elif die_at is None:
                self.moments = life.moments
        finally:
            journal.close()
        assert view is not None
        if view.state in (RunState.FAILED, RunState.CANCELLED):
            self.watch.found(f"the run ends as {view.state}: {view.error}")
        return view

    async def _start(self, service: MemoryService, journal: Journal) -> None:
        flows = self._defined(FakeTimers(service=service), journal, self._flow)
        await flows.start("flow", id=RUN_ID, input=self._value)
        for name, payload in self._signals.items():
            await flows.signal(RUN_ID, name, **payload)

    async def _lived(
        self, life: "_Life", service: MemoryService, journal: Journal, flow: Flow
    ) -> RunView | None:
        """Let a worker live until the run has ended, or until it dies; return the run if it has ended."""
        timers = Timers(cast(Client, _DyingLine(service.broker, life)), tenant=TENANT)
        fake = FakeTimers(service=service)
        timers.stopwatch = fake.stopwatch
        working = asyncio.ensure_future(
            _work(self._defined(timers, _DyingJournal(journal, life), flow), life.over)
        )
        passing = asyncio.ensure_future(self._pass_time(fake, service, self._defined(fake, journal, flow)))
        dying = asyncio.ensure_future(life.dead.wait())
        await asyncio.wait({working, passing, dying}, return_when=asyncio.FIRST_COMPLETED)
        done = len(self.effects)
        with self.watch.blind():
            life.over.set()
            if not passing.done():
                passing.cancel()
            await asyncio.wait({working, passing})
            dying.cancel()
        del self.effects[done:]  # The dead do nothing.
        if life.dead.is_set():
            return None
        working.result()
        return passing.result()

    def _defined(self, timers: Timers, journal: Journal, flow: Flow) -> Flows:
        flows = Flows(timers, journal, name="flows")
        flows.flow("flow")(self.watch.watched(flow))
        return flows

    async def _pass_time(self, timers: FakeTimers, service: MemoryService, flows: Flows) -> RunView:
        """Let time pass until the run has ended."""
        for _ in range(MAX_WAKES):
            await timers.settle()
            view = await flows.get(RUN_ID)
            if view.state not in (RunState.SLEEPING, RunState.RUNNING):
                return view
            if service.next_at() is None:
                self.watch.found(WAITS_FOREVER)
                return view
            await timers.advance_to_next()
        self.watch.found(f"the run has not ended after {MAX_WAKES} wake-ups")
        return view


async def _work(flows: Flows, over: asyncio.Event) -> None:
    async with flows.worker():
        await over.wait()


class _Life:
    """A worker's life, which ends at a moment; from then on nothing that it does reaches anybody."""

    def __init__(self, die_at: int | None) -> None:
        self.moments = 0
        self.dead = asyncio.Event()
        self.over = asyncio.Event()
        self._die_at = die_at

    async def moment(self) -> None:
        """Go on, or die here."""
        self.moments += 1
        if self.moments == self._die_at:
            self.dead.set()
        if self.dead.is_set():
            await self.over.wait()
            raise asyncio.CancelledError

    async def around(self, deed: Callable[[], Awaitable[T]]) -> T:
        """Do something, with a moment before and after it."""
        await self.moment()
        result = await deed()
        await self.moment()
        return result


class _DyingJournal:
    """A journal that a worker may die on."""

    def __init__(self, journal: Journal, life: _Life) -> None:
        self._journal = journal
        self._life = life

    async def migrate(self) -> None:
        await self._journal.migrate()

    async def commit(self, work: Work[T], connection: Any = None) -> T:
        return await self._life.around(lambda: self._journal.commit(work, connection))

    async def perform(self, hold: Hold, effect: Callable[[Any], Awaitable[list[Memo]]]) -> None:
        async def and_die(connection: Any) -> list[Memo]:
            memos = await effect(connection)
            await self._life.moment()
            return memos

        await self._life.around(lambda: self._journal.perform(hold, and_die))


class _DyingLine:
    """A connection to the broker that is silent when its worker is dead."""

    def __init__(self, broker: MemoryBroker, life: _Life) -> None:
        self._broker = broker
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def jetstream(self, **_: object) -> "_DyingLine":
        return self

    async def publish(self, subject: str, body: bytes, **options: Any) -> PubAck:
        if self._life.dead.is_set():
            return PubAck("", 0)
        if subject.startswith(NEXT) or body == b"+WPI":
            return await self._broker.publish(subject, body, **options)
        return await self._life.around(lambda: self._broker.publish(subject, body, **options))

    async def request(self, subject: str, body: bytes, **options: Any) -> Msg:
        return await self._life.around(lambda: self._broker.request(subject, body, **options))
