"""While the command stream does not answer, timers fire once they have waited for TIMER_CATCH_UP."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from structlog.testing import capture_logs

from tests.support.fakes import RecordingBus
from tests.support.rig import Rig
from tests.support.timers import at, schedule
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.command_source import Backlog
from timer_service.workflows.unanswered import MAX_COUNTED, MOMENTS, Unanswered

LIMIT = timedelta(seconds=30)
LIMIT_S = 30


@dataclass(slots=True)
class _SilentBus(RecordingBus):
    """A bus whose event stream works and whose command stream does not answer."""

    silent: bool = True
    hangs: bool = False
    asked: int = 0

    async def backlog(self, beyond: Mapping[TenantId, int]) -> Backlog:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.silent:
            raise BusUnavailable("the command stream does not answer within 5 s")
        return await self.inner.backlog(beyond)


async def _pass(rig: Rig, seconds: float) -> None:
    for _ in range(round(seconds * 2)):
        await rig.clock.until_rest()
        rig.clock.advance(0.5)
    await rig.clock.until_rest()


def _bus(rig: Rig) -> _SilentBus:
    assert isinstance(rig.bus, _SilentBus)
    return rig.bus


async def test_a_due_timer_fires_after_the_limit_and_not_before() -> None:
    rig = Rig(bus=_SilentBus)
    await rig.keep(schedule("order-1", 0))

    async with rig.running():
        await _pass(rig, LIMIT_S - 1)
        before = rig.fired()
        await _pass(rig, 4)

    assert before == []
    assert rig.fired() == [["order-1"]]
    assert rig.state("order-1") is TimerState.REACHED


async def test_each_timer_waits_for_the_limit_from_its_own_due_time() -> None:
    rig = Rig(bus=_SilentBus)
    await rig.keep(schedule("order-1", 0), schedule("order-2", 20, number=2))

    async with rig.running():
        await _pass(rig, LIMIT_S + 15)
        before = rig.fired()
        await _pass(rig, 10)

    assert before == [["order-1"]]
    assert rig.fired() == [["order-1"], ["order-2"]]


async def test_it_is_said_once_and_so_is_that_it_answers_again() -> None:
    rig = Rig(bus=_SilentBus)
    await rig.keep(
        schedule("order-1", 0), schedule("order-2", 1, number=2), schedule("order-3", 60, number=3)
    )

    with capture_logs() as log:
        async with rig.running():
            await _pass(rig, LIMIT_S + 5)
            warnings = rig.service.health().warnings
            _bus(rig).silent = False
            await _pass(rig, 30)
            warnings_after = rig.service.health().warnings

    assert [entry for entry in log if entry["event"].startswith("command_stream.")] == [
        {"event": "command_stream.given_up", "log_level": "warning", "timers": 1},
        {"event": "command_stream.recovered", "log_level": "info"},
    ]
    assert list(warnings) == ["command stream"]
    assert warnings_after == {}
    # What comes due once it answers waits for nothing.
    assert rig.fired()[-1] == ["order-3"]
    assert rig.bus.published[-1][0].at == at(60)


async def test_a_question_that_hangs_is_not_in_the_way_of_firing_once_it_was_given_up() -> None:
    rig = Rig(bus=_SilentBus)
    await rig.keep(schedule("order-1", 0), schedule("order-2", 10, number=2))

    async with rig.running():
        await _pass(rig, LIMIT_S + 5)
        _bus(rig).hangs = True
        await _pass(rig, 1)
        asked = _bus(rig).asked
        await _pass(rig, 10)

    # One question is under way beside the looks, and a stop does not wait for it.
    assert _bus(rig).asked <= asked + 1
    assert rig.fired() == [["order-1"], ["order-2"]]


async def test_time_in_which_nothing_could_be_published_does_not_count() -> None:
    rig = Rig(bus=_SilentBus)
    await rig.keep(schedule("order-1", 0))
    rig.broker.connected = False

    async with rig.running():
        await _pass(rig, 2 * LIMIT_S)
        rig.broker.connected = True
        await _pass(rig, LIMIT_S - 5)

    assert rig.fired() == []


def test_a_pause_of_the_process_uses_up_a_part_of_the_limit_at_most() -> None:
    unanswered = Unanswered(LIMIT)
    unanswered.note(at(0))

    assert unanswered.note(at(3600)) is None
    assert unanswered.note(at(3600 + MAX_COUNTED.total_seconds())) is None


def test_a_clock_that_is_set_back_gives_no_moment_that_is_yet_to_come() -> None:
    unanswered = Unanswered(LIMIT)
    for second in range(60):
        unanswered.note(at(second))

    assert unanswered.note(at(5)) == at(5)


def test_what_is_remembered_stays_bounded() -> None:
    unanswered = Unanswered(LIMIT)
    for tenth in range(10_000):
        unanswered.note(at(tenth / 10))

    assert len(unanswered._looks) <= MOMENTS + 2
    moment = unanswered.note(at(1000))
    assert moment is not None
    assert at(1000) - LIMIT - timedelta(seconds=2) <= moment <= at(1000) - LIMIT


def test_after_an_answer_the_next_silence_is_counted_from_its_own_beginning() -> None:
    unanswered = Unanswered(LIMIT)
    for second in range(LIMIT_S - 1):
        unanswered.note(at(second))
    unanswered.answered()

    moments = [unanswered.note(at(100 + second)) for second in range(LIMIT_S + 1)]

    assert moments == [*[None] * LIMIT_S, at(100)]
