"""Headers of callbacks in the database of the timers."""

import json
from collections.abc import Sequence
from typing import Final

from timer_service.adapters.callback_rows import stored_headers
from timer_service.adapters.postgres.connections import Connections, affected
from timer_service.domain.messages import TimerKey
from timer_service.ports.sealed_headers import StoredHeaders

_AFTER: Final = """
SELECT tenant_id, service_call_id, headers FROM timer_callbacks
WHERE (tenant_id, service_call_id) > ($1, $2) AND headers <> '[]'
ORDER BY tenant_id, service_call_id LIMIT $3
"""
_REPLACE: Final = """
UPDATE timer_callbacks SET headers = $1 WHERE tenant_id = $2 AND service_call_id = $3 AND headers = $4
"""


class PostgresSealedHeaders:
    """The headers of callbacks on PostgreSQL."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def headers_after(self, key: TimerKey | None, limit: int) -> list[StoredHeaders]:
        """Return the next headers in the order of the keys."""
        found = await self._connections.ask(_AFTER, *(key or ("", "")), limit)
        return [stored_headers(row) for row in found]

    async def replace_headers(self, changes: Sequence[tuple[StoredHeaders, StoredHeaders]]) -> int:
        """Replace headers that are still as they were."""
        async with self._connections.transaction() as connection:
            return sum(
                [
                    affected(
                        await connection.execute(
                            _REPLACE, json.dumps(new.headers), *old.key, json.dumps(old.headers)
                        )
                    )
                    for old, new in changes
                ]
            )
