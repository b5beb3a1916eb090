"""Stretches of a command stream in which sequences only grow.

A stream begins with one epoch. A broker that comes back without its newest messages gives their sequences to
new ones; from there on another epoch counts, and what is new is newer than all that was ever applied.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from timer_service.domain.messages import Command, Position


@dataclass(frozen=True, slots=True)
class StreamEpoch:
    """One stretch of one stream."""

    number: int
    """The first part of its commands' positions: greater than that of every epoch before."""
    stream_created_us: int
    after_sequence: int = 0
    """Messages of the stream beyond this one belong to the epoch,"""
    after_us: int = 0
    """and so do those that the broker stored after this moment; 0 if it is not known."""
    last_sequence: int = 0
    """The newest command that was applied,"""
    last_stored_us: int = 0
    """and the latest moment at which the broker stored one; 0 if it is not known."""

    def holds(self, sequence: int, stored_us: int) -> bool:
        """Return whether a message of the stream is in this epoch or in a later one."""
        return sequence > self.after_sequence or 0 < self.after_us < stored_us


def epoch_of(epochs: Sequence[StreamEpoch], sequence: int, stored_us: int) -> int:
    """Return the number of the epoch, of those of one stream in their order, that a message belongs to."""
    if len(epochs) == 1:  # Of a stream that never lost anything, which is nearly every one.
        return epochs[0].number
    first, *later = epochs
    return next((e.number for e in reversed(later) if e.holds(sequence, stored_us)), first.number)


def epoch_to_begin(
    known: Sequence[StreamEpoch],
    stream_created_us: int,
    last_sequence: int,
    seen: Position | None = None,
    *,
    overwritten: bool = False,
) -> StreamEpoch | None:
    """Return the epoch that has to begin before anything of the stream is applied; None if none has to.

    `known` are all epochs of all streams in their order, `seen` is the newest message that was delivered.
    `overwritten` says that a sequence which was applied has come again as another message.
    """
    ours = [epoch for epoch in known if epoch.stream_created_us == stream_created_us]
    following = known[-1].number + 1 if known else 0
    if not ours:
        # Its time of creation, unless the clock of the broker was behind.
        return StreamEpoch(max(stream_created_us, following), stream_created_us)
    newest = ours[-1]
    reached = (newest.last_sequence, newest.last_stored_us)
    seen_now = seen is not None and seen.stream_created_us == newest.number
    if seen is not None and seen_now:
        reached = (max(reached[0], seen.sequence), max(reached[1], seen.stored_us))
    in_use = newest.number == known[-1].number  # If not, an old stream was put back in place of a newer one.
    if in_use and last_sequence >= reached[0] and not (overwritten and seen_now):
        return None
    return StreamEpoch(following, stream_created_us, min(last_sequence, reached[0]), reached[1])


def newest_position(known: Sequence[StreamEpoch]) -> Position:
    """Return the newest command that was ever applied; what comes before all commands if there was none."""
    if not known:
        return Position(0, 0)
    newest = max(known, key=lambda epoch: epoch.number)
    return Position(newest.number, newest.last_sequence, newest.last_stored_us)


def newest_by_epoch(commands: Iterable[Command]) -> list[Position]:
    """Return for each epoch the newest of some commands, with the latest moment at which one was stored."""
    by_epoch = defaultdict[int, list[Position]](list)
    for command in commands:
        at = command.position
        by_epoch[at.stream_created_us].append(at)
    newest = [
        Position(number, max([at.sequence for at in positions]), max([at.stored_us for at in positions]))
        for number, positions in sorted(by_epoch.items())
    ]
    # A request that came before any command has no place in a stream.
    return [at for at in newest if at.sequence or at.stored_us]
