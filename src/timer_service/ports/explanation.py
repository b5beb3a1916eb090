"""Why a timer is in its state, and what is known when somebody asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from timer_service.domain.cause import Cause
from timer_service.domain.timer import Timer
from timer_service.ports.delivery_store import CallbackRecord
from timer_service.ports.event_trail import Trail
from timer_service.ports.health import Health
from timer_service.ports.letter_box import LettersFound


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the loop that fires a timer passes it over."""

    cause: Cause
    until: datetime | None = None
    """When it is tried again."""
    attempts: int = 0
    detail: str = ""
    """What the broker said; for operators."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about one timer at one moment."""

    now: datetime
    timer: Timer | None
    health: Health = field(default_factory=lambda: Health(None, {}))
    since: Mapping[str, datetime] = field(default_factory=dict)
    """Part of the service to when its problem began, where that is known."""
    has_broker: bool = True
    held_step: timedelta = timedelta()
    """By how much the machine's clock is ahead of ours."""
    obstacle: Obstacle | None = None
    due: int = 0
    """How many timers are due, this one included."""
    fired_per_s: float = 0.0
    commands_wait: bool | None = False
    """Whether commands of the tenant are not applied yet; None if nobody knows."""
    record: CallbackRecord | None = None
    receiver_back_at: datetime | None = None
    """When a receiver that counts as gone is tried again."""
    letters: LettersFound | None = None
    """None if they were not or could not be looked at."""
    trail: Trail | None = None
    unknown: tuple[str, ...] = ()
    """What could not be looked at, and what helps."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a timer is in its state."""

    cause: Cause
    text: str
    is_well: bool
    """Whether nothing has to be done about it."""
    facts: Facts
    since: datetime | None = None
    detail: str | None = None
    """What else an operator may know: it can name hosts and paths."""
