"""What could not be published holds up nobody else."""

from collections.abc import Sequence

import pytest

from tests.support.timers import ACME, GLOBEX, at, call, reached
from timer_service.domain.cause import Cause
from timer_service.domain.messages import DueTimeReached, TenantId
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.explanation import Obstacle
from timer_service.ports.timer_store import NOTHING_HELD_BACK, HeldBack
from timer_service.workflows.hold_back import (
    MAX_ENTRIES,
    MAX_OF_TENANT,
    MAX_PAUSE,
    TENANT_FAILURES,
    HoldBack,
    HoldBackChange,
)

CONFIRMED, REJECTED = Published.CONFIRMED, Published.REJECTED
UNANSWERED, DISCONNECTED = Published.UNANSWERED, Published.DISCONNECTED
STREAM_REFUSED = Published.STREAM_REFUSED
Answer = tuple[DueTimeReached, Published]


def record(hold_back: HoldBack, *answers: Answer, now_s: float = 0) -> HoldBackChange:
    events = [event for event, _ in answers]
    return hold_back.record(events, [PublishResult(outcome) for _, outcome in answers], at(now_s))


def many(count: int, outcome: Published, tenant: str = ACME) -> list[Answer]:
    return [(reached(f"order-{n}", tenant=tenant), outcome) for n in range(count)]


def timers(*names: str, tenant: TenantId = ACME) -> HeldBack:
    return HeldBack(timers=frozenset((tenant, call(name)) for name in names))


def test_nothing_is_held_back_at_first() -> None:
    hold_back = HoldBack()

    assert hold_back.at(at(0)) == NOTHING_HELD_BACK
    assert hold_back.ends_at(at(0)) is None


def test_a_rejected_timer_is_held_back_alone() -> None:
    hold_back = HoldBack()

    change = record(hold_back, (reached("bad"), REJECTED), (reached("good"), CONFIRMED))

    assert change == HoldBackChange(held=1, freed=0)
    assert hold_back.at(at(0)) == timers("bad")


def test_a_pause_ends_after_half_a_second() -> None:
    hold_back = HoldBack()

    record(hold_back, (reached("bad"), REJECTED), now_s=10)

    assert hold_back.ends_at(at(10)) == at(10.5)
    assert hold_back.at(at(10.499)) == timers("bad")
    assert hold_back.at(at(10.5)) == NOTHING_HELD_BACK
    assert hold_back.ends_at(at(10.5)) is None


def test_a_pause_is_what_keeps_a_timer_from_being_published_until_it_ends() -> None:
    hold_back = HoldBack()

    record(hold_back, (reached("bad"), REJECTED), now_s=10)

    bad, good = (ACME, call("bad")), (ACME, call("good"))
    assert hold_back.obstacle(bad, at(10)) == Obstacle(Cause.TIMER_HELD_BACK, at(10.5), 1)
    assert hold_back.obstacle(bad, at(10.5)) is None
    assert hold_back.obstacle(good, at(10)) is None


def test_what_holds_up_more_is_named_before_what_holds_up_less() -> None:
    hold_back = HoldBack()

    record(hold_back, (reached("bad"), UNANSWERED))
    tenant = hold_back.obstacle((ACME, call("bad")), at(0))
    record(hold_back, (reached("bad"), STREAM_REFUSED))
    stream = hold_back.obstacle((ACME, call("bad")), at(0))

    assert tenant is not None
    assert stream is not None
    assert (tenant.cause, stream.cause) == (Cause.TENANT_HELD_BACK, Cause.STREAM_REFUSES)


def test_pauses_double_up_to_ten_seconds() -> None:
    hold_back, now_s, pauses = HoldBack(), 0.0, []

    for _ in range(20):
        record(hold_back, (reached("bad"), REJECTED), now_s=now_s)
        ends_at = hold_back.ends_at(at(now_s))
        assert ends_at is not None
        pauses.append((ends_at - at(now_s)).total_seconds())
        now_s += pauses[-1]

    assert pauses == [0.5, 1, 2, 4, 8, *[10] * 15]
    assert MAX_PAUSE.total_seconds() == 10


