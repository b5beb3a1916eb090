"""The machine's clock, and what is done about its leaps."""

from datetime import datetime, timedelta

import pytest

from timer_service.adapters.system import NS_PER_MS, SystemClock
from timer_service.domain.messages import EPOCH

HOUR_MS = 3_600_000


class Machine:
    """A wall clock that can be set and a boot clock that cannot."""

    def __init__(self) -> None:
        self.wall_ms = 1_800_000_000_000
        self.boot_ms = 5_000

    def pass_time(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.boot_ms += milliseconds

    def clock(self, max_step: timedelta | None = timedelta(hours=1)) -> SystemClock:
        return SystemClock(max_step, wall_ns=lambda: self.wall_ms * NS_PER_MS, boot_ms=lambda: self.boot_ms)


def moment(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def test_it_follows_the_wall_clock() -> None:
    machine = Machine()
    clock = machine.clock()

    machine.pass_time(1234)

    assert clock.now() == moment(1_800_000_001_234)


@pytest.mark.parametrize("step_ms", [1, 1000, HOUR_MS, -1, -HOUR_MS, -10 * 365 * 24 * HOUR_MS])
def test_small_steps_forward_and_all_steps_back_are_followed(step_ms: int) -> None:
    machine = Machine()
    clock = machine.clock()

    machine.wall_ms += step_ms

    assert (clock.now(), clock.problem) == (moment(1_800_000_000_000 + step_ms), None)


@pytest.mark.parametrize("step_ms", [HOUR_MS + 1, 24 * HOUR_MS, 10 * 365 * 24 * HOUR_MS])
def test_a_large_leap_forward_is_held_back_and_reported(step_ms: int) -> None:
    machine = Machine()
    clock = machine.clock()

    machine.wall_ms += step_ms
    machine.pass_time(500)

    assert clock.now() == moment(1_800_000_000_500)
    assert clock.problem is not None
    assert f"{step_ms / 1000:g} s" in clock.problem


def test_a_held_leap_is_followed_once_it_is_accepted() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ms += 2 * HOUR_MS
    clock.now()

    accepted_s = clock.accept_step()

    assert accepted_s == 7200
    assert (clock.now(), clock.problem) == (moment(1_800_000_000_000 + 2 * HOUR_MS), None)


def test_a_held_leap_is_forgotten_when_the_wall_clock_is_set_right() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ms += 2 * HOUR_MS
    clock.now()

    machine.wall_ms -= 2 * HOUR_MS
    machine.pass_time(10)

    assert (clock.now(), clock.problem) == (moment(1_800_000_000_010), None)


def test_sleep_is_no_leap() -> None:
    """The boot clock goes on while the machine sleeps."""
    machine = Machine()
    clock = machine.clock()

    machine.pass_time(30 * 24 * HOUR_MS)

    assert (clock.now(), clock.problem) == (moment(1_800_000_000_000 + 30 * 24 * HOUR_MS), None)


def test_slow_drift_is_followed_however_far_it_leads() -> None:
    machine = Machine()
    clock = machine.clock()

    for _ in range(10_000):
        machine.pass_time(1000)
        machine.wall_ms += 1000
        clock.now()

    assert (clock.now(), clock.problem) == (moment(machine.wall_ms), None)


def test_without_a_limit_every_leap_is_followed() -> None:
    machine = Machine()
    clock = machine.clock(max_step=None)

    machine.wall_ms += 1000 * HOUR_MS

    assert (clock.now(), clock.problem) == (moment(1_800_000_000_000 + 1000 * HOUR_MS), None)


def test_a_clock_that_went_back_and_is_put_right_is_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ms -= 2 * HOUR_MS
    clock.now()

    machine.wall_ms += 2 * HOUR_MS
    machine.pass_time(10)

    assert (clock.now(), clock.problem) == (moment(1_800_000_000_010), None)


@pytest.mark.parametrize(
    "steps_h", [(-2, -3, 5), (-5, 2, 3), (-2, 2, -4, 4), (1, -9, 9), (-240, 100, 141)], ids=str
)
def test_a_clock_that_goes_back_and_forth_is_followed_up_to_where_it_has_been(
    steps_h: tuple[int, ...],
) -> None:
    machine = Machine()
    clock = machine.clock()

    for step_h in steps_h:
        machine.wall_ms += step_h * HOUR_MS
        assert (clock.now(), clock.problem) == (moment(machine.wall_ms), None)


def test_of_a_leap_after_a_step_back_only_what_is_new_is_held() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ms -= 2 * HOUR_MS
    clock.now()

    machine.wall_ms += 5 * HOUR_MS
    machine.pass_time(10)

    assert clock.now() == moment(1_800_000_000_010)
    assert clock.held_step_s == 3 * 3600


def test_a_confirmed_time_is_where_leaps_are_measured_from() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_ms += 2 * HOUR_MS
    clock.now()
    clock.accept_step()

    machine.wall_ms -= 2 * HOUR_MS
    clock.now()
    machine.wall_ms += 2 * HOUR_MS

    assert (clock.now(), clock.problem) == (moment(1_800_000_000_000 + 2 * HOUR_MS), None)


def test_after_a_clock_that_was_far_ahead_a_person_can_confirm_the_true_time() -> None:
    machine = Machine()
    machine.wall_ms += 1000 * HOUR_MS
    clock = machine.clock()
    machine.wall_ms -= 1000 * HOUR_MS
    clock.accept_step()

    machine.wall_ms += 2 * HOUR_MS

    assert clock.now() == moment(1_800_000_000_000)
    assert clock.held_step_s == 2 * 3600
