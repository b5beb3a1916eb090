"""Up to where the due timers of each tenant are in hand: a look under backlog begins there."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from timer_service.adapters.rows import text_ms
from timer_service.domain.messages import TenantId, TimerKey

MAX_AGE_S: Final = 5
"""What somebody else changed in the file counts after this long, as it would with a poll."""

Place = tuple[int, str]
"""A place in the order of a tenant's due timers: due time and service call."""
START: Final[Place] = (-(2**62), "")


class Places:
    """What comes up to a place is claimed or marked, what comes after it is not: nothing has to be passed.

    To pass what is claimed by a list of it takes longer than to read what comes after it. A place counts no
    more once a timer of the tenant was saved or given back, which may come before it; if that happened while
    a look was under way, what the look has found makes no place either.
    """

    def __init__(self) -> None:
        self._known: dict[TenantId, Place] = {}
        self._furthest: dict[TenantId, Place] = {}
        """The last that was found of each tenant: nothing that is claimed comes after it."""
        self._changed: set[TenantId] = set()
        """Since the look began."""
        self._since = datetime.min.replace(tzinfo=UTC)

    def begin(self, now: datetime) -> None:
        """Begin a look."""
        self._changed.clear()
        if not self._since <= now <= self._since + timedelta(seconds=MAX_AGE_S):
            self._known.clear()
            self._since = now

    def of(self, tenants: Iterable[TenantId]) -> dict[TenantId, Place]:
        """Return the places of some tenants, where they have one: their timers are looked for after it."""
        return {tenant_id: self._known[tenant_id] for tenant_id in tenants if tenant_id in self._known}

    def to_pass(self, tenants: Collection[TenantId], claimed: Collection[TimerKey]) -> list[TimerKey]:
        """Return those claimed timers of some tenants that a look would find."""
        # Not a difference of sets: that would go through all places.
        unknown = {tenant_id for tenant_id in tenants if tenant_id not in self._known}
        return [key for key in claimed if key[0] in unknown] if unknown else []

    def found(
        self, rows: Iterable[tuple[Any, ...]], passed: Iterable[TimerKey], with_more: Collection[TenantId]
    ) -> None:
        """Learn from what a look has found, which is about to be claimed, and what it has passed.

        Only tenants that have more are looked for again, so only they have a place.
        """
        with_claimed = {tenant_id for tenant_id, _ in passed}
        for tenant_id, row in {row[0]: row for row in rows}.items():
            if tenant_id not in with_more:
                self._known.pop(tenant_id, None)
                self._furthest.pop(tenant_id, None)
                continue
            place, furthest = (text_ms(row[2]), row[1]), self._furthest.get(tenant_id)
            if furthest is None and tenant_id in with_claimed:
                continue  # Claimed before places were kept: it may come after this one.
            self._furthest[tenant_id] = max(place, furthest or START)
            if tenant_id not in self._changed and place == self._furthest[tenant_id]:
                self._known[tenant_id] = place

    def forget(self, tenants: Iterable[TenantId]) -> None:
        """Look for the timers of these tenants from the start again."""
        for tenant_id in set(tenants):
            self._known.pop(tenant_id, None)
            self._changed.add(tenant_id)

    def forget_all(self) -> None:
        """Keep no places until the next look under backlog."""
        self._known.clear()
        self._furthest.clear()
