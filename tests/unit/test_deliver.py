"""The loops of callbacks: a whole service on memory adapters, with a receiver that follows a script."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

import pytest

from tests.support.fakes import FragileStore
from tests.support.patience import PATIENCE_S
from tests.support.rig import POLL_S, Rig
from tests.support.timers import ACME, GLOBEX, at, call, cancel, schedule
from timer_service.domain.callback import Callback, RetryPolicy, Sink
from timer_service.domain.delivery import (
    Answered,
    CallbackRequest,
    CallResult,
    DeliveryState,
    TimedOut,
    Trouble,
    Unreachable,
    open_delivery,
)
from timer_service.domain.errors import StoreBusy
from timer_service.domain.lanes import MAX_QUEUED, Lanes
from timer_service.domain.messages import DueTimeReached, TenantId, TimerKey, firing_id
from timer_service.domain.pace import FIRST_PAUSE_S, MAX_FAILURES
from timer_service.domain.timer import Outcome, Timer, TimerState
from timer_service.ports.delivery_store import (
    ClaimedDelivery,
    DeliveryQuery,
    DuePage,
    Finished,
    Lane,
    Place,
    WaitingDelivery,
)
from timer_service.service.deliver import (
    MAX_KEPT,
    MAX_LOOK_INTERVAL_S,
    MAX_UNKEPT,
    SHARED_LOOK_INTERVAL_S,
    Rescan,
)
from timer_service.service.fire import HAND_OVER_PAUSE_S, Firing, over_http
from timer_service.testing import ManualClock, ScriptedSender
from timer_service.testing.deliveries import MemoryDeliveries
from timer_service.waiting import owned
from timer_service.workflows.deliver_callbacks import MAX_FOUND_AGAIN, WaitingList
from timer_service.workflows.hold_back import HoldBack

CALLBACK = Callback("https://shop.example/hooks")
FAIL = Answered(500)


async def ask(
    rig: Rig, name: str = "order-1", due_s: float = 10, *, tenant: str = ACME, callback: Callback = CALLBACK
) -> None:
    request = replace(schedule(name, due_s, tenant=tenant), callback=callback)
    await rig.store.decide([request], rig.clock.now())


async def pass_time(rig: Rig, seconds: float, step_s: float = 1.0) -> None:
    """Let time pass in steps, each of which everybody has noticed."""
    await rig.clock.until_rest()
    for _ in range(round(seconds / step_s)):
        rig.clock.advance(step_s)
        await rig.clock.until_rest()


def state(rig: Rig, name: str = "order-1", tenant: str = ACME) -> DeliveryState:
    return rig.store.deliveries.kept[TenantId(tenant), call(name)].state


async def test_a_timer_with_a_callback_calls_at_its_due_time_and_sends_no_event() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    await ask(rig)

    async with rig.running():
        await pass_time(rig, 9)
        assert sender.sent == []
        await pass_time(rig, 1)

    [sent] = sender.sent
    assert sent == CallbackRequest(
        tenant_id=ACME,
        service_call_id=call("order-1"),
        callback=CALLBACK,
        id=firing_id(ACME, call("order-1"), 1, at(10)),
        generation=1,
        due_at=at(10),
        reached_at=at(10),
        attempt=1,
        sent_at=at(10),
    )
    assert (rig.state("order-1"), state(rig)) == (TimerState.REACHED, DeliveryState.DELIVERED)
    assert rig.fired() == []


class MovedMeanwhile(FragileStore):
    """A store in which a command moves a timer while the loop of callbacks asks for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.move: Callable[[], None] | None = None

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        found = await super().next_due_at(after, sink)
        if sink is Sink.HTTP and self.move is not None:
            move, self.move = self.move, None
            move()
            while self.timers[ACME, call("order-1")].due_at == found:
                await asyncio.sleep(0)
            for _ in range(20):  # Until everybody was told.
                await asyncio.sleep(0)
        return found


async def test_a_command_that_moves_a_callback_during_a_look_is_noticed_at_once() -> None:
    sender, store = ScriptedSender(), MovedMeanwhile()
    rig = Rig(sender=sender, store=store)
    kept = replace(schedule("order-1", 60, number=0), callback=CALLBACK)
    await store.decide([kept], rig.clock.now())
    store.move = partial(rig.send, "order-1", 2)

    async with rig.running():
        await pass_time(rig, 2)

    assert [request.sent_at for request in sender.sent] == [at(2)]


async def test_what_the_receiver_said_is_kept_with_the_attempt_that_failed() -> None:
    answers = iter([Answered(500, said="no such order"), Answered(200)])
    rig = Rig(sender=ScriptedSender(lambda _: next(answers)), chance=0.0)
    await ask(rig, due_s=0)

    async with rig.running():
        await pass_time(rig, 6)

    [record] = (await rig.store.deliveries.get([(ACME, call("order-1"))])).values()
    assert [attempt.answer for attempt in record.attempts] == ["no such order"]


