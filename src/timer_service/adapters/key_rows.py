"""Keys of the REST API as rows and back, once for every database."""

from typing import Any, Final

from timer_service.adapters.rows import Row, moment, text
from timer_service.domain.api_keys import ApiKey, Scope
from timer_service.domain.messages import TenantId

COLUMNS: Final = "key_id, tenant_id, scopes, digest, created_at, expires_at, revoked_at, note, used_at"
"""What a statement lists of a key, in the order of `row` and `key`."""


def row(key: ApiKey) -> tuple[Any, ...]:
    """Return a key as COLUMNS."""
    return (
        key.id,
        key.tenant_id,
        " ".join(sorted(key.scopes)),
        key.digest.hex(),
        text(key.created_at),
        text(key.expires_at) if key.expires_at else None,
        text(key.revoked_at) if key.revoked_at else None,
        key.note,
        text(key.used_at) if key.used_at else None,
    )


def key(row: Row) -> ApiKey:
    """Return the key of a row that holds COLUMNS."""
    created_at = moment(row[4])
    assert created_at is not None
    return ApiKey(
        id=row[0],
        tenant_id=TenantId(row[1]),
        scopes=frozenset(map(Scope, row[2].split())),
        digest=bytes.fromhex(row[3]),
        created_at=created_at,
        expires_at=moment(row[5]),
        revoked_at=moment(row[6]),
        note=row[7],
        used_at=moment(row[8]),
    )
