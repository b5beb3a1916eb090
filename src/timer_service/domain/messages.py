"""What callers say to the service and what it says to them."""

from dataclasses import field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import ClassVar, NewType
from uuid import UUID

from timer_service.domain.callback import Callback, NoCallback
from timer_service.domain.values import value

TenantId = NewType("TenantId", str)
ServiceCallId = NewType("ServiceCallId", str)
CorrelationId = NewType("CorrelationId", str)
Versions = frozenset[str]
"""The versions of a timer that a request counts for, in any other nothing changes; none of them: if there is
no such timer."""
TimerKey = tuple[TenantId, ServiceCallId]
"""What identifies a timer: no two of a tenant have the same service call."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_VARIANTS = {f"{digit:x}": f"{0b1000 | digit & 0b0011:x}" for digit in range(16)}
"""The first digit of the second half of a UUID: its upper two bits are fixed."""


class Keyed:
    """Something about one timer."""

    __slots__ = ()
    tenant_id: TenantId
    service_call_id: ServiceCallId

    @property
    def key(self) -> TimerKey:
        """The key of the timer."""
        return self.tenant_id, self.service_call_id


@value(frozen=True, slots=True, order=True)
class Position:
    """Where a command stands among all commands: by the epoch of its stream, then by the sequence."""

    stream_created_us: int
    """The number of the epoch; of a stream that never lost anything the time of its creation."""
    sequence: int
    stored_us: int = field(default=0, compare=False)
    """When the broker stored the command, in microseconds since 1970; 0 if it is not known."""


@value(frozen=True, slots=True)
class Trace:
    """The W3C trace context of a command, carried to its event."""

    parent: str
    state: str | None


@value(frozen=True, slots=True)
class ScheduleTimer(Keyed):
    """Wake me at this time; a repeated command moves the time."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    due_at: datetime
    correlation_id: CorrelationId | None
    position: Position
    trace: Trace | None = None
    callback: Callback | NoCallback | None = None
    expected: Versions | None = None
    fingerprint: str | None = None
    """Of the request, to tell its repetition from another one with the same key."""
    """How to fire over HTTP; None leaves it as it is, which is on the bus for a new timer."""
    if_absent: bool = False
    """Whether it counts only if there is no such timer yet, in any state."""
    expires_after_ms: int | None = None
    """How long after the due time its event is still of use; None if forever."""


@value(frozen=True, slots=True)
class CancelTimer(Keyed):
    """The timer is no longer wanted."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    position: Position
    expected: Versions | None = None


Command = ScheduleTimer | CancelTimer


@value(frozen=True, slots=True)
class _Firing(Keyed):
    """What one generation of a timer came to."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    due_at: datetime
    at: datetime
    """When it was handled."""
    generation: int
    correlation_id: CorrelationId | None
    trace: Trace | None = None

    _kind: ClassVar[str] = ""

    @property
    def id(self) -> UUID:
        """The one id of this event, the same however often it is published."""
        return UUID(self.id_text)

    @property
    def id_text(self) -> str:
        """The id as messages carry it."""
        return _derived_id(self.tenant_id, self.service_call_id, self.generation, self.due_at, self._kind)


class DueTimeReached(_Firing):
    """The due time of one generation of a timer was reached."""

    __slots__ = ()


class TimerExpired(_Firing):
    """The due time was reached, but its event could only go out when it was no longer of use."""

    __slots__ = ()

    # Its id is not that of the firing in whose place it stands.
    _kind = "\nTimerExpired"


Event = DueTimeReached | TimerExpired
"""Never both for one generation."""


def short_digest(*parts: object) -> str:
    """Return a text that differs as soon as any part differs; moments are compared in UTC."""
    texts = (str(epoch_ms(part)) if isinstance(part, datetime) else str(part) for part in parts)
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


def epoch_ms(moment: datetime) -> int:
    """Return the milliseconds since 1970, negative before it."""
    return (moment - EPOCH) // _MILLISECOND


def firing_id(tenant_id: TenantId, service_call_id: ServiceCallId, generation: int, due_at: datetime) -> UUID:
    """Derive the UUIDv7 of a firing: its due time in front, a hash of its identity behind."""
    return UUID(_derived_id(tenant_id, service_call_id, generation, due_at))


def _derived_id(
    tenant_id: TenantId, service_call_id: ServiceCallId, generation: int, due_at: datetime, more: str = ""
) -> str:
    due_ms, time = _time_of_id(due_at)
    # Neither id can hold a line break, so two different firings never hash the same text.
    identity = f"{tenant_id}\n{service_call_id}\n{generation}\n{due_ms}{more}"
    # Digit by digit, because each firing needs one: to make a UUID and write it costs three times as much.
    chance = sha256(identity.encode()).hexdigest()
    return f"{time}-7{chance[:3]}-{_VARIANTS[chance[4]]}{chance[5:8]}-{chance[8:20]}"


@lru_cache(maxsize=8)  # Timers of a burst are due at one moment.
def _time_of_id(due_at: datetime) -> tuple[int, str]:
    """Return the milliseconds since 1970, and how they begin an id."""
    due_ms = epoch_ms(due_at)
    digits = f"{max(due_ms, 0):012x}"
    return due_ms, f"{digits[:8]}-{digits[8:]}"
