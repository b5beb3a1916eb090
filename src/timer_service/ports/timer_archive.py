"""All timers of a store, for moving them to another one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.messages import TimerKey
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import CallbackRecord


class CopyState(Protocol):
    """Where a store stands in a copy. All of it is durable, and keeps services away from half a store."""

    async def unfinished_copy_of(self) -> str | None:
        """Return the name of the store that is being copied into this one; None if none is."""
        ...

    async def begin(self, source: str) -> None:
        """Remember that this store is being filled; until the end, no service starts on it."""
        ...

    async def end(self) -> None:
        """Forget that: the copy is whole."""
        ...

    async def mark_moved(self, target: str) -> None:
        """Remember that the timers are elsewhere now; no service starts on this store from then on.

        Nothing is read from it after that. One that is running ends as soon as it connects again.
        """
        ...

    async def reopen(self) -> str | None:
        """Forget that; return where the timers were moved to, or None if they were not."""
        ...


class TimerArchive(Protocol):
    """A store that no service is using, read from end to end.

    Opening one makes sure of that: it raises StoreInUse if a service is at work.
    """

    @property
    def name(self) -> str:
        """What the store is called, without any password; the same each time it is opened."""
        ...

    @property
    def copying(self) -> CopyState:
        """Whether it is being filled, or was moved."""
        ...

    async def count(self) -> int:
        """Return how many timers there are."""
        ...

    async def last_key(self) -> TimerKey | None:
        """Return the greatest key, by which a copy knows how far it came."""
        ...

    async def read(self, after: TimerKey | None, limit: int) -> Sequence[Timer]:
        """Return the next timers in the order of tenant and id, by code point."""
        ...

    async def records(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Return what is kept of the callbacks of these timers; a timer without one is missing."""
        ...

    async def epochs(self) -> Sequence[StreamEpoch]:
        """Return the epochs of the command streams."""
        ...


class WritableArchive(TimerArchive, Protocol):
    """An archive that is filled by a copy."""

    async def write(self, timers: Sequence[Timer], records: Mapping[TimerKey, CallbackRecord]) -> None:
        """Add timers and their callbacks in one durable transaction; none of them may be there already."""
        ...

    async def write_epochs(self, epochs: Sequence[StreamEpoch]) -> None:
        """Replace all epochs with these."""
        ...

    async def clear(self) -> None:
        """Delete every timer of an unfinished copy."""
        ...