async def test_a_callback_is_repeated_by_its_schedule_under_the_same_id() -> None:
    sender = ScriptedSender(lambda _: FAIL)
    rig = Rig(sender=sender, chance=0.0)
    await ask(rig, due_s=0)

    async with rig.running():
        await pass_time(rig, 700)

    assert [request.sent_at for request in sender.sent] == [at(0), at(5), at(35), at(155)]
    assert [request.attempt for request in sender.sent] == [1, 2, 3, 4]
    assert len({request.id for request in sender.sent}) == 1


async def test_a_callback_with_one_attempt_survives_a_store_that_is_busy() -> None:
    results: list[CallResult] = [Unreachable(Trouble.STORE, "the store is busy"), Answered(200)]
    sender = ScriptedSender(lambda _: results[len(sender.sent) - 1])
    rig = Rig(sender=sender, chance=0.0)
    await ask(rig, due_s=0, callback=replace(CALLBACK, retry=RetryPolicy(())))

    async with rig.running():
        await pass_time(rig, 2)

    assert [(request.attempt, request.sent_at) for request in sender.sent] == [(1, at(0)), (1, at(1))]
    assert rig.store.deliveries.kept[ACME, call("order-1")].attempts == 1
    assert state(rig) is DeliveryState.DELIVERED


async def test_no_attempt_comes_before_the_receiver_wants_it() -> None:
    answers = iter([Answered(503, retry_after="20"), Answered(200)])
    sender = ScriptedSender(lambda _: next(answers))
    rig = Rig(sender=sender)
    await ask(rig, due_s=0)

    async with rig.running():
        await pass_time(rig, 30)

    assert [request.sent_at for request in sender.sent] == [at(0), at(20)]
    assert state(rig) is DeliveryState.DELIVERED


async def test_without_callbacks_the_loop_sleeps() -> None:
    rig = Rig(sender=ScriptedSender())

    async with rig.running():
        await rig.clock.until_rest()
        waits = len(rig.clock.waits)
        for name in range(50):
            rig.send(f"order-{name}", 1000)
            await rig.clock.until_rest()

        # One wait of the worker of the bus for the nearer timer; those of callbacks sleep on.
        assert len(rig.clock.waits) <= waits + 2


async def test_a_broker_that_is_away_delays_no_callback() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    await ask(rig, due_s=3)
    rig.broker.connected = False

    async with rig.running():
        await pass_time(rig, 3)

        assert [request.sent_at for request in sender.sent] == [at(3)]


async def test_a_receiver_that_hangs_delays_no_event_and_nobody_else() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    for n in range(300):
        await ask(rig, f"slow-{n}", 0, tenant="slow")
    await ask(rig, "quick-1", 1, tenant="quick")
    await rig.keep(schedule("bus-1", 1))
    sender.hang()

    async with rig.running():
        await pass_time(rig, 1)

        assert rig.fired() == [["bus-1"]]
        tenants = Counter(str(request.tenant_id) for request in sender.sent)
        assert tenants["quick"] == 1
        assert tenants["slow"] <= 4
        sender.go_on()
        async with asyncio.timeout(PATIENCE_S):
            while len(sender.sent) < 301:
                await pass_time(rig, 1)


async def test_a_tenant_whose_many_receivers_hang_leaves_room_for_the_others() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender, max_queued=400)
    slow = {f"slow-{n}": Callback(f"https://{n}.example/") for n in range(1_000)}
    for name, callback in slow.items():
        await ask(rig, name, 0, tenant="slow", callback=callback)
    await ask(rig, "quick-1", 5, tenant="quick")
    sender.hang()

    async with rig.running():
        await pass_time(rig, 5)
        quick = [request.sent_at for request in sender.sent if request.tenant_id == "quick"]
        sender.go_on()
        async with asyncio.timeout(PATIENCE_S):
            while len(sender.sent) <= len(slow):
                await asyncio.sleep(0)

    assert quick == [at(5)]
    # What was left out follows.
    assert Counter(request.service_call_id for request in sender.sent) == Counter([*slow, "quick-1"])


async def test_a_receiver_that_is_gone_costs_no_attempts_while_it_is_left_alone() -> None:
    gone = True

    def script(_: CallbackRequest) -> CallResult:
        return Unreachable(Trouble.CONNECT) if gone else Answered(200)

    sender = ScriptedSender(script)
    rig = Rig(sender=sender, chance=0.0)
    often = replace(CALLBACK, retry=RetryPolicy((timedelta(seconds=100),) * 3))
    for n in range(40):
        await ask(rig, f"order-{n:02}", 0, callback=often)

    async with rig.running():
        await pass_time(rig, 14)
        tried = len(sender.sent)
        assert 10 <= tried < 14
        gone = False
        await pass_time(rig, 180)

    attempts = [each.attempts for each in rig.store.deliveries.kept.values()]
    assert all(each.state is DeliveryState.DELIVERED for each in rig.store.deliveries.kept.values())
    assert sum(attempts) == len(sender.sent) == 40 + tried
    assert max(attempts) == 2


