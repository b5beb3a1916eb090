"""Secrets of tenants as rows and back, once for every database."""

from typing import Any, Final

from timer_service.adapters.rows import Row, moment, text
from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import SecretKind, StoredSecret

COLUMNS: Final = "tenant_id, kind, name, sealed, created_at, ends_at"
"""What a statement lists of a secret, in the order of `row` and `secret`."""


def row(secret: StoredSecret) -> tuple[Any, ...]:
    """Return a secret as COLUMNS."""
    ends_at = text(secret.ends_at) if secret.ends_at else None
    return *secret.place, secret.sealed, text(secret.created_at), ends_at


def secret(row: Row) -> StoredSecret:
    """Return the secret of a row that holds COLUMNS."""
    created_at = moment(row[4])
    assert created_at is not None
    return StoredSecret(
        tenant_id=TenantId(row[0]),
        kind=SecretKind(row[1]),
        name=row[2],
        sealed=bytes(row[3]),
        created_at=created_at,
        ends_at=moment(row[5]),
    )
