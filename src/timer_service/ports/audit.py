"""Who did what on the page: kept for a while, and never changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from timer_service.domain.messages import TenantId

KEPT_FOR: Final = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody did, or tried to do."""

    at: datetime
    actor: str
    role: str
    """Empty if they have none."""
    action: str
    tenant_id: TenantId | None
    """None if it concerned no tenant."""
    subject: str
    """The timer, letter or receiver that it was about."""
    before: str
    """The timer as it was: its state, due time and generation; empty if there was none."""
    outcome: str
    reason: str = ""
    """What they gave as a reason, or why it was refused."""
    number: int = 0
    """Its place among all; given when it is kept."""


class Audit(Protocol):
    """The table of actions. All may raise TransientError."""

    async def record(self, action: Action) -> None:
        """Keep an action, durably, and forget those that are older than KEPT_FOR by then."""
        ...

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int
    ) -> Sequence[Action]:
        """Return the newest actions with a number below `before`; only those of some tenants, or all."""
        ...