async def test_a_callback_that_comes_too_late_is_not_sent() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    await ask(rig, due_s=1, callback=replace(CALLBACK, expires_after=timedelta(seconds=60)))
    rig.clock.advance(100)

    async with rig.running():
        await pass_time(rig, 1)

    assert sender.sent == []
    assert state(rig) is DeliveryState.FAILED


async def test_what_waited_before_the_start_is_sent_at_the_start() -> None:
    first = Rig(sender=(sender := ScriptedSender()))
    await ask(first, due_s=0)
    sender.hang()
    async with first.running():
        await first.clock.until_rest()
        assert sender.under_way == 1
        first.service.stop()
        sender.go_on()
    kept = first.store.deliveries.kept[ACME, call("order-1")]
    assert kept.state is DeliveryState.DELIVERED


async def test_a_request_that_outlives_the_stop_is_left_to_the_next_start() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    await ask(rig, due_s=0)
    sender.hang()
    task = asyncio.ensure_future(rig.service.run())
    async with asyncio.timeout(PATIENCE_S):
        await sender.received(1)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert state(rig) is DeliveryState.WAITING
    again = Rig(sender=(second := ScriptedSender()), store=rig.store)
    async with again.running():
        await again.clock.until_rest()
    assert [request.id for request in second.sent] == [request.id for request in sender.sent]


class _SlowDeliveries(MemoryDeliveries):
    """Deliveries whose claims take until a test lets them go on."""

    def __init__(self, timers: dict[TimerKey, Timer]) -> None:
        super().__init__(timers)
        self.is_claiming, self.may_claim = asyncio.Event(), asyncio.Event()

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> list[ClaimedDelivery]:
        claimed = await super().claim(keys, now)
        if (TenantId(ACME), call("late")) in keys:
            self.is_claiming.set()
            await self.may_claim.wait()
        return claimed

    async def finish(self, finished: Sequence[Finished]) -> int:
        counted = await super().finish(finished)
        for _ in range(5):  # Until the call is over, too.
            await asyncio.sleep(0)
        return counted


async def test_what_is_claimed_when_the_service_stops_is_left_to_the_next_start() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = deliveries = _SlowDeliveries(rig.store.timers)
    rig = Rig(sender=sender, store=rig.store)
    await ask(rig, due_s=0)
    await ask(rig, "late", 1)
    sender.hang()

    async with rig.running():
        await rig.clock.until_rest()
        rig.clock.advance(1)
        async with asyncio.timeout(PATIENCE_S):
            await deliveries.is_claiming.wait()
            rig.service.stop()
            sender.go_on()
            while state(rig) is DeliveryState.WAITING:
                await asyncio.sleep(0)
        for _ in range(50):  # Now nothing is under way, and no outcome is left to be kept.
            await asyncio.sleep(0)
        deliveries.may_claim.set()

    # Either it was sent and that is known, or it was not: the next start must not repeat it.
    assert [request.service_call_id for request in sender.sent] == ["order-1"]
    assert state(rig, "late") is DeliveryState.WAITING


class _BusyDeliveries(MemoryDeliveries):
    """Deliveries whose outcomes cannot be kept for a while."""

    refused = 3

    async def finish(self, finished: Sequence[Finished]) -> int:
        if self.refused:
            self.refused -= 1
            raise StoreBusy("busy")
        return await super().finish(finished)


async def test_while_no_outcome_can_be_kept_the_end_of_a_pause_keeps_nobody_busy() -> None:
    sender = ScriptedSender(
        lambda request: FAIL if request.service_call_id.startswith("gone") else Answered(200)
    )
    rig = Rig(sender=sender)
    rig.store.deliveries = busy = _BusyDeliveries(rig.store.timers)
    busy.refused = 1_000_000
    rig = Rig(sender=sender, store=rig.store)
    for n in range(2 * MAX_FAILURES):
        await ask(rig, f"gone-{n}", 0)
    for n in range(MAX_UNKEPT + 1):
        await ask(rig, f"taken-{n}", 0, callback=Callback("https://well.example/"))

    async with rig.running():
        await pass_time(rig, FIRST_PAUSE_S - 1)
        sent = len(sender.sent)
        waits = len(rig.clock.waits)
        rig.clock.advance(2)
        for _ in range(1_000):
            await asyncio.sleep(0)
        waits = len(rig.clock.waits) - waits
        busy.refused = 0
        await pass_time(rig, FIRST_PAUSE_S)

    assert sent >= MAX_UNKEPT
    assert waits < 100
    assert len(sender.sent) > sent  # It goes on.


