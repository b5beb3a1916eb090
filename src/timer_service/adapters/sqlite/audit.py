"""Who did what on the page, in a small SQLite file beside that of the timers: it never waits for a firing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from timer_service.adapters import action_rows
from timer_service.adapters.rows import text
from timer_service.adapters.sqlite.side_file import SideFile
from timer_service.domain.messages import TenantId
from timer_service.ports.audit import KEPT_FOR, Action

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS page_actions (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        TEXT NOT NULL,
    actor     TEXT NOT NULL,
    role      TEXT NOT NULL,
    action    TEXT NOT NULL,
    tenant_id TEXT,
    subject   TEXT NOT NULL,
    before    TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    reason    TEXT NOT NULL
) STRICT
"""
_RECORD: Final = f"INSERT INTO page_actions ({action_rows.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
_FORGET: Final = "DELETE FROM page_actions WHERE at < ?"
_PAGE: Final = f"""
SELECT {action_rows.COLUMNS}, number FROM page_actions
WHERE (?1 IS NULL OR number < ?1) AND (?2 IS NULL OR tenant_id IN (SELECT value FROM json_each(?2)))
ORDER BY number DESC LIMIT ?3
"""  # noqa: S608


def audit_path(timers_path: Path) -> Path:
    """Return the file of actions that belongs to a file of timers."""
    return timers_path.with_name(timers_path.name + ".audit")


class SqliteAudit:
    """The table of actions on SQLite."""

    def __init__(self, path: Path) -> None:
        self._file = SideFile(path, _CREATE)

    async def record(self, action: Action) -> None:
        """Keep an action, and forget what is too old."""
        await self._file.change(_RECORD, action_rows.row(action))
        await self._file.change(_FORGET, (text(action.at - KEPT_FOR),))

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int
    ) -> Sequence[Action]:
        """Return the newest actions below a number."""
        whose = None if tenants is None else json.dumps(sorted(tenants))
        return [action_rows.action(row) for row in await self._file.ask(_PAGE, (before, whose, limit))]
