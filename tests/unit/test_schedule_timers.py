"""A batch of commands is kept, acknowledged, and what is no command is set aside."""

from collections import Counter
from typing import TypeVar

import pytest

from tests.support import messages
from tests.support.fakes import FragileStore
from tests.support.timers import ACME, at, call, scheduled_timer
from timer_client.subjects import Subjects
from timer_service.domain.errors import RefusalReason, StoreFailed
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.command_source import Refusal
from timer_service.testing import ManualClock, MemoryEventBus
from timer_service.workflows.open_questions import OpenQuestions
from timer_service.workflows.schedule_timers import ScheduleReport, schedule_timers

T = TypeVar("T")


class Desk:
    """The workflow between a memory bus and a memory store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FragileStore()
        self.bus = MemoryEventBus(self.clock, Subjects("timer"))
        self.questions = OpenQuestions()

    def schedule(self, name: str, due_s: float) -> None:
        self._send("ScheduleTimer", messages.schedule("acme", name, at(due_s)))

    def cancel(self, name: str) -> None:
        self._send("CancelTimer", messages.cancel("acme", name))

    def _send(self, kind: str, envelope: dict[str, object]) -> None:
        self.bus.send(f"timer.commands.acme.{kind}", messages.encode(envelope))

    def send_rubbish(self) -> int:
        return self.bus.send("timer.commands.acme.ScheduleTimer", b"rubbish")

    async def work(self) -> ScheduleReport:
        """Handle the batch at hand."""
        return await schedule_timers(
            batch=await self.bus.receive(), store=self.store, clock=self.clock, questions=self.questions
        )


async def test_commands_are_kept_and_acknowledged() -> None:
    desk = Desk()
    desk.schedule("order-1", 60)
    desk.schedule("order-2", 30)

    report = await desk.work()

    assert report == ScheduleReport(
        commands=Counter({("ScheduleTimer", Outcome.SCHEDULED): 2}),
        refusals=[],
        redelivered=0,
        nearest_due_at=at(30),
    )
    assert desk.store.timers == {
        (ACME, call("order-1")): scheduled_timer("order-1", 60, number=1),
        (ACME, call("order-2")): scheduled_timer("order-2", 30, number=2),
    }
    assert desk.bus.pending == {}


async def test_a_batch_is_one_call_to_the_store_in_the_order_of_the_stream() -> None:
    desk = Desk()
    desk.schedule("order-1", 60)
    desk.schedule("order-1", 30)
    desk.cancel("order-1")

    report = await desk.work()

    assert desk.store.calls == ["apply"]
    assert report.commands == {
        ("ScheduleTimer", Outcome.SCHEDULED): 1,
        ("ScheduleTimer", Outcome.RESCHEDULED): 1,
        ("CancelTimer", Outcome.CANCELLED): 1,
    }
    assert desk.store.timers[ACME, call("order-1")].state is TimerState.CANCELLED


async def test_only_a_due_time_that_was_set_counts_as_the_nearest() -> None:
    desk = Desk()
    desk.schedule("order-1", 10)
    await desk.work()
    desk.schedule("order-1", 10)
    desk.schedule("order-2", 90)
    desk.schedule("order-3", 60)

    report = await desk.work()

    assert report.commands == {
        ("ScheduleTimer", Outcome.UNCHANGED): 1,
        ("ScheduleTimer", Outcome.SCHEDULED): 2,
    }
    assert report.nearest_due_at == at(60)


async def test_a_batch_of_cancels_has_no_nearest_due_time() -> None:
    desk = Desk()
    desk.cancel("order-1")

    report = await desk.work()

    assert report == ScheduleReport(
        commands=Counter({("CancelTimer", Outcome.NOT_FOUND): 1}),
        refusals=[],
        redelivered=0,
        nearest_due_at=None,
    )
    assert desk.bus.pending == {}


async def test_what_is_no_command_is_set_aside_and_the_rest_is_kept() -> None:
    desk = Desk()
    sequence = desk.send_rubbish()
    desk.schedule("order-1", 60)

    report = await desk.work()

    assert [(r.reason, r.subject, r.sequence) for r in report.refusals] == [
        (RefusalReason.NOT_JSON, "timer.commands.acme.ScheduleTimer", sequence)
    ]
    assert report.commands == {("ScheduleTimer", Outcome.SCHEDULED): 1}
    assert list(desk.bus.letters) == [sequence]
    assert desk.bus.pending == {}


async def test_a_batch_without_a_command_never_reaches_the_store() -> None:
    desk = Desk()
    sequence = desk.send_rubbish()

    report = await desk.work()

    refusal = report.refusals[0]
    assert report == ScheduleReport(
        commands=Counter(),
        refusals=[Refusal(RefusalReason.NOT_JSON, refusal.detail, refusal.subject, sequence)],
        redelivered=0,
        nearest_due_at=None,
    )
    assert desk.store.calls == []


async def test_nothing_is_acknowledged_before_it_is_kept() -> None:
    desk = Desk()
    desk.schedule("order-1", 60)
    desk.store.fail("apply", StoreFailed("disk"))

    with pytest.raises(StoreFailed):
        await desk.work()

    assert list(desk.bus.pending) == [1]
    assert desk.store.timers == {}


async def test_a_lost_acknowledgement_repeats_commands_without_effect() -> None:
    desk = Desk()
    desk.schedule("order-1", 60)
    batch = await desk.bus.receive()
    await desk.store.apply(batch.commands, desk.clock.now())
    kept = dict(desk.store.timers)
    desk.bus.redeliver()

    report = await desk.work()

    assert report == ScheduleReport(
        commands=Counter({("ScheduleTimer", Outcome.SUPERSEDED): 1}),
        refusals=[],
        redelivered=1,
        nearest_due_at=None,
    )
    assert desk.store.timers == kept
    assert desk.bus.pending == {}


async def test_letters_wait_while_the_broker_is_away_and_commands_do_not() -> None:
    desk = Desk()
    desk.send_rubbish()
    desk.schedule("order-1", 60)
    batch = await desk.bus.receive()
    desk.bus.connected = False

    report = await schedule_timers(batch=batch, store=desk.store, clock=desk.clock, questions=desk.questions)

    assert report == ScheduleReport(
        commands=Counter({("ScheduleTimer", Outcome.SCHEDULED): 1}),
        refusals=report.refusals,
        redelivered=0,
        nearest_due_at=at(60),
    )
    assert [refusal.sequence for refusal in report.refusals] == [1]
    assert desk.bus.letters == {}
    assert 1 in desk.bus.pending