async def test_an_outcome_that_cannot_be_kept_is_kept_later_and_not_sent_again() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    busy = _BusyDeliveries(rig.store.timers)
    rig.store.deliveries = busy
    rig = Rig(sender=sender, store=rig.store)
    await ask(rig, due_s=0)

    async with rig.running():
        await rig.clock.until_rest()
        assert state(rig) is DeliveryState.WAITING
        assert "deliveries" in rig.service.health().problems
        await pass_time(rig, 2 * POLL_S)
        assert rig.service.health().problems == {}

    assert (len(sender.sent), state(rig)) == (1, DeliveryState.DELIVERED)


async def test_what_comes_due_right_after_a_hand_over_waits_for_the_next_one() -> None:
    rig = Rig(sender=ScriptedSender())
    handed_over: list[list[str]] = []
    route = over_http(rig.around, lambda events: handed_over.append([str(e.service_call_id) for e in events]))
    firing = Firing(
        rig.around,
        poll_interval_s=POLL_S,
        batch_size=10,
        precise_wakeup=True,
        catch_up=timedelta(0),
        hold_back=HoldBack(10),
        looking=lambda: None,
        route=replace(route, pause_s=3_600),
    )
    for n in (1, 2):
        await ask(rig, f"order-{n}", n)

    async with asyncio.TaskGroup() as firings, owned(firing.run(firings)):
        await pass_time(rig, 1)
        async with asyncio.timeout(PATIENCE_S):
            while not handed_over:
                await asyncio.sleep(0)
        await pass_time(rig, POLL_S)

    assert handed_over == [["order-1"]]


class _Noting(ManualClock):
    """A clock that notes each wait among what else happens, and stands: none of them takes any time."""

    def __init__(self) -> None:
        super().__init__()
        self.happened: list[str | float] = []

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        self.happened.append(round(seconds, 6))
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("batch_took_s", "happened"),
    [
        (0.02, ["order-1", "order-2", 0.01, "order-3", 0.01, "order-4", "order-5", 0.01, "order-6", 0.01]),
        (0.0, ["order-1", "order-2", "order-3", "order-4", "order-5", "order-6", 0.01]),
    ],
)
async def test_a_batch_of_a_backlog_begins_only_if_it_is_over_before_the_next_due_time(
    batch_took_s: float, happened: list[str | float]
) -> None:
    clock = _Noting()
    rig = Rig(sender=ScriptedSender())
    elapsed_s = itertools.count(0.0, batch_took_s)
    around = replace(rig.around, clock=clock, elapsed_s=lambda: next(elapsed_s))
    route = over_http(around, lambda events: clock.happened.extend(str(e.service_call_id) for e in events))
    firing = Firing(
        around,
        poll_interval_s=POLL_S,
        batch_size=2,
        precise_wakeup=True,
        catch_up=timedelta(0),
        hold_back=HoldBack(10),
        looking=lambda: None,
        route=replace(route, pause_s=0.001),
    )
    for n in range(1, 7):
        await ask(rig, f"order-{n}", 0)
    await ask(rig, "punctual", 0.01, tenant=GLOBEX)

    async with asyncio.TaskGroup() as firings, owned(firing.run(firings)), asyncio.timeout(PATIENCE_S):
        while len(clock.happened) < len(happened):
            await asyncio.sleep(0)

    assert clock.happened[: len(happened)] == happened


async def test_a_store_that_is_busy_between_batches_of_a_backlog_ends_nothing() -> None:
    store = FragileStore()
    store.deliveries.gathers_s = 0.001
    rig = Rig(sender=ScriptedSender(), batch_size=2, store=store)
    names = [f"order-{n}" for n in range(1, 7)]
    for name in names:
        await ask(rig, name, 0)
    store.fail("next_due_at", *[StoreBusy("the store is busy")] * 3)

    async with asyncio.timeout(PATIENCE_S), rig.running() as running:
        while not running.done() and {rig.state(name) for name in names} != {TimerState.REACHED}:
            rig.clock.advance(0.1)
            await asyncio.sleep(0)

    assert {rig.state(name) for name in names} == {TimerState.REACHED}


@pytest.mark.parametrize("spares", [True, False])
async def test_only_if_receivers_are_spared_is_one_that_keeps_failing_given_a_rest(*, spares: bool) -> None:
    sender, callbacks = ScriptedSender(lambda _: Answered(500)), 2 * MAX_FAILURES
    rig = Rig(sender=sender, spares_receivers=spares)
    for n in range(callbacks):
        await ask(rig, f"order-{n}", 0)

    async with rig.running():
        await pass_time(rig, 1)

    assert (len(sender.sent) < callbacks) is spares


