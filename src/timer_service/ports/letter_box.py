"""Dead letters, for somebody who looks for what was refused."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from timer_service.domain.messages import ServiceCallId, TenantId


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was refused, and why."""

    number: int
    tenant_id: TenantId | None
    """None if it is not known whose message it was."""
    received_at: datetime
    reason: str
    detail: str
    subject: str
    """Where the message was sent to."""
    body: bytes
    """Of the message, as far as it was kept."""
    is_cut: bool = False
    """Whether the body was too large to be kept whole."""


@dataclass(frozen=True, slots=True)
class LettersFound:
    """Some letters, newest first, and how far the look went."""

    letters: tuple[Letter, ...] = ()
    looked_at: int = 0
    """How many letters were read."""
    older: int | None = None
    """Where an older page ends: its newest letter has a smaller number; None if all were looked at."""


class LetterBox(Protocol):
    """What was refused. All may raise BusUnavailable, and RightMissing if the broker forbids the request."""

    async def page(self, tenant_id: TenantId | None, before: int | None, limit: int) -> LettersFound:
        """Return the newest letters of a tenant, or of all, with a number below `before`."""
        ...

    async def naming(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> LettersFound:
        """Return the newest letters of a tenant that name a timer; older ones may not be looked at."""
        ...

    async def get(self, number: int) -> Letter | None:
        """Return one letter."""
        ...
