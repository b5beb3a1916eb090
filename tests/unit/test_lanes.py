"""Whose turn it is: fair in seconds of slots, slow where a receiver is slow, still where it is gone."""

from collections import Counter
from datetime import timedelta

import pytest

from timer_service.domain.delivery import Answered, Blocked, CallResult, TimedOut, Trouble, Unreachable
from timer_service.domain.lanes import MAX_LANE_QUEUE, MAX_QUEUED, MAX_REMEMBERED, Lane, Lanes
from timer_service.domain.messages import TenantId
from timer_service.domain.pace import (
    FIRST_PAUSE_S,
    FIRST_UNDER_WAY,
    MAX_FAILURES,
    MAX_PAUSE_S,
    MAX_UNDER_WAY,
    Pace,
)

OK = Answered(200)
HANGS = TimedOut(timedelta(seconds=30))
DOWN = Unreachable(Trouble.CONNECT)


def lane(tenant: str, origin: str = "https://a.example:443") -> Lane:
    return TenantId(tenant), origin


def after(pace: Pace, *results: CallResult, now_s: float = 0.0) -> Pace:
    for result in results:
        pace = pace.after(result, now_s)
    return pace


def test_success_raises_the_limit_step_by_step_up_to_a_cap() -> None:
    assert after(Pace(), *[OK] * (FIRST_UNDER_WAY - 1)).limit == FIRST_UNDER_WAY
    assert after(Pace(), *[OK] * FIRST_UNDER_WAY).limit == FIRST_UNDER_WAY + 1
    assert after(Pace(), *[OK] * 10_000).limit == MAX_UNDER_WAY


@pytest.mark.parametrize("result", [HANGS, Answered(429), Answered(503)])
def test_strain_halves_the_limit_once_for_each_spell(result: CallResult) -> None:
    pace = Pace(limit=32)

    assert after(pace, result, result, result).limit == 16
    assert after(after(pace, result), result, now_s=1.0).limit == 8
    assert after(Pace(limit=1), result).limit == 1


@pytest.mark.parametrize("result", [HANGS, DOWN, Answered(500)])
def test_a_receiver_that_keeps_failing_is_left_alone_for_longer_and_longer(
    result: CallResult,
) -> None:
    pace = after(Pace(), *[result] * MAX_FAILURES)
    assert not pace.allows(0, FIRST_PAUSE_S - 0.001)

    pauses = []
    now_s = 0.0
    for _ in range(7):
        assert pace.open_until_s is not None
        pauses.append(pace.open_until_s - now_s)
        now_s = pace.open_until_s
        assert pace.allows(0, now_s)
        assert not pace.allows(1, now_s)
        pace = pace.after(result, now_s)

    assert pauses == [15, 30, 60, 120, 240, 300, 300]
    assert max(pauses) == MAX_PAUSE_S


def test_a_receiver_that_is_back_is_given_one_at_a_time_first() -> None:
    gone = after(Pace(limit=64), *[DOWN] * MAX_FAILURES)

    back = gone.after(OK, FIRST_PAUSE_S)

    assert (back.is_open, back.limit) == (False, 1)
    assert after(back, OK).limit == 2


def test_an_answer_of_the_receiver_is_a_sign_of_life_whatever_it_says() -> None:
    assert not after(Pace(), *[DOWN] * (MAX_FAILURES - 1), Answered(404), DOWN).is_open
    at_full_pace = after(Pace(limit=MAX_UNDER_WAY), *[DOWN] * (MAX_FAILURES - 1), OK, DOWN)
    assert not at_full_pace.is_open
    assert after(Pace(), *[Blocked()] * 100) == Pace()
    assert after(Pace(), *[Unreachable(Trouble.SECRET)] * 100) == Pace()


def test_late_failures_do_not_lengthen_a_pause() -> None:
    gone = after(Pace(), *[DOWN] * MAX_FAILURES)

    assert after(gone, *[DOWN] * 20, now_s=1.0).open_until_s == FIRST_PAUSE_S


def test_a_lane_gives_no_more_than_its_receiver_may_have() -> None:
    lanes = Lanes[int]()
    for n in range(20):
        lanes.offer(n, lane("acme"), 0.0)

    assert lanes.take(0.0) == [0, 1, 2, 3]
    assert lanes.take(0.0) == []
    lanes.done(1, OK, 0.1)
    assert lanes.take(0.1) == [4]


def test_no_tenant_holds_more_slots_than_are_free() -> None:
    lanes = Lanes[tuple[str, int]](slots=12)
    for n in range(100):
        lanes.offer(("greedy", n), lane("greedy", f"https://{n}.example"), 0.0)

    assert len(lanes.take(0.0)) == 6
    for n in range(100):
        lanes.offer(("other", n), lane("other", f"https://{n}.example"), 1.0)

    assert [tenant for tenant, _ in lanes.take(1.0)] == ["other"] * 3


