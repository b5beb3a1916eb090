"""Keys of the REST API in the database of the timers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from timer_service.adapters import key_rows
from timer_service.adapters.postgres.connections import Connections
from timer_service.adapters.rows import text
from timer_service.domain.api_keys import ApiKey
from timer_service.domain.messages import TenantId

_ADD: Final = f"""
INSERT INTO timer_api_keys ({key_rows.COLUMNS})
VALUES ($1, $2, $3, $4, $5::text::timestamptz, $6::text::timestamptz, $7::text::timestamptz, $8,
  $9::text::timestamptz)
"""  # noqa: S608 - constants
_GET: Final = f"SELECT {key_rows.COLUMNS} FROM timer_api_keys WHERE key_id = $1"  # noqa: S608
_LIST: Final = f"""
SELECT {key_rows.COLUMNS} FROM timer_api_keys
WHERE $1::text IS NULL OR tenant_id = $1 ORDER BY created_at, key_id
"""  # noqa: S608
_REVOKE: Final = f"""
UPDATE timer_api_keys SET revoked_at = coalesce(revoked_at, $1::text::timestamptz) WHERE key_id = $2
RETURNING {key_rows.COLUMNS}
"""  # noqa: S608

# The later of the two: greatest passes over what is not set.
_NOTE_USE: Final = """
UPDATE timer_api_keys SET used_at = greatest(used_at, $1::text::timestamptz) WHERE key_id = $2
"""


class PostgresApiKeys:
    """The key store on PostgreSQL."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""
        async with self._connections.transaction() as connection:
            await connection.execute(_ADD, *key_rows.row(key))

    async def get(self, key_id: str) -> ApiKey | None:
        """Return one key."""
        found = await self._connections.ask(_GET, key_id)
        return key_rows.key(found[0]) if found else None

    async def list_keys(self, tenant_id: TenantId | None = None) -> Sequence[ApiKey]:
        """Return all keys, or those of one tenant, oldest first."""
        return [key_rows.key(row) for row in await self._connections.ask(_LIST, tenant_id)]

    async def revoke(self, key_id: str, now: datetime) -> ApiKey | None:
        """Revoke a key."""
        async with self._connections.transaction() as connection:
            found = await connection.fetch(_REVOKE, text(now), key_id)
        return key_rows.key(found[0]) if found else None

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Keep when a key was last used."""
        async with self._connections.transaction() as connection:
            await connection.execute(_NOTE_USE, text(now), key_id)
