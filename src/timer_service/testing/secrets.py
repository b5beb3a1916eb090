"""Secrets of tenants in memory."""

from collections.abc import Sequence

from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import SecretPlace, StoredSecret


class MemorySecretStore:
    """Keeps the promises of the port for as long as the process lives."""

    def __init__(self) -> None:
        self._secrets: dict[SecretPlace, StoredSecret] = {}

    async def secrets_of(self, tenant_id: TenantId) -> list[StoredSecret]:
        """Return a tenant's secrets."""
        return [secret for place, secret in sorted(self._secrets.items()) if place[0] == tenant_id]

    async def secrets_after(self, place: SecretPlace | None, limit: int) -> list[StoredSecret]:
        """Return the next secrets in the order of their places."""
        places = [each for each in sorted(self._secrets) if place is None or each > place]
        return [self._secrets[each] for each in places[:limit]]

    async def add_secret(self, secret: StoredSecret) -> bool:
        """Keep a secret unless its place is taken."""
        return self._secrets.setdefault(secret.place, secret) is secret

    async def save_secrets(self, secrets: Sequence[StoredSecret]) -> None:
        """Keep secrets in place of what was there."""
        self._secrets.update({secret.place: secret for secret in secrets})

    async def reseal_secret(self, before: StoredSecret, after: StoredSecret) -> bool:
        """Replace a secret if it is as it was before."""
        is_same = self._secrets.get(before.place) == before
        if is_same:
            self._secrets[after.place] = after
        return is_same

    async def remove_secret(self, place: SecretPlace) -> bool:
        """Delete a secret."""
        return self._secrets.pop(place, None) is not None