def test_only_where_one_writer_serves_all_hand_overs_pause() -> None:
    rig = Rig(sender=ScriptedSender())
    one_writer = MemoryDeliveries(rig.store.timers)
    one_writer.gathers_s = 0.02

    pauses = [
        over_http(replace(rig.around, deliveries=deliveries), lambda _: None).pause_s
        for deliveries in (rig.store.deliveries, one_writer)
    ]

    assert pauses == [0.0, HAND_OVER_PAUSE_S]


class _SharedDeliveries(MemoryDeliveries):
    """Deliveries of which another instance takes most just after we have seen them, and then ends."""

    is_shared = True
    theirs = 0

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> list[ClaimedDelivery]:
        for key in sorted(self.kept)[: self.theirs]:
            self.kept[key] = replace(
                self.kept[key], state=DeliveryState.DELIVERED, next_attempt_at=None, ended_at=now
            )
        return await super().claim(keys, now)


class _LongList(MemoryDeliveries):
    """Deliveries that note how they were looked for."""

    pages = 0

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        self.pages += lane is None
        return await super().due(now, limit, after=after, lane=lane)

    async def due_among(self, keys: Sequence[TimerKey], now: datetime) -> list[WaitingDelivery]:
        pages = self.pages
        found = await super().due_among(keys, now)
        self.pages = pages
        for _ in range(20):  # Others are handed over meanwhile.
            await asyncio.sleep(0)
        return found


async def test_what_is_handed_over_begins_without_a_look_at_all_that_waits() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = deliveries = _LongList(rig.store.timers)
    rig = Rig(sender=sender, store=rig.store)
    for n in range(200):
        await ask(rig, f"order-{n}", 1)

    async with rig.running():
        await rig.clock.until_rest()
        pages = deliveries.pages
        rig.clock.advance(1)
        async with asyncio.timeout(PATIENCE_S):
            while len(sender.sent) < 200:
                await asyncio.sleep(0)

    assert deliveries.pages == pages


async def test_what_another_instance_has_taken_keeps_nothing_else_waiting() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    shared = _SharedDeliveries(rig.store.timers)
    shared.theirs = 250
    rig.store.deliveries = shared
    rig = Rig(sender=sender, store=rig.store)
    for n in range(400):
        await ask(rig, f"order-{n:03}", 0)

    async with rig.running():
        await pass_time(rig, 1, 0.05)

    assert sorted(request.service_call_id for request in sender.sent) == [
        f"order-{n}" for n in range(250, 400)
    ]


class _Present(MemoryDeliveries):
    """Deliveries that note how often they were told that we are there."""

    is_shared = True
    stays = 0

    async def stay(self) -> None:
        self.stays += 1


async def test_an_instance_says_that_it_is_there_also_while_it_has_nothing_to_ask() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = deliveries = _Present(rig.store.timers)
    rig = Rig(sender=sender, store=rig.store, max_queued=50)
    for n in range(60):
        await ask(rig, due_s=0, tenant=f"tenant-{n}")
    sender.hang()

    async with rig.running():
        await pass_time(rig, 5)
        before = deliveries.stays
        await pass_time(rig, 20)
        meanwhile = deliveries.stays - before
        sender.go_on()

    assert meanwhile >= 20 / SHARED_LOOK_INTERVAL_S


async def test_an_instance_that_stops_is_there_until_its_calls_have_ended() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = deliveries = _Present(rig.store.timers)
    rig = Rig(sender=sender, store=rig.store)
    await ask(rig, due_s=0)
    sender.hang()

    async with rig.running():
        await rig.clock.until_rest()
        before = deliveries.stays
        rig.service.stop()
        async with asyncio.timeout(PATIENCE_S):
            while deliveries.stays < before + 2:
                await asyncio.sleep(0.01)
        sender.go_on()

    assert state(rig) is DeliveryState.DELIVERED


class _SlowPresence(_Present):
    """Deliveries whose database takes so long to hear that we are there that all calls have ended by then."""

    def __init__(self, timers: dict[TimerKey, Timer], go_on: Callable[[], None]) -> None:
        super().__init__(timers)
        self._go_on = go_on
        self.is_slow = False

    async def stay(self) -> None:
        await super().stay()
        if self.is_slow:
            self._go_on()
            while not any(kept.state is DeliveryState.DELIVERED for kept in self.kept.values()):
                await asyncio.sleep(0)


async def test_calls_that_end_while_the_store_is_told_of_us_end_a_stop() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = deliveries = _SlowPresence(rig.store.timers, sender.go_on)
    rig = Rig(sender=sender, store=rig.store)
    await ask(rig, due_s=0)
    sender.hang()

    async with rig.running():
        await rig.clock.until_rest()
        deliveries.is_slow = True
        rig.service.stop()

    assert state(rig) is DeliveryState.DELIVERED


