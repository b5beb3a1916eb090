"""Who did what on the page, in a small SQLite file beside that of the timers: it never waits for a firing."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from timer_service.adapters import action_rows
from timer_service.adapters.rows import text
from timer_service.adapters.sqlite.side_file import SideFile
from timer_service.adapters.sqlite.statements import json_text
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
_ADD_JOB: Final = "ALTER TABLE page_actions ADD COLUMN job INTEGER"
_BY_JOB: Final = "CREATE INDEX page_actions_by_job ON page_actions (job, number)"
_ADD_AFTER: Final = "ALTER TABLE page_actions ADD COLUMN after TEXT NOT NULL DEFAULT ''"
_BY_TIME: Final = "CREATE INDEX page_actions_by_time ON page_actions (at)"
# Many rows in one statement: the thread needs the interpreter, which fires timers, once and not for each.
_RECORD: Final = f"""
INSERT INTO page_actions ({action_rows.COLUMNS})
SELECT {", ".join(f"value ->> {column}" for column in range(len(action_rows.COLUMNS.split(","))))}
FROM json_each(?)
"""  # noqa: S608 - constants
_FORGET: Final = "DELETE FROM page_actions WHERE at < ?"
_PAGE: Final = f"""
SELECT {action_rows.COLUMNS}, number FROM page_actions
WHERE job IS ?4 AND number < ?1 AND (?2 IS NULL OR tenant_id IN (SELECT value FROM json_each(?2)))
ORDER BY number DESC LIMIT ?3
"""  # noqa: S608
_GET: Final = f"SELECT {action_rows.COLUMNS}, number FROM page_actions WHERE number = ?"  # noqa: S608
_TALLY: Final = "SELECT action, outcome, count(*) FROM page_actions WHERE job = ? GROUP BY action, outcome"
_NEWEST: Final = 2**63 - 1


def audit_path(timers_path: Path) -> Path:
    """Return the file of actions that belongs to a file of timers."""
    return timers_path.with_name(timers_path.name + ".audit")


class SqliteAudit:
    """The table of actions on SQLite."""

    def __init__(self, path: Path) -> None:
        self._file = SideFile(path, _CREATE, _ADD_JOB, _BY_JOB, _BY_TIME, _ADD_AFTER)

    async def record(self, *actions: Action) -> int:
        """Keep actions, and forget what is too old."""
        kept = json_text([action_rows.row(action) for action in actions])
        too_old = text(actions[-1].at - KEPT_FOR)
        return await self._file.add((_RECORD, (kept,)), (_FORGET, (too_old,)))

    async def forget(self, before: datetime) -> int:
        """Delete by time."""
        return await self._file.change(_FORGET, (text(before),))

    async def get(self, number: int) -> Action | None:
        """Search by number."""
        found = await self._file.ask(_GET, (number,))
        return action_rows.action(found[0]) if found else None

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int, job: int | None = None
    ) -> Sequence[Action]:
        """Return the newest actions below a number."""
        whose = None if tenants is None else json.dumps(sorted(tenants))
        wanted = (before or _NEWEST, whose, limit, job)
        return [action_rows.action(row) for row in await self._file.ask(_PAGE, wanted)]

    async def tally(self, job: int) -> Mapping[tuple[str, str], int]:
        """Count through an index."""
        found = await self._file.ask(_TALLY, (job,))
        return {(action, outcome): count for action, outcome, count in found}
