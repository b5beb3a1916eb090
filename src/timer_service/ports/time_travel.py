"""A clock that people may move, as the page sees it; there is one in `dev --clock virtual` only."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Travelled:
    """How far time has come."""

    now: datetime
    published: int
    """Events that were published on the way."""
    arrived: bool
    """Whether the target is reached; if not, one travel takes no longer."""


class TimeTravel(Protocol):
    """Time that stands still until somebody moves it. Both raise ValueError with what is in the way."""

    async def go_to(self, target: datetime) -> Travelled:
        """Go from due time to due time until the target."""
        ...

    async def go_to_next(self) -> Travelled:
        """Go to the next due time; stay if nothing is scheduled."""
        ...