async def test_what_was_missed_is_found_behind_all_that_waits() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    for n in range(3 * MAX_FOUND_AGAIN):
        await ask(rig, f"order-{n:03}", 0)

    async with rig.running():
        await pass_time(rig, 4, 0.1)
        kept = rig.store.deliveries.kept
        for key, delivery in kept.items():  # As another instance leaves them that takes them, and dies.
            kept[key] = replace(delivery, state=DeliveryState.WAITING, next_attempt_at=at(0), ended_at=None)
        await pass_time(rig, 2 * MAX_LOOK_INTERVAL_S, 0.1)

    assert set(Counter(request.service_call_id for request in sender.sent).values()) == {2}


async def test_what_is_known_is_not_looked_at_while_no_more_is_taken_in() -> None:
    deliveries = _LongList({})
    lanes = Lanes[TimerKey]()
    for n in range(MAX_QUEUED):
        tenant = TenantId(f"tenant-{n}")
        lanes.offer((tenant, call("order-1")), (tenant, CALLBACK.origin), 0.0)

    is_last = await WaitingList(deliveries, lanes).look_at_known(at(0), 0.0)

    assert (is_last, deliveries.pages) == (True, 0)


def test_a_look_at_what_is_known_rests_after_each_page_and_as_long_as_it_took_after_the_last() -> None:
    rescan = Rescan(5.0, 100.0)
    begins = [rescan.at_s]

    for from_s, to_s, is_last in ((105.0, 106.0, False), (110.0, 112.0, False), (120.0, 121.0, True)):
        rescan.looked(from_s, to_s, is_last=is_last)
        begins.append(rescan.at_s)
    rescan.looked(137.0, 137.5, is_last=True)

    assert [*begins, rescan.at_s] == [105.0, 110.0, 120.0, 137.0, 142.5]


def test_what_was_missed_is_looked_for_although_there_is_always_something_to_begin() -> None:
    """As behind the backlog of a tenant whose callbacks end at once."""
    rescan = Rescan(5.0, 100.0)
    due = [
        (now_s, is_busy)
        for now_s in (104.0, 105.0, 109.0, 110.0)
        for is_busy in (False, True)
        if rescan.is_due(now_s, is_busy=is_busy)
    ]

    assert due == [(105.0, False), (109.0, False), (110.0, False), (110.0, True)]


class _LateAnswer(MemoryDeliveries):
    """Deliveries of which a page comes after others have changed what it shows."""

    def __init__(self, timers: dict[TimerKey, Timer]) -> None:
        super().__init__(timers)
        self.meanwhile: Callable[[], None] | None = None

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        page = await super().due(now, limit, after=after, lane=lane)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return page


async def test_a_repeat_that_is_kept_during_a_look_is_not_forgotten() -> None:
    deliveries = _LateAnswer({})
    waiting = WaitingList(deliveries, Lanes[TimerKey]())
    deliveries.meanwhile = partial(waiting.comes_at, at(5))

    await waiting.look(at(0), 0.0)

    assert (waiting.next_attempt_at, waiting.is_behind) == (at(5), False)


async def test_a_repeat_that_is_kept_late_and_before_the_page_of_a_look_is_looked_for() -> None:
    rig = Rig()
    deliveries = _LateAnswer(rig.store.timers)
    lanes = Lanes[TimerKey]()
    waiting = WaitingList(deliveries, lanes)
    first, late, other = (
        DueTimeReached(TenantId(ACME), call(name), at(s), at(s), 1, None)
        for name, s in (("first", 30), ("late", 5), ("other", 30))
    )

    def opened(event: DueTimeReached) -> None:
        deliveries.kept[event.key] = open_delivery(event, CALLBACK)

    def kept_late() -> None:
        opened(late)
        waiting.comes_at(late.at)

    opened(first)
    await waiting.look(at(60), 0.0)  # The next one goes on behind it.
    opened(other)
    waiting.handed_over([other])
    waiting.look_on()
    deliveries.meanwhile = kept_late
    await waiting.look(at(60), 0.0)
    await waiting.look(at(60), 0.0)

    assert late.key in lanes.seats


async def test_a_replay_during_a_look_is_looked_for_at_once() -> None:
    rig = Rig()
    deliveries = _LateAnswer(rig.store.timers)
    lanes = Lanes[TimerKey]()
    waiting = WaitingList(deliveries, lanes)
    key = TenantId(ACME), call("order-1")

    def replayed() -> None:
        event = DueTimeReached(*key, at(0), at(0), 1, None)
        deliveries.kept[key] = open_delivery(event, CALLBACK)
        waiting.look_again(at(0))

    deliveries.meanwhile = replayed
    await waiting.look(at(0), 0.0)
    behind = waiting.is_behind
    await waiting.look(at(0), 0.0)

    assert (behind, key in lanes.seats, waiting.is_behind) == (True, True, False)


