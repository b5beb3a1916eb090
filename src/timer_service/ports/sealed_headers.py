"""The headers of callbacks as they are stored, for sealing them with another key."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from timer_service.domain.messages import Keyed, ServiceCallId, TenantId, TimerKey


@dataclass(frozen=True, slots=True)
class StoredHeaders(Keyed):
    """The headers of one timer's callback."""

    tenant_id: TenantId
    service_call_id: ServiceCallId
    headers: tuple[tuple[str, str], ...]


class SealedHeaders(Protocol):
    """The headers of all callbacks that have some."""

    async def headers_after(self, key: TimerKey | None, limit: int) -> Sequence[StoredHeaders]:
        """Return the next headers in the order of the keys."""
        ...

    async def replace_headers(self, changes: Sequence[tuple[StoredHeaders, StoredHeaders]]) -> int:
        """Replace headers that are still as they were, in one transaction; return how many were."""
        ...
