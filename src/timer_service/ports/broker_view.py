"""What the broker holds and who else is there, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StreamSeen:
    """One stream of the service."""

    name: str
    messages: int
    bytes: int
    consumers: int


@dataclass(frozen=True, slots=True)
class ReaderSeen:
    """A consumer of the events, and how far behind it is."""

    name: str
    subjects: Sequence[str]
    waiting: int
    """Events that it was not given yet."""
    unacknowledged: int
    """Events that it was given and has not acknowledged."""
    redelivered: int
    """Of these, how many were given to it more than once."""


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """An instance of the service."""

    name: str
    version: str
    is_well: bool
    fired_per_s: float
    lateness_p99_s: float | None


class BrokerView(Protocol):
    """What the broker shows. All may raise BusUnavailable, and RightMissing if it forbids the request."""

    async def streams(self) -> Sequence[StreamSeen]:
        """Return the streams of the service."""
        ...

    async def readers(self) -> Sequence[ReaderSeen]:
        """Return who reads the events."""
        ...

    async def instances(self) -> Sequence[InstanceSeen]:
        """Return every instance that answers, which takes a moment."""
        ...