def test_a_timer_that_fails_again_is_no_news() -> None:
    hold_back = HoldBack()
    record(hold_back, (reached("bad"), REJECTED))

    change = record(hold_back, (reached("bad"), REJECTED), now_s=1)

    assert change == HoldBackChange(held=0, freed=0)


def test_success_frees_a_timer_and_its_next_failure_starts_over() -> None:
    hold_back = HoldBack()
    for now_s in range(5):
        record(hold_back, (reached("bad"), REJECTED), now_s=now_s)

    change = record(hold_back, (reached("bad"), CONFIRMED), now_s=20)

    assert change == HoldBackChange(held=0, freed=1)
    record(hold_back, (reached("bad"), REJECTED), now_s=30)
    assert hold_back.ends_at(at(30)) == at(30.5)


def test_the_pause_that_ends_first_is_the_next_moment_to_look() -> None:
    hold_back = HoldBack()
    record(hold_back, (reached("worse"), REJECTED), now_s=0)
    record(hold_back, (reached("worse"), REJECTED), now_s=1)

    record(hold_back, (reached("bad"), REJECTED), now_s=1.2)

    assert hold_back.ends_at(at(1.2)) == at(1.7)
    assert hold_back.ends_at(at(1.7)) == at(2)


def test_a_lost_connection_is_nobodys_fault() -> None:
    hold_back = HoldBack()

    change = record(hold_back, *many(TENANT_FAILURES, DISCONNECTED))

    assert change == HoldBackChange(held=0, freed=0)
    assert hold_back.at(at(0)) == NOTHING_HELD_BACK


def test_a_lost_connection_neither_frees_nor_lengthens_a_pause() -> None:
    hold_back = HoldBack()
    record(hold_back, (reached("bad"), REJECTED))

    change = record(hold_back, (reached("bad"), DISCONNECTED), now_s=0.1)

    assert change == HoldBackChange(held=0, freed=0)
    assert hold_back.ends_at(at(0.1)) == at(0.5)


# Tenants


def test_ten_failures_without_a_success_hold_back_the_tenant() -> None:
    hold_back = HoldBack()

    change = record(hold_back, *many(10, REJECTED), *many(1, CONFIRMED, GLOBEX))

    assert change == HoldBackChange(held=11, freed=0)
    assert hold_back.at(at(0)).tenants == {ACME}


def test_nine_failures_hold_back_the_timers() -> None:
    hold_back = HoldBack()

    change = record(hold_back, *many(9, REJECTED))

    assert change == HoldBackChange(held=9, freed=0)
    assert hold_back.at(at(0)) == timers(*[f"order-{n}" for n in range(9)])


@pytest.mark.parametrize("failure", [REJECTED, UNANSWERED])
def test_failures_beside_a_success_are_the_timers_own(failure: Published) -> None:
    hold_back = HoldBack()

    record(hold_back, *many(20, failure), (reached("good"), CONFIRMED))

    assert hold_back.at(at(0)) == timers(*[f"order-{n}" for n in range(20)])


def test_one_unanswered_event_without_a_success_holds_back_the_tenant() -> None:
    hold_back = HoldBack()

    record(hold_back, (reached("bad"), UNANSWERED), (reached("other", tenant=GLOBEX), REJECTED))

    assert hold_back.at(at(0)) == HeldBack(
        tenants=frozenset({ACME}), timers=frozenset({(ACME, call("bad")), (GLOBEX, call("other"))})
    )


def test_a_success_frees_the_tenant() -> None:
    hold_back = HoldBack()
    record(hold_back, *many(10, REJECTED))

    change = record(hold_back, (reached("another"), CONFIRMED), now_s=1)

    assert change == HoldBackChange(held=0, freed=11)
    assert hold_back.at(at(1)) == NOTHING_HELD_BACK


