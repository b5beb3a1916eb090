"""What is read before it is due is what the file would say when it is due."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.timers import ACME, at, call, scheduled_timer
from timer_client.wire import format_time
from timer_service.adapters.sqlite.ahead import MAX_AGE_S, MAX_ROWS, MAX_SAVED, Ahead
from timer_service.domain.timer import TimerState

MS = timedelta(milliseconds=1)


def row(name: str, due_s: float) -> tuple[Any, ...]:
    return (ACME, call(name), format_time(at(due_s)), 1, None, None, None, None, None)


def read(*rows: tuple[Any, ...], after_s: float = 0) -> Ahead:
    ahead = Ahead(at(after_s))
    ahead.fill(rows)
    return ahead


def names(rows: list[tuple[Any, ...]] | None) -> list[str] | None:
    return None if rows is None else [row[1] for row in rows]


def test_what_is_due_is_taken_once_in_order() -> None:
    ahead = read(row("a", 1), row("b", 2), row("c", 3))

    assert names(ahead.take(at(2), 10, ())) == ["a", "b"]
    assert ahead.take(at(2), 10, ()) == []
    assert names(ahead.take(at(3), 10, ())) == ["c"]


def test_before_the_file_was_read_nothing_is_known() -> None:
    ahead = Ahead(at(0))

    assert ahead.take(at(1), 10, ()) is None
    assert ahead.next_due_at(at(0)) == (False, None)


def test_what_is_saved_before_the_file_is_read_is_noted_up_to_a_limit() -> None:
    ahead = Ahead(at(0))
    ahead.saved([scheduled_timer(f"order-{n}", 60) for n in range(MAX_SAVED)])
    was_full = ahead.is_full
    ahead.saved([scheduled_timer("one-more", 60)])

    assert (was_full, ahead.is_full) == (False, True)


def test_filling_tells_when_the_first_is_due() -> None:
    assert Ahead(at(0)).fill([row("a", 1), row("b", 2)]) == at(1)
    assert Ahead(at(0)).fill([]) is None


def test_more_than_the_limit_is_left_to_the_file() -> None:
    ahead = read(row("a", 1), row("b", 1))

    assert ahead.take(at(1), 1, ()) is None
    assert names(ahead.take(at(1), 2, ())) == ["a", "b"]


def test_what_is_claimed_is_left_to_the_file() -> None:
    ahead = read(row("a", 1), row("b", 1))

    assert ahead.take(at(1), 10, {(ACME, call("b"))}) is None


def test_what_others_changed_in_the_file_counts_after_a_while() -> None:
    ahead = read(row("a", 1))
    later = at(MAX_AGE_S)

    assert ahead.take(later, 10, ()) is None
    assert names(ahead.take(later - MS, 10, ())) == ["a"]


def test_reading_on_after_looks_from_memory_does_not_count_as_a_look() -> None:
    first = read(row("a", 1), row("b", 4))
    first.take(at(4), 10, ())

    ahead = Ahead(at(4), first.looked_at)
    ahead.fill([row("c", 4.5), row("d", MAX_AGE_S + 1)])

    assert names(ahead.take(at(4.5), 10, ())) == ["c"]
    assert ahead.take(at(MAX_AGE_S + 1), 10, ()) is None


def test_a_clock_that_was_set_back_asks_the_file() -> None:
    ahead = read(row("a", 12), after_s=10)

    assert ahead.take(at(9), 10, ()) is None
    assert ahead.next_due_at(at(9)) == (False, None)


def test_a_timer_that_was_saved_is_forgotten_with_all_from_its_due_time_on() -> None:
    ahead = read(row("a", 1), row("b", 2), row("c", 3))

    ahead.saved([scheduled_timer("b", 2)])

    assert names(ahead.take(at(1), 10, ())) == ["a"]
    assert ahead.take(at(2), 10, ()) is None
    assert ahead.take(at(3), 10, ()) is None


def test_a_timer_that_ended_takes_only_itself_away() -> None:
    ahead = read(row("a", 1), row("b", 2))

    ahead.saved([replace(scheduled_timer("a", 1), state=TimerState.CANCELLED)])

    assert names(ahead.take(at(2), 10, ())) == ["b"]


def test_a_timer_saved_for_later_leaves_what_is_earlier() -> None:
    ahead = read(row("a", 1), row("b", 2))

    ahead.saved([scheduled_timer("a", 90)])

    assert names(ahead.take(at(2), 10, ())) == ["b"]
    assert ahead.next_due_at(at(2)) == (False, None)


def test_what_was_saved_while_the_file_was_read_does_not_count_as_read() -> None:
    ahead = Ahead(at(0))

    ahead.saved([scheduled_timer("a", 90), scheduled_timer("x", 2)])
    ahead.fill([row("a", 1), row("b", 1.5), row("c", 3)])

    assert names(ahead.take(at(1.9), 10, ())) == ["b"]
    assert ahead.take(at(3), 10, ()) is None


def test_a_timer_saved_as_due_long_ago_is_left_to_the_file() -> None:
    ahead = read(row("a", 11), after_s=10)

    ahead.saved([scheduled_timer("b", 5)])

    assert not ahead.follows(at(10))
    assert ahead.take(at(11), 10, ()) is None
    assert ahead.next_due_at(at(10)) == (False, None)


def test_a_timer_due_in_the_first_moment_of_all_is_saved_like_any_other() -> None:
    ahead = read(row("a", 11), after_s=10)

    ahead.saved([replace(scheduled_timer("b"), due_at=datetime.min.replace(tzinfo=UTC))])

    assert ahead.take(at(11), 10, ()) is None


def test_of_many_at_one_time_either_all_are_known_or_none() -> None:
    rows = [row("first", 1), *(row(f"order-{number}", 2) for number in range(MAX_ROWS))]
    ahead = read(*rows)

    assert ahead.next_due_at(at(0)) == (True, at(1))
    assert names(ahead.take(at(1), 10, ())) == ["first"]
    assert ahead.next_due_at(at(1)) == (False, None)
    assert ahead.take(at(2), MAX_ROWS, ()) is None


def test_it_is_known_that_nothing_comes_next() -> None:
    ahead = read(row("a", 1))

    assert ahead.next_due_at(at(0)) == (True, at(1))
    ahead.take(at(1), 10, ())
    assert ahead.next_due_at(at(1)) == (True, None)


def test_what_comes_next_is_known_only_of_the_last_look() -> None:
    ahead = read(row("a", 1), row("b", 3))
    ahead.take(at(1), 10, ())

    assert ahead.next_due_at(at(1)) == (True, at(3))
    assert ahead.next_due_at(at(2)) == (False, None)
