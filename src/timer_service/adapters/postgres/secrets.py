"""Secrets of tenants in the database of the timers."""

from collections.abc import Sequence
from typing import Final

from timer_service.adapters import secret_rows
from timer_service.adapters.postgres.connections import Connections, affected
from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import SecretPlace, StoredSecret

_VALUES: Final = "($1, $2, $3, $4, $5::text::timestamptz, $6::text::timestamptz)"
_OF: Final = f"""
SELECT {secret_rows.COLUMNS} FROM timer_tenant_secrets WHERE tenant_id = $1 ORDER BY kind, name
"""  # noqa: S608 - constants
_AFTER: Final = f"""
SELECT {secret_rows.COLUMNS} FROM timer_tenant_secrets WHERE (tenant_id, kind, name) > ($1, $2, $3)
ORDER BY tenant_id, kind, name LIMIT $4
"""  # noqa: S608
_ADD: Final = f"""
INSERT INTO timer_tenant_secrets ({secret_rows.COLUMNS}) VALUES {_VALUES} ON CONFLICT DO NOTHING
"""  # noqa: S608
_SAVE: Final = f"""
INSERT INTO timer_tenant_secrets ({secret_rows.COLUMNS}) VALUES {_VALUES}
ON CONFLICT (tenant_id, kind, name) DO UPDATE
SET sealed = excluded.sealed, created_at = excluded.created_at, ends_at = excluded.ends_at
"""  # noqa: S608
_RESEAL: Final = """
UPDATE timer_tenant_secrets SET sealed = $1 WHERE tenant_id = $2 AND kind = $3 AND name = $4 AND sealed = $5
"""
_REMOVE: Final = "DELETE FROM timer_tenant_secrets WHERE tenant_id = $1 AND kind = $2 AND name = $3"


class PostgresSecretStore:
    """The secret store on PostgreSQL."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def secrets_of(self, tenant_id: TenantId) -> Sequence[StoredSecret]:
        """Return a tenant's secrets."""
        return [secret_rows.secret(row) for row in await self._connections.ask(_OF, tenant_id)]

    async def secrets_after(self, place: SecretPlace | None, limit: int) -> Sequence[StoredSecret]:
        """Return the next secrets in the order of their places."""
        found = await self._connections.ask(_AFTER, *(place or ("", "", "")), limit)
        return [secret_rows.secret(row) for row in found]

    async def add_secret(self, secret: StoredSecret) -> bool:
        """Keep a secret unless its place is taken."""
        return await self._change(_ADD, secret_rows.row(secret)) > 0

    async def save_secrets(self, secrets: Sequence[StoredSecret]) -> None:
        """Keep secrets in place of what was there."""
        await self._change(_SAVE, *map(secret_rows.row, secrets))

    async def reseal_secret(self, before: StoredSecret, after: StoredSecret) -> bool:
        """Replace a secret if it is as it was before."""
        return await self._change(_RESEAL, (after.sealed, *before.place, before.sealed)) > 0

    async def remove_secret(self, place: SecretPlace) -> bool:
        """Delete a secret."""
        return await self._change(_REMOVE, place) > 0

    async def _change(self, sql: str, *rows: Sequence[object]) -> int:
        async with self._connections.transaction() as connection:
            return sum([affected(await connection.execute(sql, *row)) for row in rows])
