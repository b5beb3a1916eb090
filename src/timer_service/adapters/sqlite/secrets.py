"""Secrets of tenants in a small SQLite file beside that of the timers."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from timer_service.adapters import secret_rows
from timer_service.adapters.sqlite.side_file import SideFile
from timer_service.domain.errors import StoreBusy
from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import SecretPlace, StoredSecret

PAUSE_S: Final = 0.05
ADD_PAUSES: Final = 100
"""Together five seconds, as long as any other change waits."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tenant_secrets (
    tenant_id  TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('ed25519', 'hmac', 'named')),
    name       TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    created_at TEXT NOT NULL,
    ends_at    TEXT,
    PRIMARY KEY (tenant_id, kind, name)
) STRICT, WITHOUT ROWID
"""
_OF: Final = f"""
SELECT {secret_rows.COLUMNS} FROM tenant_secrets WHERE tenant_id = ? ORDER BY kind, name
"""  # noqa: S608 - constants
_AFTER: Final = f"""
SELECT {secret_rows.COLUMNS} FROM tenant_secrets WHERE (tenant_id, kind, name) > (?, ?, ?)
ORDER BY tenant_id, kind, name LIMIT ?
"""  # noqa: S608
_ADD: Final = f"""
INSERT INTO tenant_secrets ({secret_rows.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""  # noqa: S608
_SAVE: Final = f"INSERT OR REPLACE INTO tenant_secrets ({secret_rows.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_RESEAL: Final = """
UPDATE tenant_secrets SET sealed = ? WHERE tenant_id = ? AND kind = ? AND name = ? AND sealed = ?
"""
_REMOVE: Final = "DELETE FROM tenant_secrets WHERE tenant_id = ? AND kind = ? AND name = ?"


def secrets_path(timers_path: Path) -> Path:
    """Return the file of the secrets that belongs to a file of timers."""
    return timers_path.with_name(timers_path.name + ".secrets")


class SqliteSecretStore:
    """The secret store on SQLite."""

    def __init__(self, path: Path) -> None:
        self._file = SideFile(path, _SCHEMA)
        # For what callbacks of many tenants need at once: a second thread reads no faster, and each of them
        # takes the interpreter from the event loop.
        self._turn = asyncio.Lock()

    async def secrets_of(self, tenant_id: TenantId) -> Sequence[StoredSecret]:
        """Return a tenant's secrets."""
        async with self._turn:
            found = await self._file.ask(_OF, (tenant_id,))
        return [secret_rows.secret(row) for row in found]

    async def secrets_after(self, place: SecretPlace | None, limit: int) -> Sequence[StoredSecret]:
        """Return the next secrets in the order of their places."""
        found = await self._file.ask(_AFTER, (*(place or ("", "", "")), limit))
        return [secret_rows.secret(row) for row in found]

    async def add_secret(self, secret: StoredSecret) -> bool:
        """Keep a secret unless its place is taken."""
        for _ in range(ADD_PAUSES):
            with suppress(StoreBusy):
                return await self._add(secret)
            # Another process changes the file: who only reads has the turn meanwhile.
            await asyncio.sleep(PAUSE_S)
        return await self._add(secret)

    async def _add(self, secret: StoredSecret) -> bool:
        async with self._turn:
            return await self._file.change(_ADD, secret_rows.row(secret), wait_s=0) > 0

    async def save_secrets(self, secrets: Sequence[StoredSecret]) -> None:
        """Keep secrets in place of what was there."""
        await self._file.change(_SAVE, *map(secret_rows.row, secrets))

    async def reseal_secret(self, before: StoredSecret, after: StoredSecret) -> bool:
        """Replace a secret if it is as it was before."""
        return await self._file.change(_RESEAL, (after.sealed, *before.place, before.sealed)) > 0

    async def remove_secret(self, place: SecretPlace) -> bool:
        """Delete a secret."""
        return await self._file.change(_REMOVE, place) > 0