async def test_a_look_that_fails_is_made_again() -> None:
    deliveries = _BusyList({})
    waiting = WaitingList(deliveries, Lanes[TimerKey]())

    with pytest.raises(StoreBusy):
        await waiting.look(at(0), 0.0)

    assert waiting.is_behind


async def test_a_replay_is_sent_at_once() -> None:
    answers = iter([Answered(410), Answered(200)])
    sender = ScriptedSender(lambda _: next(answers))
    rig = Rig(sender=sender)
    await ask(rig, due_s=0)

    async with rig.running():
        await rig.clock.until_rest()
        assert state(rig) is DeliveryState.FAILED
        failed = await rig.store.deliveries.list_deliveries(DeliveryQuery(ACME))
        await rig.store.deliveries.replay(failed, rig.clock.now())
        rig.service.deliver_from(rig.clock.now())
        await rig.clock.until_rest()

    assert [request.attempt for request in sender.sent] == [1, 2]
    assert sender.sent[0].id == sender.sent[1].id


async def test_an_abandoned_callback_is_not_tried_again() -> None:
    sender = ScriptedSender(lambda _: TimedOut(timedelta(seconds=30)))
    rig = Rig(sender=sender)
    await ask(rig, due_s=0)

    async with rig.running():
        await rig.clock.until_rest()
        await rig.store.deliveries.abandon((ACME, call("order-1")), rig.clock.now())
        await pass_time(rig, 60)

    assert len(sender.sent) == 1


async def test_thousands_of_callbacks_of_one_receiver_are_all_sent_once() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender, batch_size=1_000)
    for n in range(3_000):
        await ask(rig, f"order-{n:04}", 0)

    async with rig.running():
        await pass_time(rig, 20, 0.01)
        async with asyncio.timeout(PATIENCE_S):
            while len(sender.sent) < 3_000:
                rig.clock.advance(0.01)
                await asyncio.sleep(0)

    assert Counter(request.service_call_id for request in sender.sent).most_common(1)[0][1] == 1
    assert all(each.state is DeliveryState.DELIVERED for each in rig.store.deliveries.kept.values())


async def test_no_callback_begins_while_a_timer_on_the_bus_is_on_its_way() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender, gives_way_s=PATIENCE_S)
    sent_meanwhile = list[int]()

    async def watch() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        sent_meanwhile.append(len(sender.sent))

    rig.bus.meanwhile = watch
    await rig.keep(schedule("on-the-bus", 10))
    for n in range(30):
        await ask(rig, due_s=10, tenant=f"tenant-{n}")

    async with rig.running():
        await pass_time(rig, 10)
        async with asyncio.timeout(PATIENCE_S):
            while len(sender.sent) < 30:
                await asyncio.sleep(0)

    assert sent_meanwhile == [0]


class _Groups(MemoryDeliveries):
    """Deliveries that note how many outcomes are kept together."""

    sizes: ClassVar[list[int]] = []
    sender: ClassVar[ScriptedSender]

    async def finish(self, finished: Sequence[Finished]) -> int:
        self.sizes.append(len(finished))
        while self.sender.under_way:  # Meanwhile all others come in.
            await asyncio.sleep(0)
        return await super().finish(finished)


async def test_of_many_outcomes_few_are_kept_together() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = deliveries = _Groups(rig.store.timers)
    _Groups.sender = sender
    rig = Rig(sender=sender, store=rig.store)
    for n in range(100):
        await ask(rig, due_s=0, tenant=f"tenant-{n}")
    sender.hang()

    async with rig.running():
        async with asyncio.timeout(PATIENCE_S):
            while sender.under_way < 100:
                await asyncio.sleep(0)
        sender.go_on()

    assert (sum(deliveries.sizes), max(deliveries.sizes)) == (100, MAX_KEPT)


async def test_cancelled_means_that_no_request_is_ever_sent() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    names = [f"order-{n}" for n in range(50)]
    for n, name in enumerate(names):
        await ask(rig, name, n / 10)
    cancelled = []

    async with rig.running():
        for n, name in enumerate(names):
            rig.clock.advance(0.1)
            for _ in range(n % 7):
                await asyncio.sleep(0)
            [decided] = await rig.store.decide([cancel(name, number=1)], rig.clock.now())
            cancelled += [name] if decided.outcome is Outcome.CANCELLED else []
        await pass_time(rig, 10)

    sent = {str(request.service_call_id) for request in sender.sent}
    assert not sent & set(cancelled)
    assert sent | set(cancelled) == set(names)


# What the service tells and is told of callbacks


def unreachable(_: CallbackRequest) -> CallResult:
    return Unreachable(Trouble.CONNECT)


