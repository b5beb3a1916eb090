"""What became of an event after it was published: where it is stored, and who has read it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from timer_service.domain.messages import Event


class Reading(StrEnum):
    """How far a consumer is with an event."""

    ACKNOWLEDGED = "acknowledged"
    DELIVERED = "delivered"
    """It was given the event, and has not acknowledged all that it was given."""
    WAITING = "waiting"
    """It has not come to the event yet."""
    BEGAN_LATER = "began_later"
    """It was created after the event and asked only for what came after that."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer that the event is meant for."""

    name: str
    reading: Reading
    of_tenant: bool
    """Whether it reads the events of this tenant only; the name of another is not this tenant's business."""


@dataclass(frozen=True, slots=True)
class Trail:
    """Where an event is stored, and who has read it."""

    stream: str
    sequence: int | None
    """None if it was not found: it is no longer kept, or stands among too many others."""
    readers: tuple[Reader, ...] = ()


class EventTrail(Protocol):
    """Follows events to the consumers that read them."""

    async def follow(self, event: Event) -> Trail:
        """Return what became of an event that was published.

        Raises BusUnavailable, and RightMissing if the broker forbids the request.
        """
        ...
