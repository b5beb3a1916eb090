"""What a run is, what is recorded of it, and what can go wrong with it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from timer_client.errors import TimerError


class FlowError(TimerError):
    """Anything that durable functions raise, other than TypeError and ValueError for wrong arguments."""


class RunNotFound(FlowError):
    """There is no run of this id."""


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


class Memo(NamedTuple):
    """One row of what a run has done, or waits for."""

    name: str
    kind: str
    wake: int | None
    due_ms: int | None
    done: int
    value: str | None


class Wake(NamedTuple):
    """One timer of a run; `name` is that of its step."""

    number: int
    name: str
    due_ms: int


class Delivered(NamedTuple):
    """A wake-up as it came from the broker."""

    number: int
    delivery: int
    """How often it was delivered so far."""
    reached_ms: int
    epoch: int | None = None
    """That of the worker which holds it and looks again."""


class Hold(NamedTuple):
    """A run in the hands of one worker; what that worker records counts while the epoch is its own."""

    scope: str
    id: str
    epoch: int
    woken: int


class Taken(NamedTuple):
    """A run that is ours to go on with."""

    hold: Hold
    flow: str
    version: int
    input: str
    wake: int
    attempts: int
    memos: list[Memo]


class Left(NamedTuple):
    """A wake-up that is not ours to go on with, and why."""

    is_known: bool = True
    """Whether there is such a run."""
    unknown_flow: str = ""
    """The flow and version that this worker would have to have."""
    pending: tuple[Wake, ...] = ()
    """What the run waits for."""


class Change(NamedTuple):
    """What becomes of a run at the end of a turn."""

    state: RunState
    attempts: int = 0
    result: str | None = None
    error: str | None = None
    kick: int | None = None
    """A wake-up that belongs to no step: the next attempt."""
    due_ms: int | None = None
    """When that is."""


class Overdue(NamedTuple):
    """A run that should have been woken by now."""

    id: str
    state: str
    epoch: int
    due_ms: int
    wake: Wake | None
