"""Where the secrets of tenants are kept, sealed: signing keys and named secrets."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from timer_service.domain.messages import TenantId


class SecretKind(StrEnum):
    """What a secret is for; the word is kept in the store."""

    ED25519 = "ed25519"
    HMAC = "hmac"
    NAMED = "named"


SecretPlace = tuple[TenantId, str, str]
"""What names a secret: tenant, kind and name."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """One secret, sealed for its place."""

    tenant_id: TenantId
    kind: SecretKind
    name: str
    sealed: bytes
    created_at: datetime
    ends_at: datetime | None = None
    """From when on a signing key signs no more."""

    @property
    def place(self) -> SecretPlace:
        """What names it."""
        return self.tenant_id, self.kind.value, self.name


class SecretStore(Protocol):
    """The secrets of all tenants."""

    async def secrets_of(self, tenant_id: TenantId) -> Sequence[StoredSecret]:
        """Return a tenant's secrets, by kind, then the oldest first."""
        ...

    async def secrets_after(self, place: SecretPlace | None, limit: int) -> Sequence[StoredSecret]:
        """Return the next secrets of all tenants in the order of their places."""
        ...

    async def add_secret(self, secret: StoredSecret) -> bool:
        """Keep a secret unless its place is taken; return whether it is kept. Of two at once one is."""
        ...

    async def save_secrets(self, secrets: Sequence[StoredSecret]) -> None:
        """Keep secrets in one transaction, in place of what was there; saving again changes nothing."""
        ...

    async def reseal_secret(self, before: StoredSecret, after: StoredSecret) -> bool:
        """Replace a secret if it is still as it was before; return whether it was."""
        ...

    async def remove_secret(self, place: SecretPlace) -> bool:
        """Delete a secret; return whether there was one."""
        ...