def test_the_timers_of_a_paused_tenant_wait_longer_so_that_others_of_it_are_tried() -> None:
    hold_back = HoldBack()

    record(hold_back, *many(10, REJECTED))

    assert hold_back.at(at(0.5)).tenants == frozenset()
    assert len(hold_back.at(at(1.4)).timers) == 10
    assert hold_back.at(at(1.5)) == NOTHING_HELD_BACK


def test_a_tenants_pauses_double_too() -> None:
    hold_back = HoldBack()
    record(hold_back, *many(10, REJECTED))

    record(hold_back, *many(10, REJECTED), now_s=1)

    assert hold_back.ends_at(at(1)) == at(2)


def test_a_tenant_that_is_named_like_a_timer_is_told_apart() -> None:
    hold_back = HoldBack()

    record(hold_back, (reached("globex"), REJECTED), *many(10, REJECTED, GLOBEX))

    held = hold_back.at(at(0))
    assert held.tenants == {GLOBEX}
    assert (ACME, call("globex")) in held.timers


# Bounds


def fill(hold_back: HoldBack, names: Sequence[str], now_s: float = 0) -> HoldBackChange:
    """Fail this many timers, with a success beside them so that it is not the tenant."""
    answers = [(reached(name), REJECTED) for name in names]
    return record(hold_back, *answers, (reached("good"), CONFIRMED), now_s=now_s)


def test_beyond_the_bound_everything_waits_for_the_max_pause() -> None:
    hold_back = HoldBack()
    fill(hold_back, [f"order-{n}" for n in range(MAX_ENTRIES)])
    assert hold_back.everything_until(at(0)) is None

    change = fill(hold_back, ["one-more", "and-another"], now_s=0.2)

    assert change == HoldBackChange(
        held=0, freed=0, stopped="more than 5000 timers and tenants have events that cannot be published"
    )
    assert hold_back.problem == change.stopped
    assert hold_back.everything_until(at(0.2)) == hold_back.ends_at(at(0.2)) == at(0.2) + MAX_PAUSE
    assert hold_back.everything_until(at(10.2)) is None
    assert len(hold_back.at(at(0.2)).timers) == MAX_ENTRIES


def test_the_timers_of_one_tenant_never_make_everybody_wait() -> None:
    hold_back, due = HoldBack(), [reached(f"order-{n}") for n in range(2 * MAX_ENTRIES)]
    for half_seconds in range(240):
        now_s = half_seconds / 2
        held = hold_back.at(at(now_s))
        tried = [] if ACME in held.tenants else [each for each in due if each.key not in held.timers]
        record(hold_back, *[(each, REJECTED) for each in tried[:2_000]], now_s=now_s)

        assert hold_back.everything_until(at(now_s)) is None
        assert len(hold_back.at(at(now_s)).timers) <= MAX_OF_TENANT


def test_what_waits_beyond_the_bound_is_told_once() -> None:
    hold_back = HoldBack()
    fill(hold_back, [f"order-{n}" for n in range(MAX_ENTRIES + 1)])

    change = fill(hold_back, ["one-more", "order-0"], now_s=11)

    assert change == HoldBackChange(held=0, freed=0)


def test_a_timer_that_works_again_makes_room_and_everything_goes_on() -> None:
    hold_back = HoldBack()
    fill(hold_back, [f"order-{n}" for n in range(MAX_ENTRIES + 1)])

    change = record(hold_back, (reached("order-7"), CONFIRMED), now_s=11)

    assert change == HoldBackChange(held=0, freed=1, resumed=True)
    assert hold_back.problem is None


def test_what_nobody_has_tried_for_a_minute_is_forgotten_for_something_new() -> None:
    hold_back = HoldBack()
    fill(hold_back, [f"order-{n}" for n in range(MAX_ENTRIES)])

    change = fill(hold_back, ["one-more"], now_s=61)

    assert change == HoldBackChange(held=1, freed=0)
    assert hold_back.at(at(61)) == timers("one-more")


