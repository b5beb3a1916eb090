"""Who did what on the page: kept for a while, and never changed."""

from collections.abc import Mapping, Sequence
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
    job: int | None = None
    """The number of the action that began it; None if it was done by itself."""
    after: str = ""
    """The timer as it was left, in the same words; empty if nothing was changed, or if that is not known."""
    number: int = 0
    """Its place among all; given when it is kept."""


class Audit(Protocol):
    """The table of actions. All may raise TransientError."""

    async def record(self, *actions: Action) -> int:
        """Keep actions together, durably, and forget those that are older than KEPT_FOR by then.

        Returns the number of the last one.
        """
        ...

    async def forget(self, before: datetime) -> int:
        """Forget what was done before a moment; return how many actions."""
        ...

    async def get(self, number: int) -> Action | None:
        """Return one action."""
        ...

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int, job: int | None = None
    ) -> Sequence[Action]:
        """Return the newest actions with a number below `before`; only those of some tenants, or all.

        They are those of one job, or those that were done by themselves.
        """
        ...

    async def tally(self, job: int) -> Mapping[tuple[str, str], int]:
        """Count the actions of a job by action and outcome."""
        ...
