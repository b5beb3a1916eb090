"""Keys of the REST API: each belongs to one tenant, and may do no more than its scopes say."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final

from timer_service.domain.messages import TenantId

PREFIX: Final = "tmr"
MAX_KEY_CHARS: Final = 512
ALL_TENANTS: Final = TenantId("*")
"""The tenant of a key that opens the page for every tenant, and nothing else; no tenant has this name."""


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    """Show timers, deliveries and public keys."""
    WRITE = "write"
    """Schedule, change and cancel timers."""
    REPLAY = "replay"
    """Send callbacks again, and abandon them."""
    ADMIN = "admin"
    """Do on the page what an operator may not; the REST API asks for it nowhere."""


ALL_SCOPES: Final = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key: never the key itself."""

    id: str
    tenant_id: TenantId
    scopes: frozenset[Scope]
    digest: bytes
    """SHA-256 of the whole key: a slow hash would protect nothing that has 256 random bits."""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    note: str = ""
    used_at: datetime | None = None
    """When it last opened, to the minute; None if it never has."""

    def is_valid(self, now: datetime) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def digest_of(text: str) -> bytes:
    """Return the hash that is stored instead of a key."""
    return sha256(text.encode()).digest()


def write_key(key_id: str, secret: str) -> str:
    """Return a key as its owner gets it."""
    return f"{PREFIX}_{key_id}_{secret}"


def key_id_of(text: str) -> str | None:
    """Return the id in a key; None if it is not one of ours."""
    prefix, _, rest = text.partition("_")
    key_id, separator, secret = rest.partition("_")
    return key_id if prefix == PREFIX and key_id and separator and secret else None
