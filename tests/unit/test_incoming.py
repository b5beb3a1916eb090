"""What was delivered and waits is bounded by count and by bytes."""

from timer_service.adapters.nats.incoming import MAX_BUFFERED_BYTES, Buffer, Incoming
from timer_service.domain.messages import Position


def message(sequence: int, size: int = 0) -> Incoming:
    return Incoming(f"$JS.ACK.{sequence}", Position(1, sequence), 1, None, None, b"x" * size)


def test_there_is_room_for_two_batches() -> None:
    buffer = Buffer(batch_size=3)

    room = []
    for sequence in range(7):
        room.append(buffer.has_room())
        buffer.put(message(sequence))

    assert room == [True] * 6 + [False]


def test_large_bodies_use_the_room_up_until_they_are_taken() -> None:
    buffer = Buffer(batch_size=10)
    for sequence in range(9):
        buffer.put(message(sequence, MAX_BUFFERED_BYTES // 8))
    full = not buffer.has_room()

    taken = buffer.take(2)

    assert full
    assert [m.position.sequence for m in taken] == [0, 1]
    assert buffer.has_room()


def test_taking_everything_leaves_nothing_behind() -> None:
    buffer = Buffer(batch_size=2)
    for sequence in range(5):
        buffer.put(message(sequence, MAX_BUFFERED_BYTES))

    taken = buffer.take_all()

    assert [m.position.sequence for m in taken] == list(range(5))
    assert (len(buffer), buffer.has_room()) == (0, True)
