"""Who did what on the page, in the database of the timers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from timer_service.adapters import action_rows
from timer_service.adapters.postgres.connections import Connections
from timer_service.adapters.rows import text
from timer_service.domain.messages import TenantId
from timer_service.ports.audit import KEPT_FOR, Action

_RECORD: Final = f"""
INSERT INTO timer_page_actions ({action_rows.COLUMNS})
VALUES ($1::text::timestamptz, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
RETURNING number
"""  # noqa: S608 - constants
_FORGET: Final = "DELETE FROM timer_page_actions WHERE at < $1::text::timestamptz"
_PAGE: Final = f"""
SELECT {action_rows.COLUMNS}, number FROM timer_page_actions
WHERE job IS NOT DISTINCT FROM $4::bigint
  AND ($1::bigint IS NULL OR number < $1) AND ($2::text[] IS NULL OR tenant_id = ANY ($2))
ORDER BY number DESC LIMIT $3
"""  # noqa: S608
_GET: Final = f"SELECT {action_rows.COLUMNS}, number FROM timer_page_actions WHERE number = $1"  # noqa: S608
_TALLY: Final = """
SELECT action, outcome, count(*) FROM timer_page_actions WHERE job = $1 GROUP BY action, outcome
"""


class PostgresAudit:
    """The table of actions on PostgreSQL."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def record(self, *actions: Action) -> int:
        """Keep actions, and forget what is too old."""
        async with self._connections.transaction() as connection:
            *others, newest = map(action_rows.row, actions)
            await connection.executemany(_RECORD, others)
            last = await connection.fetchval(_RECORD, *newest)
            await connection.execute(_FORGET, text(actions[-1].at - KEPT_FOR))
        return int(last)

    async def forget(self, before: datetime) -> int:
        """Delete by time."""
        async with self._connections.transaction() as connection:
            done = await connection.execute(_FORGET, text(before))
        return int(done.rpartition(" ")[2])

    async def get(self, number: int) -> Action | None:
        """Search by number."""
        found = await self._connections.ask(_GET, number)
        return action_rows.action(found[0]) if found else None

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int, job: int | None = None
    ) -> Sequence[Action]:
        """Return the newest actions below a number."""
        whose = None if tenants is None else sorted(tenants)
        found = await self._connections.ask(_PAGE, before, whose, limit, job)
        return [action_rows.action(row) for row in found]

    async def tally(self, job: int) -> Mapping[tuple[str, str], int]:
        """Count through an index."""
        found = await self._connections.ask(_TALLY, job)
        return {(action, outcome): count for action, outcome, count in found}
