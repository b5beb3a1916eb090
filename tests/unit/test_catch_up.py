"""The due timers of a tenant wait for its commands that the broker has, and nobody else's do."""

from datetime import datetime, timedelta

from tests.support.timers import ACME, GLOBEX, at, call
from timer_service.domain.cause import Cause
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.messages import TenantId
from timer_service.ports.command_source import Backlog
from timer_service.ports.explanation import Obstacle
from timer_service.ports.timer_store import HeldBack
from timer_service.workflows.catch_up import (
    FIRST_PAUSE,
    MAX_ASKED,
    MAX_PAUSE,
    RECENT_FENCES,
    CatchUp,
    CatchUpChange,
    Waits,
)

LIMIT_S = 30


def timer(due_s: float, tenant: str = ACME) -> DueTimer:
    return DueTimer(TenantId(tenant), call(f"order-{due_s}"), at(due_s), 1, None, None)


def backlog(
    *tenants: TenantId,
    first: int = 1,
    last: int = 10,
    handled: int = 0,
    oldest: dict[TenantId, int | None] | None = None,
    stream: str = "first",
) -> Backlog:
    return Backlog(stream, first, last, handled, frozenset(tenants), oldest or {})


EMPTY = backlog(first=11)


class Desk:
    """Looks, one after the other, at timers that are all due."""

    def __init__(self) -> None:
        self.catch_up = CatchUp(timedelta(seconds=LIMIT_S))
        self.change = CatchUpChange()
        self.waits = Waits(at(0))

    def look(self, now_s: float, told: Backlog, *timers: DueTimer, limit: int = 100) -> list[float]:
        """Return the due times, in seconds, of what fires."""
        self.waits = self.catch_up.judge(told, at(now_s))
        due = [t for t in timers if t.due_at <= at(now_s) and t.tenant_id not in self.waits.held]
        claimed = due[:limit]
        self.change = self.catch_up.settle(self.waits, claimed, more=len(due) > limit)
        return [(t.due_at - at(0)).total_seconds() for t in claimed if self.waits.lets(t)]

    def look_until(self, now_s: float, told: Backlog, *timers: DueTimer, since_s: float) -> list[float]:
        """Look every half second from one moment to another; return what the last look fires."""
        steps = round((now_s - since_s) * 2)
        for step in range(1, steps):
            assert self.look(since_s + step / 2, told, *timers) == []
        return self.look(now_s, told, *timers)


# Who waits


def test_everything_fires_while_no_command_waits() -> None:
    desk = Desk()

    assert desk.look(5, EMPTY, timer(1), timer(2, GLOBEX)) == [1, 2]
    assert desk.change == CatchUpChange()
    assert desk.catch_up.ends_at(at(5)) is None


def test_the_due_timers_of_a_tenant_with_commands_waiting_wait_and_no_others() -> None:
    desk = Desk()

    assert desk.look(5, backlog(ACME), timer(1), timer(2, GLOBEX)) == [2]
    assert desk.change == CatchUpChange(waiting=1)


def test_a_tenant_that_waits_is_passed_over_until_something_of_it_may_fire() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME), timer(1))

    desk.look(6, backlog(ACME), timer(1))

    held_back = HeldBack(tenants=frozenset({GLOBEX}))
    assert desk.waits.passed_over(held_back) == HeldBack(tenants=frozenset({ACME, GLOBEX}))


def test_a_tenant_of_which_some_fired_is_passed_over_until_more_of_it_may() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME), timer(1))
    newer = backlog(ACME, first=11, last=20, oldest={ACME: 11})
    assert desk.look(6, newer, timer(1), timer(5.5)) == [1]

    desk.look(7, newer, timer(5.5))
    held = desk.waits.held
    even_newer = backlog(ACME, first=21, last=30, oldest={ACME: 21})

    assert held == {ACME}
    assert desk.look(8, even_newer, timer(5.5)) == [5.5]


def test_a_tenant_with_commands_waiting_and_nothing_due_is_not_looked_after() -> None:
    desk = Desk()

    desk.look(5, backlog(ACME), timer(60))

    assert desk.catch_up.is_waiting is False
    assert desk.catch_up.ends_at(at(5)) is None


def test_what_waited_fires_once_the_commands_are_applied() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME), timer(1))

    assert desk.look(6, EMPTY, timer(1)) == [1]
    assert desk.change == CatchUpChange()
    assert desk.catch_up.is_waiting is False


def test_everybody_waits_where_the_broker_cannot_list_who_does() -> None:
    desk = Desk()
    crowd = Backlog("first", 1, 10, 0, None)

    assert desk.look(5, crowd, timer(1), timer(2, GLOBEX)) == []
    assert desk.look(6, Backlog("first", 11, 20, 0, None), timer(1), timer(2, GLOBEX)) == [1, 2]


