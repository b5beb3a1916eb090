"""The timer and its only legal transitions."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.timers import (
    ACME,
    at,
    call,
    cancel,
    correlation,
    expired,
    reached,
    schedule,
    scheduled_timer,
)
from timer_service.domain import timer as rules
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.errors import TimerNotFound
from timer_service.domain.messages import CancelTimer, Command, Position, ScheduleTimer, Trace
from timer_service.domain.timer import Outcome, Timer, TimerState

# No row yet


def test_a_first_schedule_makes_a_timer_of_generation_1() -> None:
    command = schedule("order-1", due_s=60, number=7, correlation="request-1")

    timer, outcome = rules.apply(None, command, at(1))

    assert outcome is Outcome.SCHEDULED
    assert timer == Timer(
        tenant_id=ACME,
        service_call_id=call("order-1"),
        state=TimerState.SCHEDULED,
        due_at=at(60),
        generation=1,
        registered_at=at(1),
        correlation_id=correlation("request-1"),
        reached_at=None,
        cancelled_at=None,
        position=Position(1, 7),
        due_position=Position(1, 7),
        correlation_position=Position(1, 7),
    )


def test_a_cancel_of_an_unknown_timer_is_remembered() -> None:
    timer, outcome = rules.apply(None, cancel("order-1", number=7), at(1))

    assert outcome is Outcome.NOT_FOUND
    assert timer == Timer(
        tenant_id=ACME,
        service_call_id=call("order-1"),
        state=TimerState.CANCELLED,
        due_at=None,
        generation=0,
        registered_at=at(1),
        correlation_id=None,
        reached_at=None,
        cancelled_at=at(1),
        position=Position(1, 7),
    )


def test_a_due_time_in_the_past_is_scheduled_like_any_other() -> None:
    timer, outcome = rules.apply(None, schedule(due_s=-86_400), at(0))

    assert outcome is Outcome.SCHEDULED
    assert timer == scheduled_timer(due_s=-86_400)


# Scheduled


def test_a_new_due_time_is_the_next_generation_of_the_same_timer() -> None:
    before = scheduled_timer(due_s=60, registered_s=0, correlation="request-1", number=1)

    after, outcome = rules.apply(before, schedule(due_s=90, number=2), at(5))

    assert outcome is Outcome.RESCHEDULED
    assert after == scheduled_timer(
        due_s=90, generation=2, correlation="request-1", number=2, correlated_by=1
    )


def test_an_earlier_due_time_is_taken_as_well() -> None:
    before = scheduled_timer(due_s=60)

    after, outcome = rules.apply(before, schedule(due_s=30, number=2), at(5))

    assert outcome is Outcome.RESCHEDULED
    assert after == scheduled_timer(due_s=30, generation=2, number=2)


def test_the_same_due_time_keeps_the_generation_and_advances_the_position() -> None:
    before = scheduled_timer(due_s=60, number=1)

    after, outcome = rules.apply(before, schedule(due_s=60, number=2), at(5))

    assert outcome is Outcome.UNCHANGED
    assert after == scheduled_timer(due_s=60, number=2)


@pytest.mark.parametrize("due_s", [60, 90])
def test_a_correlation_id_is_replaced_where_one_is_given(due_s: float) -> None:
    before = scheduled_timer(due_s=60, correlation="request-1")

    after, _ = rules.apply(before, schedule(due_s=due_s, number=2, correlation="request-2"), at(5))

    assert after.correlation_id == "request-2"


def test_a_correlation_id_is_added_where_there_was_none() -> None:
    after, _ = rules.apply(scheduled_timer(), schedule(number=2, correlation="request-2"), at(5))

    assert after == scheduled_timer(number=2, correlation="request-2")


def test_a_cancel_ends_a_scheduled_timer_and_keeps_what_it_was() -> None:
    before = scheduled_timer(due_s=60, generation=3, correlation="request-1")

    after, outcome = rules.apply(before, cancel(number=2), at(5))

    assert outcome is Outcome.CANCELLED
    assert after == replace(before, state=TimerState.CANCELLED, cancelled_at=at(5), position=Position(1, 2))


# Reached


@pytest.mark.parametrize("command", [schedule(due_s=90, number=9, correlation="new"), cancel(number=9)])
def test_reached_is_final_and_its_row_is_untouched(command: Command) -> None:
    before = rules.mark(scheduled_timer(), reached(generation=1, reached_s=60))

    after, outcome = rules.apply(before, command, at(70))

    assert outcome is Outcome.ALREADY_REACHED
    assert after is before


# Cancelled


@pytest.mark.parametrize("due_s", [60, 90])
def test_a_cancelled_timer_is_scheduled_anew_in_the_next_generation(due_s: float) -> None:
    before, _ = rules.apply(scheduled_timer(due_s=60, correlation="request-1"), cancel(number=2), at(5))

    after, outcome = rules.apply(before, schedule(due_s=due_s, number=3), at(6))

    assert outcome is Outcome.SCHEDULED
    assert after == scheduled_timer(
        due_s=due_s, generation=2, correlation="request-1", number=3, correlated_by=1
    )


def test_a_schedule_after_a_remembered_cancel_is_generation_1() -> None:
    before, _ = rules.apply(None, cancel(number=1), at(0))

    after, outcome = rules.apply(before, schedule(number=2), at(5))

    assert outcome is Outcome.SCHEDULED
    assert after == scheduled_timer(generation=1, registered_s=0, number=2)


def test_a_second_cancel_changes_only_the_position() -> None:
    before, _ = rules.apply(scheduled_timer(), cancel(number=2), at(5))

    after, outcome = rules.apply(before, cancel(number=3), at(6))

    assert outcome is Outcome.ALREADY_CANCELLED
    assert after == replace(before, position=Position(1, 3))


# The position guard

SCHEDULED = scheduled_timer(number=5, stream=2, correlation="mine")
CANCELLED, _ = rules.apply(SCHEDULED, cancel(number=6, stream=2), at(1))


@pytest.mark.parametrize("timer", [SCHEDULED, CANCELLED], ids=["Scheduled", "Cancelled"])
@pytest.mark.parametrize("where", [(2, 5), (2, 4), (1, 5), (1, 99)])
@pytest.mark.parametrize("kind", [ScheduleTimer, CancelTimer])
def test_a_command_that_is_not_newer_changes_nothing(
    timer: Timer, where: tuple[int, int], kind: type[Command]
) -> None:
    stream, number = where
    command: Command = (
        schedule(due_s=90, number=number, stream=stream, correlation="old")
        if kind is ScheduleTimer
        else cancel(number=number, stream=stream)
    )

    after, outcome = rules.apply(timer, command, at(9))

    assert outcome is Outcome.SUPERSEDED
    assert after == timer


@pytest.mark.parametrize("where", [(2, 6), (3, 1)])
def test_a_newer_command_counts_also_when_the_stream_began_again(where: tuple[int, int]) -> None:
    stream, number = where

    after, outcome = rules.apply(SCHEDULED, schedule(due_s=90, number=number, stream=stream), at(9))

    assert outcome is Outcome.RESCHEDULED
    assert after == replace(
        scheduled_timer(due_s=90, generation=2, number=number, stream=stream),
        correlation_id=correlation("mine"),
        correlation_position=Position(2, 5),
    )


def test_a_command_that_an_unchanged_schedule_overtook_does_not_undo_it() -> None:
    confirmed, _ = rules.apply(scheduled_timer(due_s=60, number=1), schedule(due_s=60, number=3), at(1))

    after, outcome = rules.apply(confirmed, cancel(number=2), at(2))

    assert outcome is Outcome.SUPERSEDED
    assert after is confirmed


def test_a_schedule_that_a_second_cancel_overtook_does_not_undo_it() -> None:
    once, _ = rules.apply(None, cancel(number=1), at(0))
    twice, _ = rules.apply(once, cancel(number=3), at(1))

    after, outcome = rules.apply(twice, schedule(number=2), at(2))

    assert outcome is Outcome.SUPERSEDED
    assert after == replace(twice, due_at=at(60), generation=1, due_position=Position(1, 2))


def test_a_schedule_that_its_cancel_overtook_never_fires() -> None:
    remembered, _ = rules.apply(None, cancel(number=2), at(0))

    after, outcome = rules.apply(remembered, schedule(number=1, correlation="request-1"), at(1))

    assert outcome is Outcome.SUPERSEDED
    assert after == replace(
        remembered,
        due_at=at(60),
        generation=1,
        correlation_id=correlation("request-1"),
        due_position=Position(1, 1),
        correlation_position=Position(1, 1),
    )


def test_an_overtaken_schedule_still_gives_the_correlation_id_and_trace_that_no_newer_one_has_set() -> None:
    moved, _ = rules.apply(None, schedule(due_s=90, number=2), at(0))

    after, outcome = rules.apply(
        moved, schedule(due_s=60, number=1, correlation="request-1", trace="trace-1"), at(1)
    )

    assert outcome is Outcome.SUPERSEDED
    assert after == replace(
        scheduled_timer(due_s=90, number=2, correlation="request-1", correlated_by=1),
        trace=Trace("trace-1", None),
        trace_position=Position(1, 1),
    )


def test_the_newest_trace_wins() -> None:
    before, _ = rules.apply(None, schedule(number=1, trace="trace-1"), at(0))

    after, _ = rules.apply(before, schedule(number=2, trace="trace-2"), at(1))

    assert (after.trace, after.trace_position) == (Trace("trace-2", None), Position(1, 2))


def test_a_trace_is_kept_where_a_newer_command_has_none() -> None:
    before, _ = rules.apply(None, schedule(number=1, trace="trace-1"), at(0))

    after, _ = rules.apply(before, schedule(number=2), at(1))

    assert (after.trace, after.trace_position) == (Trace("trace-1", None), Position(1, 1))


def test_a_request_counts_as_newer_than_the_newest_command_at_its_time() -> None:
    timer, _ = rules.apply(None, schedule(due_s=60, number=5, correlation="stream", trace="stream"), at(0))
    asked = schedule(due_s=90, number=5, correlation="request", trace="request")

    after, outcome = rules.decide(timer, asked, at(1))

    assert outcome is Outcome.RESCHEDULED
    assert (after.due_at, after.correlation_id, after.trace) == (at(90), "request", Trace("request", None))


def test_a_command_that_a_request_overtook_gives_only_what_the_request_left_open() -> None:
    asked = schedule(due_s=90, number=5, trace="request")
    timer, _ = rules.decide(None, asked, at(0))

    after, outcome = rules.apply(
        timer, schedule(due_s=60, number=5, correlation="stream", trace="stream"), at(1)
    )

    assert outcome is Outcome.SUPERSEDED
    assert (after.due_at, after.correlation_id, after.trace) == (at(90), "stream", Trace("request", None))


def test_a_request_that_was_overtaken_changes_nothing_because_it_comes_again() -> None:
    timer = scheduled_timer(number=6)
    asked = schedule(due_s=90, number=5, correlation="request", trace="request")

    assert rules.decide(timer, asked, at(1)) == (timer, Outcome.SUPERSEDED)


def test_a_request_about_a_version_of_a_timer_that_there_is_not_finds_nothing() -> None:
    asked = replace(schedule("order-1"), expected=frozenset({"1"}))

    with pytest.raises(TimerNotFound):
        rules.decide(None, asked, at(0))


def test_a_request_for_a_timer_that_is_due_changes_nothing_whatever_it_asks() -> None:
    timer = scheduled_timer(due_s=60, number=5)

    assert rules.decide(timer, cancel(number=6), at(60)) == (timer, Outcome.DUE)
    assert rules.decide(timer, schedule(due_s=90, number=6), at(60)) == (timer, Outcome.DUE)
    assert rules.apply(timer, cancel(number=6), at(60))[1] is Outcome.CANCELLED


def test_a_reached_timer_is_closed_to_requests() -> None:
    timer = rules.mark(scheduled_timer(), reached(generation=1, reached_s=61))

    assert rules.decide(timer, cancel(number=9), at(62)) == (timer, Outcome.ALREADY_REACHED)


# Marking


def test_a_scheduled_timer_of_the_published_generation_is_marked() -> None:
    before = scheduled_timer(generation=2)

    after = rules.mark(before, reached(generation=2, reached_s=61))

    assert after == replace(before, state=TimerState.REACHED, reached_at=at(61))


@pytest.mark.parametrize("generation", [1, 3])
def test_another_generation_is_not_marked(generation: int) -> None:
    timer = scheduled_timer(generation=2)

    assert rules.mark(timer, reached(generation=generation, reached_s=61)) is timer


def test_a_cancelled_timer_is_not_marked() -> None:
    timer, _ = rules.apply(scheduled_timer(), cancel(), at(5))

    assert rules.mark(timer, reached(generation=1, reached_s=61)) is timer


def test_a_reached_timer_keeps_its_first_mark() -> None:
    timer = rules.mark(scheduled_timer(), reached(generation=1, reached_s=61))

    assert rules.mark(timer, reached(generation=1, reached_s=62)) is timer


def test_a_due_timer_tells_of_its_own_firing() -> None:
    due = DueTimer(ACME, call("order-1"), at(60), 2, correlation("request-1"))

    event = due.reached(at(61))

    assert event == reached("order-1", 60, reached_s=61, generation=2, correlation="request-1")


# Only if there is none


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        (scheduled_timer(due_s=60), Outcome.UNCHANGED),
        (rules.apply(None, cancel(number=1), at(0))[0], Outcome.ALREADY_CANCELLED),
        (rules.mark(scheduled_timer(), reached()), Outcome.ALREADY_REACHED),
        (rules.mark(scheduled_timer(), expired(expired_s=99)), Outcome.ALREADY_EXPIRED),
    ],
    ids=["Scheduled", "Cancelled", "Reached", "Expired"],
)
@pytest.mark.parametrize("rule", [rules.apply, rules.decide], ids=["command", "request"])
def test_a_schedule_if_absent_changes_nothing_of_a_timer_in_whatever_state(
    rule: rules.Rule, kept: Timer, outcome: Outcome
) -> None:
    command = schedule(due_s=90, number=7, correlation="late", trace="late", if_absent=True)

    assert rule(kept, command, at(1)) == (kept, outcome)
    assert rule(kept, command, at(1))[0] is kept


def test_a_timer_that_a_schedule_if_absent_has_made_is_as_any_other() -> None:
    made, _ = rules.apply(None, schedule(due_s=60, number=1, if_absent=True), at(0))

    moved, outcome = rules.apply(made, schedule(due_s=90, number=2), at(1))

    assert (moved.due_at, outcome) == (at(90), Outcome.RESCHEDULED)


def test_of_several_schedules_if_absent_the_oldest_in_the_stream_wins() -> None:
    made, _ = rules.apply(None, schedule(due_s=60, number=7, correlation="late", if_absent=True), at(0))

    earlier, outcome = rules.apply(made, schedule(due_s=90, number=5, if_absent=True), at(1))

    assert (earlier.due_at, earlier.correlation_id, earlier.generation) == (at(90), None, 2)
    assert outcome is Outcome.RESCHEDULED


def test_an_older_cancel_takes_back_what_a_schedule_if_absent_has_set() -> None:
    made, _ = rules.apply(None, schedule(number=7, correlation="late", if_absent=True), at(0))

    cancelled, outcome = rules.apply(made, cancel(number=5), at(1))

    assert outcome is Outcome.CANCELLED
    assert (cancelled.state, cancelled.due_at, cancelled.correlation_id) == (TimerState.CANCELLED, None, None)
    assert cancelled.generation == 1, "an event of this generation may be on its way"


def test_what_a_request_if_absent_was_told_is_not_taken_back_by_an_older_command() -> None:
    made, _ = rules.decide(None, schedule(due_s=60, number=7, if_absent=True), at(0))

    after, outcome = rules.apply(made, schedule(due_s=90, number=5), at(1))

    assert (after.due_at, outcome) == (at(60), Outcome.SUPERSEDED)


def test_what_a_request_has_set_is_not_taken_back_with_the_schedule_if_absent_before_it() -> None:
    made, _ = rules.apply(None, schedule(due_s=60, number=7, if_absent=True), at(0))
    moved, _ = rules.decide(made, schedule(due_s=80, number=7), at(0))

    after, outcome = rules.apply(moved, schedule(due_s=90, number=5), at(1))

    assert (after.due_at, outcome) == (at(80), Outcome.SUPERSEDED)


def test_a_request_if_absent_waits_while_the_timer_is_due() -> None:
    timer = scheduled_timer(due_s=1)

    assert rules.decide(timer, schedule(due_s=9, number=7, if_absent=True), at(1)) == (timer, Outcome.DUE)


# Expiry


@pytest.mark.parametrize(
    ("late_s", "verdict"),
    [(0, TimerState.REACHED), (5, TimerState.REACHED), (5.001, TimerState.EXPIRED)],
)
def test_an_event_is_of_use_until_its_time_is_over(late_s: float, verdict: TimerState) -> None:
    due = DueTimer(ACME, call("order-1"), at(60), 1, None, expires_after_ms=5000)

    assert due.judged(at(60 + late_s)) is verdict


@pytest.mark.parametrize("verdict", [TimerState.REACHED, TimerState.EXPIRED])
def test_a_verdict_stands_however_early_or_late_it_is(verdict: TimerState) -> None:
    due = DueTimer(ACME, call("order-1"), at(60), 1, None, expires_after_ms=5000, verdict=verdict)

    assert {due.judged(at(60)), due.judged(at(600))} == {verdict}


def test_a_timer_without_a_time_to_expire_never_does() -> None:
    due = DueTimer(ACME, call("order-1"), at(60), 1, None)

    assert due.judged(datetime(9999, 1, 1, tzinfo=UTC)) is TimerState.REACHED


def test_an_expired_timer_is_final() -> None:
    timer = rules.mark(scheduled_timer(), expired(due_s=60, expired_s=99))

    assert (timer.state, timer.expired_at, timer.reached_at) == (TimerState.EXPIRED, at(99), None)
    for command in (schedule(number=9), cancel(number=9)):
        assert rules.apply(timer, command, at(100)) == (timer, Outcome.ALREADY_EXPIRED)
        assert rules.decide(timer, command, at(100)) == (timer, Outcome.ALREADY_EXPIRED)


def test_another_time_to_expire_is_the_next_generation_and_has_no_verdict() -> None:
    before = replace(scheduled_timer(due_s=60), expires_after_ms=5000, verdict=TimerState.REACHED)

    kept, unchanged = rules.apply(before, schedule(due_s=60, number=2, expires_after_s=5), at(1))
    after, moved = rules.apply(before, schedule(due_s=60, number=2), at(1))

    assert (kept.generation, kept.verdict, unchanged) == (1, TimerState.REACHED, Outcome.UNCHANGED)
    assert (after.generation, after.verdict, moved) == (2, None, Outcome.RESCHEDULED)
    assert after.expires_after_ms is None


# Any sequence of commands

_positions = st.builds(Position, st.integers(1, 3), st.integers(1, 6))


@st.composite
def _commands(draw: st.DrawFn) -> list[Command]:
    """Draw commands to one timer: one for each place in the stream, in the order of the stream."""
    places = sorted(draw(st.sets(_positions, min_size=1)))
    return [
        schedule(
            due_s=draw(st.sampled_from([10, 20, 30])),
            number=place.sequence,
            stream=place.stream_created_us,
            correlation=draw(st.sampled_from([None, "request-1", "request-2"])),
            trace=draw(st.sampled_from([None, "trace-1", "trace-2"])),
            if_absent=draw(st.booleans()),
            expires_after_s=draw(st.sampled_from([None, 5])),
        )
        if draw(st.booleans())
        else cancel(number=place.sequence, stream=place.stream_created_us)
        for place in places
    ]


def _expected(commands: list[Command]) -> tuple[object, ...]:
    """Return what the newest command that says anything about it makes of each part of a timer.

    A schedule "if absent" counts as the first of them, or not at all.
    """
    in_order = sorted(set(commands), key=lambda command: command.position)
    in_order[1:] = [c for c in in_order[1:] if isinstance(c, CancelTimer) or not c.if_absent]
    schedules = [command for command in in_order if isinstance(command, ScheduleTimer)]
    cancelled = isinstance(in_order[-1], CancelTimer)
    return (
        TimerState.CANCELLED if cancelled else TimerState.SCHEDULED,
        (schedules[-1].due_at, schedules[-1].expires_after_ms) if schedules else (None, None),
        next((c.correlation_id for c in reversed(schedules) if c.correlation_id), None),
        next((c.trace for c in reversed(schedules) if c.trace), None),
        in_order[-1].position,
    )


def _known(timer: Timer) -> tuple[object, ...]:
    due = (timer.due_at, timer.expires_after_ms)
    return timer.state, due, timer.correlation_id, timer.trace, timer.position


def _apply_all(commands: list[Command]) -> Timer | None:
    timer = None
    for command in commands:
        timer, _ = rules.apply(timer, command, at(0))
    return timer


@given(st.data())
def test_a_newer_command_is_never_undone_in_whatever_order_commands_come(data: st.DataObject) -> None:
    commands = data.draw(_commands())
    deliveries = data.draw(st.lists(st.sampled_from(commands), min_size=1, max_size=20))
    timer: Timer | None = None
    due_of_generation: dict[int, object] = {}

    for count, delivered in enumerate(deliveries, 1):
        before = timer
        timer, _ = rules.apply(timer, delivered, at(0))

        assert _known(timer) == _expected(deliveries[:count])
        assert before is None or timer.generation - before.generation in (0, 1)
        if timer.state is TimerState.SCHEDULED:
            due = (timer.due_at, timer.expires_after_ms)
            assert due_of_generation.setdefault(timer.generation, due) == due


@given(st.data())
def test_any_order_of_the_same_commands_ends_with_the_same_timer(data: st.DataObject) -> None:
    commands = data.draw(_commands())
    again = data.draw(st.lists(st.sampled_from(commands), max_size=5))
    deliveries = data.draw(st.permutations([*commands, *again]))

    mixed, ordered = _apply_all(deliveries), _apply_all(commands)

    assert mixed is not None
    assert ordered is not None
    # The generation counts what came by, the moments tell when: these two depend on the order.
    assert replace(mixed, generation=0) == replace(ordered, generation=0)


@given(_commands())
def test_every_order_of_few_commands_ends_with_the_same_timer(commands: list[Command]) -> None:
    few = commands[:4]

    known = {_known(timer) for order in permutations(few) if (timer := _apply_all(list(order)))}

    assert known == {_expected(few)}


@given(st.data())
def test_redelivery_leaves_the_timer_as_delivery_in_order_does(data: st.DataObject) -> None:
    commands = data.draw(_commands())
    repeated: list[Command] = []
    for index, command in enumerate(commands):
        repeated.append(command)
        repeated.extend(data.draw(st.lists(st.sampled_from(commands[: index + 1]), max_size=3)))

    assert _apply_all(repeated) == _apply_all(commands)


@given(_commands(), _commands())
def test_nothing_changes_a_reached_timer(before: list[Command], after: list[Command]) -> None:
    timer = _apply_all([schedule(number=0), *before, schedule(number=1, stream=9)])
    assert timer is not None
    done = rules.mark(timer, reached(generation=timer.generation, reached_s=60))

    for command in after:
        kept, outcome = rules.apply(done, command, at(61))

        assert (kept, outcome) == (done, Outcome.ALREADY_REACHED)
    assert done.state is TimerState.REACHED
