"""The use cases about callbacks: what became of them, and sending them again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from timer_service.domain.delivery import Delivery, DeliveryState
from timer_service.domain.errors import CriticalError, TimerNotFound, telling_of_failure
from timer_service.domain.messages import ServiceCallId, TenantId, TimerKey
from timer_service.ports.callback_list import CallbackList, CallbackPage, CallbackQuery
from timer_service.ports.clock import Clock
from timer_service.ports.delivery_store import CallbackRecord, DeliveryQuery, DeliveryRecords

_WITHOUT_SUCCESS: Final = frozenset({DeliveryState.FAILED, DeliveryState.ABANDONED})


@dataclass(frozen=True, slots=True)
class Retried:
    """What came of sending callbacks again."""

    found: Sequence[Delivery]
    """As they were before."""
    count: int
    """How many of them wait now: what others have changed meanwhile is left as it is."""


class Deliveries:
    """Questions about callbacks, and what their owner may do. All may raise TransientError: ask again."""

    def __init__(
        self,
        store: DeliveryRecords,
        lists: CallbackList,
        clock: Clock,
        wake: Callable[[datetime], None],
        failed: Callable[[CriticalError], None],
    ) -> None:
        self._store = store
        self._lists = lists
        self._clock = clock
        self._wake = wake
        self._failed = failed

    async def records(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        """Return what is kept of the callbacks of some timers; one without is missing."""
        with telling_of_failure(self._failed):
            return await self._store.get(keys) if keys else {}

    async def record(self, key: TimerKey) -> CallbackRecord:
        """Return what is kept of a timer's callback, or raise TimerNotFound."""
        found = (await self.records([key])).get(key)
        if found is None:
            raise TimerNotFound(key[1])
        return found

    async def list(self, query: DeliveryQuery) -> Sequence[Delivery]:
        """Return a page of one tenant's deliveries."""
        with telling_of_failure(self._failed):
            return await self._store.list_deliveries(query)

    async def timers(self, query: CallbackQuery) -> CallbackPage:
        """Return a page of one tenant's timers with callbacks, and how many there are."""
        with telling_of_failure(self._failed):
            return await self._lists.page(query)

    async def retry(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> tuple[Delivery | None, int]:
        """Send a callback again whose delivery has ended without success.

        Return the delivery, None if there is none, and how many were changed: 0 if it was left as it is.
        """
        record = await self.record((tenant_id, service_call_id))
        count = 0 if record.delivery is None else await self._replay([record.delivery])
        if count:
            record = await self.record((tenant_id, service_call_id))
        return record.delivery, count

    async def retry_all(self, query: DeliveryQuery) -> Retried:
        """Send again what a query finds that has ended without success, up to its limit."""
        # Found first and changed by key: to find a few among many takes long, and no change waits for it.
        found = await self.list(query)
        return Retried(found, await self._replay(found))

    async def _replay(self, found: Sequence[Delivery]) -> int:
        ended = [delivery for delivery in found if delivery.state in _WITHOUT_SUCCESS]
        if not ended:
            return 0
        now = self._clock.now()
        with telling_of_failure(self._failed):
            count = await self._store.replay(ended, now)
        if count:
            self._wake(now)
        return count

    async def abandon(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Delivery | None:
        """Make no further attempt; one that is under way may still arrive."""
        with telling_of_failure(self._failed):
            return await self._store.abandon((tenant_id, service_call_id), self._clock.now())
