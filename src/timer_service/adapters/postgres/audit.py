"""Who did what on the page, in the database of the timers."""

from collections.abc import Sequence
from typing import Final

from timer_service.adapters import action_rows
from timer_service.adapters.postgres.connections import Connections
from timer_service.adapters.rows import text
from timer_service.domain.messages import TenantId
from timer_service.ports.audit import KEPT_FOR, Action

_RECORD: Final = f"""
INSERT INTO timer_page_actions ({action_rows.COLUMNS})
VALUES ($1::text::timestamptz, $2, $3, $4, $5, $6, $7, $8, $9)
"""  # noqa: S608 - constants
_FORGET: Final = "DELETE FROM timer_page_actions WHERE at < $1::text::timestamptz"
_PAGE: Final = f"""
SELECT {action_rows.COLUMNS}, number FROM timer_page_actions
WHERE ($1::bigint IS NULL OR number < $1) AND ($2::text[] IS NULL OR tenant_id = ANY ($2))
ORDER BY number DESC LIMIT $3
"""  # noqa: S608


class PostgresAudit:
    """The table of actions on PostgreSQL."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def record(self, action: Action) -> None:
        """Keep an action, and forget what is too old."""
        async with self._connections.transaction() as connection:
            await connection.execute(_RECORD, *action_rows.row(action))
            await connection.execute(_FORGET, text(action.at - KEPT_FOR))

    async def page(
        self, tenants: frozenset[TenantId] | None, before: int | None, limit: int
    ) -> Sequence[Action]:
        """Return the newest actions below a number."""
        whose = None if tenants is None else sorted(tenants)
        return [action_rows.action(row) for row in await self._connections.ask(_PAGE, before, whose, limit)]
