"""Where events go, as the core sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from timer_service.domain.messages import Event


class Published(Enum):
    """What became of one publication."""

    CONFIRMED = auto()
    """The broker has it."""
    REJECTED = auto()
    """The broker answered that it will not take this one."""
    STREAM_REFUSED = auto()
    """The stream accepts nothing at present, from anyone: it is full, gone or without resources."""
    UNANSWERED = auto()
    """No answer in time: the broker may or may not have it."""
    DISCONNECTED = auto()
    """The connection was lost: the broker may or may not have it."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of one publication, and why."""

    outcome: Published
    detail: str = ""


class EventSink(Protocol):
    """Events out."""

    @property
    def problem(self) -> str | None:
        """Why no event can be sent now; None if all is well."""
        ...

    async def publish(self, events: Sequence[Event]) -> list[PublishResult]:
        """Publish events, each under its own id, and return what became of each, in the same order.

        Publishing an event again is harmless: its id is the same. Raises BusUnavailable with nothing sent.
        """
        ...
