"""Keys of the REST API in a small SQLite file beside that of the timers."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from timer_service.adapters import key_rows
from timer_service.adapters.rows import text
from timer_service.adapters.sqlite.side_file import SideFile
from timer_service.domain.api_keys import ApiKey
from timer_service.domain.messages import TenantId

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS api_keys (
    key_id     TEXT NOT NULL PRIMARY KEY,
    tenant_id  TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    digest     TEXT NOT NULL CHECK (length(digest) = 64),
    created_at TEXT NOT NULL,
    expires_at TEXT,
    revoked_at TEXT,
    note       TEXT NOT NULL
) STRICT
"""
_LAST_USE: Final = "ALTER TABLE api_keys ADD COLUMN used_at TEXT"
_ADD: Final = f"INSERT INTO api_keys ({key_rows.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
_GET: Final = f"SELECT {key_rows.COLUMNS} FROM api_keys WHERE key_id = ?"  # noqa: S608
_LIST: Final = f"""
SELECT {key_rows.COLUMNS} FROM api_keys WHERE ?1 IS NULL OR tenant_id = ?1 ORDER BY created_at, key_id
"""  # noqa: S608
_REVOKE: Final = "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE key_id = ?"

_NOTE_USE: Final = "UPDATE api_keys SET used_at = max(coalesce(used_at, ''), ?) WHERE key_id = ?"


def keys_path(timers_path: Path) -> Path:
    """Return the file of the keys that belongs to a file of timers."""
    return timers_path.with_name(timers_path.name + ".keys")


class SqliteApiKeys:
    """The key store on SQLite."""

    def __init__(self, path: Path) -> None:
        self._file = SideFile(path, _CREATE, _LAST_USE)

    async def add(self, key: ApiKey) -> None:
        """Keep a new key."""
        await self._file.change(_ADD, key_rows.row(key))

    async def get(self, key_id: str) -> ApiKey | None:
        """Return one key."""
        found = await self._file.ask(_GET, (key_id,))
        return key_rows.key(found[0]) if found else None

    async def list_keys(self, tenant_id: TenantId | None = None) -> Sequence[ApiKey]:
        """Return all keys, or those of one tenant, oldest first."""
        return [key_rows.key(row) for row in await self._file.ask(_LIST, (tenant_id,))]

    async def revoke(self, key_id: str, now: datetime) -> ApiKey | None:
        """Revoke a key."""
        await self._file.change(_REVOKE, (text(now), key_id))
        return await self.get(key_id)

    async def note_use(self, key_id: str, now: datetime) -> None:
        """Keep when a key was last used."""
        await self._file.change(_NOTE_USE, (text(now), key_id))
