"""Keys of the REST API in a dictionary."""

from dataclasses import replace
from datetime import datetime

from timer_service.domain.api_keys import ApiKey
from timer_service.domain.messages import TenantId


class MemoryApiKeys:
    """Keys in a dictionary, with the promises of the real stores except durability."""

    def __init__(self) -> None:
        self._keys: dict[str, ApiKey] = {}

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""
        self._keys[key.id] = key

    async def get(self, key_id: str) -> ApiKey | None:
        """Return one key."""
        return self._keys.get(key_id)

    async def list_keys(self, tenant_id: TenantId | None = None) -> list[ApiKey]:
        """Return all keys, or those of one tenant, oldest first."""
        found = [key for key in self._keys.values() if tenant_id in (None, key.tenant_id)]
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def revoke(self, key_id: str, now: datetime) -> ApiKey | None:
        """Revoke a key."""
        key = self._keys.get(key_id)
        if key is not None and key.revoked_at is None:
            key = self._keys[key_id] = replace(key, revoked_at=now)
        return key

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Keep when a key was last used."""
        key = self._keys.get(key_id)
        if key is not None and (key.used_at is None or key.used_at < now):
            self._keys[key_id] = replace(key, used_at=now)
