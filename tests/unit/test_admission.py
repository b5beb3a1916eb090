"""No tenant's requests stand before another's, and nobody's take memory without end."""

import pytest

from timer_service.domain.admission import RateLimit, Room, TurnLimits, Turns

SMALL = TurnLimits(waiting=6, waiting_of_tenant=4, under_way=4, under_way_of_tenant=2)


def taken(turns: Turns[str]) -> list[str]:
    """Take all that may be under way now."""
    items = []
    while (item := turns.take()) is not None:
        items.append(item)
    return items


def test_what_is_left_of_a_burst_is_told() -> None:
    limit = RateLimit(10, burst=3)

    left = [limit.left("acme", 0.0)]
    for _ in range(4):
        limit.wait_s("acme", 0.0)
        left.append(limit.left("acme", 0.0))

    assert left == [3, 2, 1, 0, 0]
    assert limit.left("acme", 0.1) == 1
    assert limit.left("globex", 0.0) == 3
    assert RateLimit(0, burst=3).left("acme", 0.0) is None


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    limit = RateLimit(rate=10, burst=3)

    at_once = [limit.wait_s("acme", 100.0) for _ in range(5)]
    later = [limit.wait_s("acme", 100.1), limit.wait_s("acme", 100.1)]

    assert at_once == pytest.approx([0, 0, 0, 0.1, 0.1])
    assert later == pytest.approx([0, 0.1])


def test_a_tenant_that_was_quiet_has_its_whole_burst_again() -> None:
    limit = RateLimit(rate=10, burst=3)
    for _ in range(3):
        limit.wait_s("acme", 0.0)

    again = [limit.wait_s("acme", 60.0) for _ in range(4)]

    assert again == pytest.approx([0, 0, 0, 0.1])


def test_one_tenant_s_requests_cost_another_nothing() -> None:
    limit = RateLimit(rate=1, burst=1)
    limit.wait_s("acme", 0.0)

    assert limit.wait_s("acme", 0.0) > 0
    assert limit.wait_s("globex", 0.0) == 0


def test_a_refused_request_does_not_lengthen_the_wait() -> None:
    limit = RateLimit(rate=1, burst=1)
    limit.wait_s("acme", 0.0)
    for _ in range(100):
        limit.wait_s("acme", 0.5)

    assert limit.wait_s("acme", 1.0) == 0


def test_a_request_that_costs_more_is_paid_for_before_the_next() -> None:
    limit = RateLimit(rate=10, burst=1)
    limit.wait_s("acme", 0.0)
    limit.charge("acme", 9)

    assert limit.wait_s("acme", 0.0) == pytest.approx(1.0)
    assert limit.wait_s("acme", 1.0) == 0


def test_a_rate_of_zero_sets_no_limit() -> None:
    limit = RateLimit(rate=0, burst=1)
    limit.charge("acme", 1000)

    assert [limit.wait_s("acme", 0.0) for _ in range(1000)] == [0] * 1000


def test_a_hundred_thousand_tenants_take_the_room_of_a_few() -> None:
    limit = RateLimit(rate=1, burst=1, max_tenants=50)
    for number in range(100_000):
        limit.wait_s(f"tenant-{number}", 0.0)

    assert len(limit) == 50


def test_a_tenant_that_keeps_asking_is_not_forgotten_for_others() -> None:
    limit = RateLimit(rate=1, burst=2, max_tenants=10)
    limit.wait_s("acme", 0.0)
    for number in range(9):
        limit.wait_s(f"tenant-{number}", 0.0)
    limit.wait_s("acme", 0.0)
    limit.wait_s("one-more", 0.0)

    assert limit.wait_s("acme", 0.0) > 0


def test_tenants_take_turns() -> None:
    turns: Turns[str] = Turns(TurnLimits(under_way=6, under_way_of_tenant=6))
    for item in ("a1", "a2", "a3", "a4", "b1", "c1"):
        turns.offer(item[0], item)

    assert taken(turns) == ["a1", "b1", "c1", "a2", "a3", "a4"]


def test_a_tenant_that_comes_late_does_not_wait_behind_another_s_queue() -> None:
    turns: Turns[str] = Turns(TurnLimits(under_way=2, under_way_of_tenant=1))
    for number in range(100):
        turns.offer("acme", f"acme-{number}")
    first = taken(turns)
    turns.offer("globex", "globex-0")

    assert (first, taken(turns)) == (["acme-0"], ["globex-0"])


def test_one_tenant_never_has_all_places() -> None:
    turns: Turns[str] = Turns(SMALL)
    for item in ("a1", "a2", "a3", "b1", "b2"):
        turns.offer(item[0], item)

    assert taken(turns) == ["a1", "b1", "a2", "b2"]

    turns.done("b")
    assert taken(turns) == []
    turns.done("a")
    assert taken(turns) == ["a3"]


def test_a_place_that_is_given_back_is_taken_again() -> None:
    turns: Turns[str] = Turns(TurnLimits(under_way=1, under_way_of_tenant=1))
    served = []
    for number in range(1000):
        assert turns.offer("acme", f"acme-{number}") is Room.FREE
        served += taken(turns)
        turns.done("acme")

    assert served == [f"acme-{number}" for number in range(1000)]


def test_what_waits_is_bounded_for_a_tenant_and_in_all() -> None:
    turns: Turns[str] = Turns(SMALL)

    rooms = [turns.offer(tenant, tenant) for tenant in "aaaaabbc"]

    assert rooms == [Room.FREE] * 4 + [Room.TENANT_FULL] + [Room.FREE] * 2 + [Room.FULL]


def test_what_waits_can_be_cleared() -> None:
    turns: Turns[str] = Turns(SMALL)
    for item in ("a1", "b1", "a2"):
        turns.offer(item[0], item)

    assert turns.clear() == ["a1", "a2", "b1"]
    assert [turns.offer("a", "a") for _ in range(5)] == [Room.FREE] * 4 + [Room.TENANT_FULL]