def test_what_due_timers_wait_for_is_told_by_tenant() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME), timer(1))

    assert desk.catch_up.obstacle(ACME) == Obstacle(Cause.WAITS_FOR_COMMANDS)
    assert desk.catch_up.obstacle(GLOBEX) is None
    desk.catch_up.unanswered(at(6))
    assert desk.catch_up.obstacle(GLOBEX) == Obstacle(Cause.COMMANDS_SILENT)


# Who never stops sending


def test_what_the_commands_have_passed_fires_also_once_older_timers_have_waited_long_enough() -> None:
    desk = Desk()
    desk.look(20, backlog(ACME), timer(1))
    desk.look_until(49.5, backlog(ACME), timer(1), since_s=20)

    assert desk.look(50, backlog(ACME, first=11, last=20), timer(1), timer(30)) == [1, 30]


def test_what_the_commands_have_passed_fires_although_only_older_timers_have_waited_long_enough() -> None:
    desk = Desk()
    for half_s in range(2, 62):
        assert desk.look(half_s / 2, backlog(ACME, last=half_s), timer(1), timer(14)) == []
    assert desk.look(31, backlog(ACME, last=62), timer(1), timer(14)) == [1]

    assert desk.look(31.2, backlog(ACME, last=63, oldest={ACME: 40}), timer(14)) == [14]


def test_a_tenant_that_never_stops_sending_fires_what_was_due_when_older_commands_were_stored() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME, last=10), timer(1), timer(5.5))

    fired = desk.look(6, backlog(ACME, first=11, last=20), timer(1), timer(5.5))

    assert fired == [1]
    assert desk.look(7, backlog(ACME, first=21, last=30), timer(5.5)) == [5.5]


def test_commands_of_others_that_stay_hold_up_nobody_else() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME, GLOBEX, last=10), timer(1), timer(1, GLOBEX))

    asked = desk.catch_up.asks()
    fired = desk.look(
        6, backlog(ACME, GLOBEX, last=20, oldest={ACME: 3, GLOBEX: 12}), timer(1), timer(1, GLOBEX)
    )

    assert asked == {ACME: 0, GLOBEX: 0}
    assert fired == [1]
    assert desk.waits.held == frozenset({ACME})


def test_what_was_told_of_the_oldest_command_stays_true() -> None:
    desk = Desk()
    desk.look(5, backlog(ACME, last=10), timer(5.5))
    desk.look(6, backlog(ACME, last=20, oldest={ACME: 15}), timer(5.5))

    assert desk.look(7, backlog(ACME, last=30, oldest={ACME: 21}), timer(5.5)) == [5.5]


def test_more_tenants_than_a_look_asks_about_take_their_turn() -> None:
    desk = Desk()
    tenants = [TenantId(f"tenant-{number}") for number in range(MAX_ASKED + 1)]
    desk.look(5, backlog(*tenants), *(timer(1, tenant) for tenant in tenants), limit=1_000)

    first, second = set(desk.catch_up.asks()), set(desk.catch_up.asks())

    assert (len(first), len(second)) == (MAX_ASKED, MAX_ASKED)
    assert first | second == set(tenants)


def test_more_than_a_batch_that_may_fire_is_worked_off() -> None:
    desk = Desk()
    due = [timer(number / 10) for number in range(5)]
    desk.look(5, backlog(ACME), *due, limit=2)
    passed = backlog(ACME, first=11, last=20)

    fired = [desk.look(6 + turn, passed, *due[2 * turn :], limit=2) for turn in range(3)]

    assert fired == [[0, 0.1], [0.2, 0.3], [0.4]]


# How long


def test_a_timer_waits_for_the_limit_and_then_fires_and_it_is_said() -> None:
    desk = Desk()
    stuck = backlog(ACME)
    desk.look(0, stuck, timer(0))

    fired = desk.look_until(LIMIT_S, stuck, timer(0), since_s=0)

    assert fired == [0]
    assert desk.change == CatchUpChange(waiting=0, let_go=1, given_up=(ACME,))


def test_more_than_a_batch_that_has_waited_for_the_limit_is_worked_off() -> None:
    desk = Desk()
    stuck = backlog(ACME)
    due = [timer(number / 10) for number in range(5)]
    desk.look(1, stuck, *due)
    desk.look_until(LIMIT_S + 0.5, stuck, *due, since_s=1)

    fired = [desk.look(LIMIT_S + 1 + turn / 10, stuck, *due[2 * turn :], limit=2) for turn in range(3)]

    assert fired == [[0, 0.1], [0.2, 0.3], [0.4]]


