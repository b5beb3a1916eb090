"""Where the keys of the REST API are kept, as the core sees it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from timer_service.domain.api_keys import ApiKey
from timer_service.domain.messages import TenantId


class ApiKeyStore(Protocol):
    """The durable list of keys. All may raise TransientError: try again."""

    async def add(self, key: ApiKey) -> None:
        """Keep a new key; its id is not taken yet."""
        ...

    async def get(self, key_id: str) -> ApiKey | None:
        """Return one key, valid or not."""
        ...

    async def list_keys(self, tenant_id: TenantId | None = None) -> Sequence[ApiKey]:
        """Return all keys, or those of one tenant, oldest first."""
        ...

    async def revoke(self, key_id: str, now: datetime) -> ApiKey | None:
        """End a key and return it; one that was revoked before keeps its moment. None if there is none."""
        ...

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Keep that a key has opened, unless a later use is known; nothing happens if there is none."""
        ...