def test_cancelled_timers_do_not_keep_it_full_forever() -> None:
    hold_back = HoldBack()
    fill(hold_back, [f"order-{n}" for n in range(MAX_ENTRIES + 1)])

    assert not record(hold_back, now_s=30).resumed
    assert record(hold_back, now_s=61).resumed


# The stream


def test_a_stream_that_takes_nothing_is_no_timers_fault() -> None:
    hold_back = HoldBack()

    change = record(hold_back, *many(20, STREAM_REFUSED), *many(20, STREAM_REFUSED, GLOBEX))

    assert change == HoldBackChange(held=0, freed=0, stopped="the event stream accepts nothing: ")
    assert hold_back.at(at(0)) == NOTHING_HELD_BACK
    assert hold_back.everything_until(at(0)) == at(0.5)


def test_the_pauses_of_everything_double_up_to_ten_seconds() -> None:
    hold_back, now_s, pauses = HoldBack(), 0.0, []

    for _ in range(8):
        record(hold_back, *many(1, STREAM_REFUSED), now_s=now_s)
        until = hold_back.everything_until(at(now_s))
        assert until is not None
        pauses.append((until - at(now_s)).total_seconds())
        now_s += pauses[-1]

    assert pauses == [0.5, 1, 2, 4, 8, 10, 10, 10]


def test_a_refusal_during_the_pause_of_the_stream_does_not_make_it_longer() -> None:
    hold_back = HoldBack()
    record(hold_back, *many(1, STREAM_REFUSED))

    change = record(hold_back, *many(1, STREAM_REFUSED, GLOBEX), now_s=0.1)

    assert change == HoldBackChange(held=0, freed=0)
    assert hold_back.everything_until(at(0.1)) == at(0.5)


def test_few_are_tried_while_the_stream_takes_nothing() -> None:
    hold_back = HoldBack()
    assert hold_back.at_once(2000) == 2000

    record(hold_back, *many(1, STREAM_REFUSED))

    assert (hold_back.at_once(2000), hold_back.at_once(7)) == (100, 7)


def test_a_batch_that_the_stream_takes_in_part_is_no_recovery() -> None:
    hold_back = HoldBack()
    record(hold_back, *many(1, STREAM_REFUSED))

    change = record(hold_back, *many(5, CONFIRMED), *many(5, STREAM_REFUSED, GLOBEX), now_s=1)

    assert change == HoldBackChange(held=0, freed=0)
    assert hold_back.problem is not None


def test_a_stream_that_takes_events_again_is_told_once() -> None:
    hold_back = HoldBack()
    record(hold_back, *many(1, STREAM_REFUSED))

    assert record(hold_back, *many(1, CONFIRMED), now_s=1) == HoldBackChange(held=0, freed=0, resumed=True)
    assert record(hold_back, *many(1, CONFIRMED), now_s=2) == HoldBackChange(held=0, freed=0)
    assert hold_back.problem is None
    assert hold_back.everything_until(at(2)) is None


def test_a_stream_that_nothing_is_due_for_any_more_is_no_problem() -> None:
    hold_back = HoldBack()
    record(hold_back, *many(1, STREAM_REFUSED))

    change = record(hold_back, now_s=1)

    assert change.resumed
    assert hold_back.problem is None


def test_a_pause_from_before_the_clock_was_set_back_holds_nothing() -> None:
    hold_back = HoldBack()

    record(hold_back, (reached("bad"), REJECTED), now_s=3600)

    assert hold_back.at(at(0)) == NOTHING_HELD_BACK
    assert hold_back.ends_at(at(0)) is None


def test_each_event_must_have_its_result() -> None:
    with pytest.raises(ValueError, match="zip"):
        HoldBack().record([reached("order-1")], [], at(0))