def test_turns_are_counted_in_seconds_and_not_in_requests() -> None:
    """A tenant whose requests take 100 times as long gets about a hundredth of the turns."""
    lanes = Lanes[tuple[str, int]](slots=4)
    made: Counter[str] = Counter()
    numbers = iter(range(10**6))
    seconds = {"slow": 1.0, "quick": 0.01}
    ends: list[tuple[float, tuple[str, int]]] = []
    now_s = 0.0
    for _ in range(2_000):
        for tenant in seconds:
            for origin in range(3):
                lanes.offer((tenant, next(numbers)), lane(tenant, f"https://{origin}.example"), now_s)
        ends += [(now_s + seconds[key[0]], key) for key in lanes.take(now_s)]
        ends.sort()
        now_s, key = ends.pop(0)
        lanes.done(key, OK, now_s)
        lanes.forget(key)
        made[key[0]] += 1

    assert made["slow"] > 0
    assert made["quick"] > 50 * made["slow"]


def test_the_receivers_of_a_tenant_take_turns() -> None:
    lanes = Lanes[str](slots=100)
    for n in range(4):
        for origin in ("a", "b", "c"):
            lanes.offer(f"{origin}{n}", lane("acme", origin), 0.0)

    assert lanes.take(0.0)[:6] == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_a_receiver_that_is_gone_is_tried_by_one_request_when_its_time_comes() -> None:
    lanes = Lanes[int]()
    for n in range(50):
        lanes.offer(n, lane("acme"), 0.0)
    failed = 0
    while keys := lanes.take(0.0):
        for key in keys:
            lanes.done(key, DOWN, 0.0)
            lanes.forget(key)
            failed += 1

    # Those that were under way when it was found out had begun before.
    assert MAX_FAILURES <= failed < MAX_FAILURES + FIRST_UNDER_WAY
    assert lanes.next_at_s() == FIRST_PAUSE_S
    assert lanes.take(FIRST_PAUSE_S - 0.1) == []
    assert len(lanes.take(FIRST_PAUSE_S)) == 1
    assert lanes.take(FIRST_PAUSE_S) == []
    assert lanes.open_breakers == 1


def test_the_end_of_a_pause_finds_nobody_where_nothing_waits_any_more() -> None:
    lanes = Lanes[int]()
    for n in range(50):
        lanes.offer(n, lane("acme"), 0.0)
    while keys := lanes.take(0.0):
        for key in keys:
            lanes.done(key, DOWN, 0.0)
            lanes.forget(key)
    lanes.outdate(lane("acme"))
    lanes.has_no_more(lane("acme"))
    lanes.has_no_more(lane("acme"))

    assert lanes.take(FIRST_PAUSE_S) == []
    lanes.offer(99, lane("acme"), FIRST_PAUSE_S)
    assert lanes.take(FIRST_PAUSE_S) == [99]


def test_what_was_not_sent_costs_nothing() -> None:
    lanes = Lanes[int]()
    lanes.offer(1, lane("acme"), 0.0)
    lanes.take(0.0)

    lanes.done(1, None, 5.0)
    lanes.forget(1)

    assert (lanes.under_way, 1 in lanes.seats) == (0, False)
    lanes.offer(1, lane("acme"), 6.0)
    assert lanes.take(6.0) == [1]


def test_what_waits_in_an_outdated_lane_is_asked_for_again() -> None:
    lanes = Lanes[int]()
    for n in range(10):
        lanes.offer(n, lane("acme"), 0.0)
    taken = lanes.take(0.0)

    lanes.outdate(lane("acme"))

    assert lanes.hungry() == [lane("acme")]
    assert [n for n in range(10) if n in lanes.seats] == taken
    for key in taken:
        lanes.done(key, OK, 0.1)
        lanes.forget(key)
    lanes.has_no_more(lane("acme"))
    lanes.offer(9, lane("acme"), 0.2)
    assert lanes.take(0.2) == [9]


def test_whoever_is_in_line_and_has_nothing_left_is_passed() -> None:
    lanes = Lanes[int]()
    lanes.offer(1, lane("acme"), 0.0)
    lanes.outdate(lane("acme"))
    lanes.has_no_more(lane("acme"))

    assert lanes.take(0.0) == []
    lanes.offer(2, lane("acme"), 0.0)
    assert lanes.take(0.0) == [2]