def test_each_timer_waits_for_the_limit_from_its_own_due_time() -> None:
    desk = Desk()
    stuck = backlog(ACME)
    desk.look(0, stuck, timer(0), timer(20))
    assert desk.look_until(LIMIT_S, stuck, timer(0), timer(20), since_s=0) == [0]

    fired = desk.look_until(20 + LIMIT_S, stuck, timer(20), since_s=LIMIT_S)

    # One fence for each sixteenth of the limit: so much later it may be.
    fired = fired or desk.look_until(22 + LIMIT_S, stuck, timer(20), since_s=20 + LIMIT_S)
    assert fired == [20]


def test_a_tenant_is_said_to_be_given_up_once_until_nothing_of_it_waits() -> None:
    desk = Desk()
    stuck = backlog(ACME)
    desk.look(0, stuck, timer(0))
    desk.look_until(LIMIT_S, stuck, timer(0), since_s=0)
    desk.look(31, stuck, timer(31))

    desk.look_until(31 + LIMIT_S, stuck, timer(31), since_s=31)
    again = desk.change
    desk.look(100, EMPTY)

    assert (again.let_go, again.given_up, again.recovered) == (1, (), False)
    assert desk.change == CatchUpChange(recovered=True)


def test_a_message_that_is_stuck_although_newer_ones_were_handled_holds_up_nothing_for_long() -> None:
    desk = Desk()
    stuck = backlog(ACME, first=3, last=10, handled=10)
    desk.look(0, stuck, timer(0))
    desk.look_until(LIMIT_S, stuck, timer(0), since_s=0)

    desk.look(40, stuck, timer(40))
    asked = desk.catch_up.asks()
    fired = desk.look(40.1, backlog(ACME, first=3, last=10, handled=10, oldest={ACME: None}), timer(40))

    assert asked == {ACME: 10}
    assert fired == [40]


def test_a_command_that_nobody_has_come_to_is_waited_for_by_each_timer() -> None:
    desk = Desk()
    behind = backlog(ACME, first=3, last=10, handled=2)
    desk.look(0, behind, timer(0))
    desk.look_until(LIMIT_S, behind, timer(0), since_s=0)

    desk.look(40, behind, timer(40))

    assert desk.catch_up.asks() == {ACME: 2}


def test_a_pause_of_the_process_uses_up_a_part_of_the_limit_at_most() -> None:
    desk = Desk()
    desk.look(0, backlog(ACME), timer(0))

    assert desk.look(3600, backlog(ACME), timer(0)) == []
    assert desk.look_until(3600 + LIMIT_S * 3 / 4, backlog(ACME), timer(0), since_s=3600) == [0]


def test_a_clock_that_is_set_back_starves_nobody() -> None:
    desk = Desk()
    desk.look(100, backlog(ACME), timer(0))
    desk.look(101, backlog(ACME, first=11, last=20), timer(0), timer(100.5))

    desk.look(50, backlog(ACME, first=11, last=20), timer(40))

    assert desk.look(51, backlog(ACME, first=21, last=30), timer(40)) == [40]


def test_a_moment_that_is_yet_to_come_again_proves_nothing() -> None:
    desk = Desk()
    desk.look(100, backlog(ACME, last=10), timer(0))

    desk.look(50, backlog(ACME, first=11, last=20), timer(49))

    assert desk.look(60, backlog(ACME, first=11, last=20), timer(55)) == []


def test_a_stream_that_was_made_anew_keeps_nobody_waiting_for_the_old_one() -> None:
    desk = Desk()
    desk.look(0, backlog(ACME, last=1_000), timer(0))

    desk.look(1, backlog(ACME, first=1, last=1, stream="second"), timer(0))

    assert desk.look(2, backlog(ACME, first=2, last=2, stream="second"), timer(0)) == [0]


# When to look again


def _pause(desk: Desk, now: datetime) -> timedelta:
    ends_at = desk.catch_up.ends_at(now)
    assert ends_at is not None
    return ends_at - now


def test_looks_in_vain_come_less_and_less_often() -> None:
    desk = Desk()
    pauses = []

    for number in range(12):
        desk.look(number, backlog(ACME), timer(0))
        pauses.append(_pause(desk, at(number)))

    assert pauses[:3] == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert pauses[-1] == MAX_PAUSE


def test_a_look_that_gets_on_is_soon_followed_by_another() -> None:
    desk = Desk()
    for number in range(5):
        desk.look(number, backlog(ACME), timer(0))

    desk.look(5, backlog(ACME, first=11, last=20), timer(0), timer(4.5))

    assert _pause(desk, at(5)) == FIRST_PAUSE


def test_what_is_remembered_stays_bounded() -> None:
    desk = Desk()

    for number in range(5_000):
        desk.look(number / 10, backlog(ACME, last=number + 10), timer(number / 10))

    assert len(desk.catch_up._fences) <= 2 * RECENT_FENCES + 2
