"""What a run is for its users, and what can go wrong with it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from timer_client.errors import TimerError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FlowError(TimerError):
    """Anything that durable functions raise, other than TypeError and ValueError for wrong arguments."""


class RunNotFound(FlowError):
    """There is no run of this id."""


class FlowUnknown(FlowError):
    """A worker does not have the flow or the version of a run."""


class StepFailed(FlowError):
    """A step raised an exception; it says the same when the function is run again."""

    def __init__(self, step: str, kind: str, message: str) -> None:
        super().__init__(f"{step}: {kind}: {message}")
        self.step = step
        self.kind = kind
        """The name of the exception's class."""
        self.message = message


class Suspension(BaseException):
    """Leaves a function until its run is woken: let it pass, as you would a cancellation."""


class RunState(StrEnum):
    """Where a run is; the last three are its end."""

    SLEEPING = "Sleeping"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as the journal has it."""

    id: str
    flow: str
    version: int
    state: RunState
    attempts: int
    """How often it has failed in a row."""
    due_at: datetime | None
    """When it is woken next, if it sleeps; none while that is at once, or by a signal only."""
    result: Any
    error: str | None


def milliseconds(moment: datetime) -> int:
    """Return a moment in milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def moment(since_1970_ms: int) -> datetime:
    """Return the moment this many milliseconds after 1970."""
    return EPOCH + timedelta(milliseconds=since_1970_ms)