async def test_the_gauges_tell_what_waits_and_which_receivers_count_as_gone() -> None:
    rig = Rig(sender=(sender := ScriptedSender(unreachable)), chance=0.0)
    for n in range(20):
        await ask(rig, f"order-{n:02}", 0)

    async with rig.running():
        await pass_time(rig, 14)
        sender.hang()
        await ask(rig, "slow-1", 14, tenant="slow")
        rig.service.wake_for(at(14), Sink.HTTP)
        await rig.clock.until_rest()
        await rig.service.observe()
        shown = set(rig.metrics.text().decode().splitlines())
        sender.go_on()

    assert {"timer_callbacks_under_way 1.0", "timer_callback_breakers_open 1.0"} <= shown
    assert "timer_callbacks_waiting 21.0" in shown


async def test_a_receiver_that_counts_as_gone_has_a_time_at_which_it_is_tried_again() -> None:
    rig, lane = Rig(sender=ScriptedSender(unreachable), chance=0.0), (TenantId(ACME), CALLBACK.origin)
    for n in range(20):
        await ask(rig, f"order-{n:02}", 0)

    before = rig.service.receiver_back_at(lane)
    async with rig.running():
        await pass_time(rig, 14)
        back_at = rig.service.receiver_back_at(lane)
        other = rig.service.receiver_back_at((TenantId("globex"), CALLBACK.origin))

        assert (before, other) == (None, None)
        assert back_at is not None
        assert back_at > rig.clock.now()


async def test_a_callback_that_was_accepted_here_is_sent_at_its_due_time() -> None:
    rig = Rig(sender=(sender := ScriptedSender()))

    async with rig.running():
        await rig.clock.until_rest()
        await ask(rig, due_s=1)
        rig.service.wake_for(at(1), Sink.HTTP)
        await pass_time(rig, 1)

        assert [request.sent_at for request in sender.sent] == [at(1)]


async def test_a_callback_that_another_instance_has_accepted_is_sent_at_its_due_time() -> None:
    """The news of a timer does not say whether it has a callback."""
    rig = Rig(sender=(sender := ScriptedSender()))
    await ask(rig, "order-2", 3)

    async with rig.running():
        await rig.clock.until_rest()
        await ask(rig, due_s=1)
        rig.service.heard_of(at(1))
        await pass_time(rig, 1)

        assert [request.sent_at for request in sender.sent] == [at(1)]


async def test_a_service_without_callbacks_has_nothing_to_tell_of_them_and_wakes_for_none() -> None:
    rig = Rig()
    await ask(rig, due_s=0)
    [timer] = rig.store.timers.values()

    async with rig.running():
        await rig.clock.until_rest()
        waits = len(rig.clock.waits)
        rig.service.wake_for(at(1), Sink.HTTP)
        rig.service.deliver_from(rig.clock.now())
        await rig.clock.until_rest()

        assert len(rig.clock.waits) == waits
        assert rig.service.obstacle(timer) is None
        assert rig.service.receiver_back_at((TenantId(ACME), CALLBACK.origin)) is None
        rig.service.heard_of(at(1))
        await rig.clock.until_rest()

        assert len(rig.clock.waits) == waits + 1  # One of the bus may be due then.


async def test_nothing_is_in_the_way_of_a_callback_that_is_not_due() -> None:
    rig = Rig(sender=ScriptedSender())
    await ask(rig)
    [timer] = rig.store.timers.values()

    assert rig.service.obstacle(timer) is None


class _BusyList(MemoryDeliveries):
    """Deliveries that cannot be looked for, for a while."""

    refused = 3

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        if self.refused:
            self.refused -= 1
            raise StoreBusy("busy")
        return await super().due(now, limit, after=after, lane=lane)


async def test_a_list_that_cannot_be_read_is_a_problem_until_it_can() -> None:
    rig = Rig(sender=(sender := ScriptedSender()))
    rig.store.deliveries = _BusyList(rig.store.timers)
    rig = Rig(sender=sender, store=rig.store)
    await ask(rig, due_s=0)

    async with rig.running():
        await rig.clock.until_rest()
        assert rig.service.health().problems == {"deliveries": "busy"}
        await pass_time(rig, 2 * POLL_S)
        assert rig.service.health().problems == {}

    assert (len(sender.sent), state(rig)) == (1, DeliveryState.DELIVERED)


async def test_an_outcome_that_cannot_be_kept_before_the_stop_is_left_to_the_next_start() -> None:
    sender = ScriptedSender()
    rig = Rig(sender=sender)
    rig.store.deliveries = busy = _BusyDeliveries(rig.store.timers)
    busy.refused = 1_000_000
    rig = Rig(sender=sender, store=rig.store)
    await ask(rig, due_s=0)

    async with rig.running():
        await rig.clock.until_rest()

    assert (len(sender.sent), state(rig)) == (1, DeliveryState.WAITING)
    busy.refused = 0
    again = Rig(sender=(second := ScriptedSender()), store=rig.store)
    async with again.running():
        await again.clock.until_rest()
    assert [request.id for request in second.sent] == [request.id for request in sender.sent]
