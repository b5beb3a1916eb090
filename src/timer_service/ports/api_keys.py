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
        """Revoke a key and return it, or None if there is none; a key revoked before keeps its old time."""
        ...

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Record when a key was used, unless a later use is known; do nothing if there is no such key."""
        ...
