"""Epochs of a stream: what is new is newer than all that was applied, and what is old stays old."""

import pytest

from tests.support.timers import cancel, schedule
from timer_service.domain.epochs import (
    StreamEpoch,
    epoch_of,
    epoch_to_begin,
    newest_by_epoch,
    newest_position,
)
from timer_service.domain.messages import Command, Position

FIRST = StreamEpoch(1000, 1000, last_sequence=26, last_stored_us=260)
"""A stream that was created at 1000 and has been applied up to 26; message n was stored at 10 n."""


def test_a_stream_begins_with_the_epoch_of_its_creation() -> None:
    assert epoch_to_begin([], 1000, 0) == StreamEpoch(1000, 1000)


def test_a_stream_made_again_begins_a_later_epoch() -> None:
    assert epoch_to_begin([FIRST], 2000, 3) == StreamEpoch(2000, 2000)


def test_a_stream_made_again_on_a_clock_that_is_behind_begins_a_later_epoch_too() -> None:
    assert epoch_to_begin([FIRST], 500, 3) == StreamEpoch(1001, 500)


@pytest.mark.parametrize("last_sequence", [26, 27, 1000])
def test_a_stream_that_has_lost_nothing_goes_on(last_sequence: int) -> None:
    assert epoch_to_begin([FIRST], 1000, last_sequence) is None


def test_a_stream_that_ends_before_what_was_applied_begins_an_epoch_after_its_end() -> None:
    assert epoch_to_begin([FIRST], 1000, 22) == StreamEpoch(1001, 1000, 22, 260)


def test_what_was_delivered_but_not_applied_counts_as_well() -> None:
    assert epoch_to_begin([FIRST], 1000, 28, Position(1000, 30, 300)) == StreamEpoch(1001, 1000, 28, 300)


def test_what_was_delivered_and_is_still_there_changes_nothing() -> None:
    assert epoch_to_begin([FIRST], 1000, 28, Position(1000, 26, 260)) is None


def test_what_was_delivered_in_another_epoch_does_not_count() -> None:
    assert epoch_to_begin([FIRST], 1000, 28, Position(900, 30, 300), overwritten=True) is None


def test_a_stream_whose_sequences_were_given_away_again_begins_an_epoch_by_time() -> None:
    begun = epoch_to_begin([FIRST], 1000, 40, Position(1000, 26, 260), overwritten=True)

    assert begun == StreamEpoch(1001, 1000, 26, 260)


def test_an_old_stream_that_is_put_back_begins_an_epoch_after_the_one_in_use() -> None:
    in_use = StreamEpoch(2000, 2000, last_sequence=5)

    assert epoch_to_begin([FIRST, in_use], 1000, 26) == StreamEpoch(2001, 1000, 26, 260)


AFTER_A_LOSS = [FIRST, StreamEpoch(1001, 1000, after_sequence=22, after_us=260)]


@pytest.mark.parametrize(
    ("sequence", "stored_us", "epoch"),
    [
        (5, 50, 1000),
        (22, 220, 1000),
        (23, 230, 1001),
        (23, 300, 1001),
        (21, 270, 1001),
        (22, 0, 1000),
    ],
)
def test_a_message_that_outlived_the_loss_stays_in_its_epoch_and_a_new_one_is_in_the_next(
    sequence: int, stored_us: int, epoch: int
) -> None:
    assert epoch_of(AFTER_A_LOSS, sequence, stored_us) == epoch


def test_after_several_losses_each_message_is_in_the_epoch_in_which_it_was_stored() -> None:
    twice = [*AFTER_A_LOSS, StreamEpoch(1002, 1000, after_sequence=25, after_us=400)]

    found = [epoch_of(twice, sequence, us) for sequence, us in [(22, 220), (24, 380), (24, 410), (26, 420)]]

    assert found == [1000, 1001, 1002, 1002]


def test_a_moment_that_is_not_known_decides_nothing() -> None:
    unknown = [FIRST, StreamEpoch(1001, 1000, after_sequence=22)]

    assert [epoch_of(unknown, 22, 220), epoch_of(unknown, 23, 230)] == [1000, 1001]


def test_of_a_batch_the_newest_command_of_each_epoch_counts() -> None:
    commands: list[Command] = [
        schedule("a", number=3),
        cancel("b", number=9),
        schedule("c", number=4, stream=2),
        schedule("d", number=7),
    ]

    assert newest_by_epoch(commands) == [Position(1, 9), Position(2, 4)]


def test_the_newest_command_of_all_is_in_the_epoch_in_use() -> None:
    in_use = StreamEpoch(2000, 2000, last_sequence=5, last_stored_us=900)

    assert newest_position([FIRST, in_use]) == newest_position([in_use, FIRST]) == Position(2000, 5, 900)
    assert newest_position([]) == Position(0, 0)
