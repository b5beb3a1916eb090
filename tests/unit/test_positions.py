"""Positions of commands: nothing is told before it is certain which epoch counts."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from nats.errors import Error as NatsError

from tests.support.timers import at, schedule
from timer_service.adapters.nats.incoming import Delivery
from timer_service.adapters.nats.positions import (
    BEGIN_TRIES,
    CommandPositions,
    StreamEnd,
    read_stream_end,
)
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.errors import BusUnavailable
from timer_service.domain.messages import Position
from timer_service.testing import ManualClock, MemoryTimerStore

CREATED_US = 1_000
END = StreamEnd(CREATED_US, 5, 500)


def told(end: StreamEnd) -> Callable[[], Awaitable[StreamEnd]]:
    async def ask() -> StreamEnd:
        return end

    return ask


def new_positions(store: MemoryTimerStore | None = None) -> CommandPositions:
    return CommandPositions(store or MemoryTimerStore(), ManualClock())


class Rival(MemoryTimerStore):
    """A store in which another instance is always a step ahead."""

    def __init__(self, *, helpful: bool) -> None:
        super().__init__()
        self.tries = 0
        self._helpful = helpful

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        self.tries += 1
        if self._helpful:
            await super().begin_epoch(epoch)
        return False


async def test_the_epoch_that_another_instance_began_first_counts() -> None:
    store = Rival(helpful=True)
    positions = new_positions(store)

    await positions.learn(told(END))

    assert store.tries == 1
    assert await positions.newest(told(END)) == Position(CREATED_US, 5, 500)


async def test_epochs_that_never_settle_are_given_up() -> None:
    store = Rival(helpful=False)

    with pytest.raises(NatsError, match="change too often"):
        await new_positions(store).learn(told(END))

    assert store.tries == BEGIN_TRIES


async def test_before_the_stream_was_looked_at_the_newest_position_is_not_known() -> None:
    with pytest.raises(BusUnavailable, match="was recreated"):
        await new_positions().newest(told(END))


async def test_the_newest_position_of_a_stream_made_again_is_not_known() -> None:
    positions = new_positions()
    await positions.learn(told(END))

    with pytest.raises(BusUnavailable, match="was recreated"):
        await positions.newest(told(StreamEnd(CREATED_US + 1, 1, 600)))


async def test_the_newest_position_of_a_stream_that_lost_its_tail_is_not_known() -> None:
    positions = new_positions()
    await positions.learn(told(END))
    positions.of(Delivery(5, 1, 500))

    with pytest.raises(BusUnavailable, match="lost its newest messages"):
        await positions.newest(told(StreamEnd(CREATED_US, 4, 400)))


async def test_an_empty_stream_has_a_newest_position_and_proves_nothing() -> None:
    positions = new_positions()
    empty = StreamEnd(CREATED_US, 0, 0)
    await positions.learn(told(empty))

    assert await positions.newest(told(empty)) == Position(CREATED_US, 0)
    assert positions.of(Delivery(1, 1, 100)) == Position(CREATED_US, 1, 100)


def test_an_answer_that_is_an_error_is_raised_with_what_it_says() -> None:
    with pytest.raises(NatsError, match="stream not found"):
        read_stream_end(json.dumps({"error": {"code": 404, "description": "stream not found"}}).encode())


def test_nothing_is_current_before_the_stream_was_looked_at() -> None:
    assert not new_positions().is_current(0)


async def test_what_was_delivered_before_a_loss_is_not_current_even_if_it_was_stored_before_it() -> None:
    positions = new_positions()
    await positions.learn(told(StreamEnd(CREATED_US, 5, 500)))
    before = positions.epoch
    positions.of(Delivery(5, 1, 500))

    await positions.learn(told(StreamEnd(CREATED_US, 4, 700)))

    assert not positions.is_current(before)
    assert positions.is_current(positions.epoch)


@pytest.mark.parametrize(("stored_us", "is_lost"), [(900, True), (500, False), (0, False)])
async def test_a_tail_whose_places_were_given_away_is_missed_before_anything_is_delivered(
    stored_us: int, is_lost: bool
) -> None:
    """Nothing is missing at the end of the stream: only what lies in the place of the last one tells."""
    positions = new_positions()
    await positions.learn(told(StreamEnd(CREATED_US, 5, 500)))
    before = positions.epoch
    positions.of(Delivery(5, 1, 500))
    asked: list[int] = []

    async def stored(sequence: int) -> int:
        asked.append(sequence)
        return stored_us

    await positions.learn(told(StreamEnd(CREATED_US, 6, 950)), stored)

    assert asked[0] == 5
    assert positions.is_current(before) is not is_lost


@pytest.mark.parametrize(("stored_us", "is_lost"), [(900, True), (700, False), (0, False)])
async def test_a_tail_that_another_instance_has_applied_is_missed_too(stored_us: int, is_lost: bool) -> None:
    """What was delivered here is still in its place; what the other one applied beyond it is not."""
    store = MemoryTimerStore()
    ours, theirs = new_positions(store), new_positions(store)
    for positions in (ours, theirs):
        await positions.learn(told(StreamEnd(CREATED_US, 5, 500)))
    ours.of(Delivery(5, 1, 500))
    applied = theirs.of(Delivery(7, 1, 700))
    assert applied is not None
    await store.apply([replace(schedule(), position=applied)], at(0))
    before = ours.epoch
    in_place = {5: 500, 7: stored_us}

    async def stored(sequence: int) -> int:
        return in_place[sequence]

    await ours.learn(told(StreamEnd(CREATED_US, 9, 950)), stored)

    assert ours.is_current(before) is not is_lost


def test_what_is_delivered_again_while_positions_are_not_known_is_kept_once() -> None:
    positions = new_positions()
    for times in range(1, 1_001):
        for sequence in range(10):
            positions.set_aside(sequence, f"$JS.ACK.{sequence}.{times}")

    assert positions.take_aside() == [f"$JS.ACK.{sequence}.1000" for sequence in range(10)]
    assert positions.take_aside() == []