def test_an_attempt_stays_known_until_its_outcome_is_kept() -> None:
    lanes = Lanes[int]()
    lanes.offer(1, lane("acme"), 0.0)
    lanes.take(0.0)
    lanes.done(1, OK, 0.1)

    lanes.offer(1, lane("acme"), 0.2)

    assert lanes.take(0.2) == []


def test_of_a_long_lane_only_the_first_are_taken_in() -> None:
    lanes = Lanes[int]()
    for n in range(MAX_LANE_QUEUE + 10):
        lanes.offer(n, lane("acme"), 0.0)
    assert lanes.hungry() == []

    now_s = 0.0
    while not lanes.hungry():
        now_s += 1
        for key in lanes.take(now_s):
            lanes.done(key, OK, now_s)
            lanes.forget(key)

    assert lanes.hungry() == [lane("acme")]
    lanes.has_no_more(lane("acme"))
    assert lanes.hungry() == []


def test_no_more_are_taken_in_than_a_bound_until_the_outcome_of_one_is_kept() -> None:
    lanes = Lanes[int](slots=1)
    for n in range(MAX_QUEUED - 1):
        lanes.offer(n, lane(f"tenant-{n}"), 0.0)
    with_room_for_one = lanes.seats.is_full

    lanes.offer(MAX_QUEUED, lane("last"), 0.0)
    at_the_bound = lanes.seats.is_full
    [key] = lanes.take(1.0)
    lanes.done(key, OK, 2.0)
    before_it_is_kept = lanes.seats.is_full
    lanes.forget(key)

    assert (with_room_for_one, at_the_bound, before_it_is_kept, lanes.seats.is_full) == (
        False,
        True,
        True,
        False,
    )


def test_no_tenant_holds_more_places_in_memory_than_are_free() -> None:
    lanes = Lanes[int]()
    for n in range(MAX_QUEUED):
        lanes.offer(n, lane("greedy", f"https://{n}.example"), 0.0)

    lanes.offer(MAX_QUEUED, lane("acme"), 0.0)

    assert [n in lanes.seats for n in (0, MAX_QUEUED // 2 - 1, MAX_QUEUED // 2, MAX_QUEUED)] == [
        True,
        True,
        False,
        True,
    ]


def test_a_tenant_that_was_left_out_is_asked_for_once_there_is_room_for_many_of_it() -> None:
    lanes = Lanes[int](slots=MAX_QUEUED)
    for n in range(MAX_QUEUED):
        lanes.offer(n, lane("greedy", f"https://{n}.example"), 0.0)
    wanted = [lanes.seats.wants_more()]

    while keys := lanes.take(0.0):
        for key in keys:
            lanes.done(key, OK, 0.0)
            lanes.forget(key)
        wanted.append(lanes.seats.wants_more())

    assert (wanted[0], sum(wanted)) == (False, 1)


def test_a_lane_asks_for_no_more_than_its_tenant_may_have() -> None:
    lanes = Lanes[int]()
    lanes.offer(0, lane("greedy"), 0.0)
    lanes.outdate(lane("greedy"))
    hungry = lanes.hungry()
    for n in range(MAX_QUEUED):
        lanes.offer(n, lane("greedy", f"https://{n}.example"), 0.0)

    assert (hungry, lanes.hungry()) == ([lane("greedy")], [])


def test_nothing_is_left_in_memory_of_what_is_over() -> None:
    lanes = Lanes[int]()
    count = MAX_REMEMBERED + 1
    for n in range(count):
        lanes.offer(n, lane(f"tenant-{n}", f"https://{n}.example"), 0.0)
    done = 0
    while keys := lanes.take(0.0):
        for key in keys:
            lanes.done(key, OK, 0.0)
            lanes.forget(key)
            done += 1

    assert done == count
    assert (lanes._queues, lanes._tenants, len(lanes.seats), lanes._taken) == ({}, {}, 0, {})
    assert not lanes.seats._held
    assert len(lanes._paces) == MAX_REMEMBERED


def test_nothing_is_left_in_memory_of_a_lane_that_turned_out_to_have_no_more() -> None:
    lanes = Lanes[int]()
    lanes.offer(1, lane("acme"), 0.0)
    lanes.outdate(lane("acme"))

    lanes.has_no_more(lane("acme"))

    assert (lanes._queues, lanes._tenants, len(lanes.seats), lanes._with_more) == ({}, {}, 0, {})


def test_a_tenant_gets_in_line_once_for_each_of_its_turns() -> None:
    lanes = Lanes[int]()
    for n in range(100):
        lanes.offer(n, lane("acme", f"https://{n % 25}.example"), 0.0)

    assert len(lanes.take(0.0)) == 100

    # A tenant listed twice would queue again and again in the same look, twice each time.
    assert lanes._count == 100
