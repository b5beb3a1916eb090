"""Headers of callbacks in the SQLite file of the timers."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from timer_service.adapters.callback_rows import stored_headers
from timer_service.adapters.sqlite.writer import Writer
from timer_service.domain.messages import TimerKey
from timer_service.ports.sealed_headers import StoredHeaders

_AFTER: Final = """
SELECT tenant_id, service_call_id, headers FROM timer_callbacks
WHERE (tenant_id, service_call_id) > (?, ?) AND headers <> '[]'
ORDER BY tenant_id, service_call_id LIMIT ?
"""
_REPLACE: Final = """
UPDATE timer_callbacks SET headers = ? WHERE tenant_id = ? AND service_call_id = ? AND headers = ?
"""


class SqliteSealedHeaders:
    """The headers of callbacks on SQLite."""

    def __init__(self, writer: Writer, read: Callable[[str, Any], Awaitable[list[tuple[Any, ...]]]]) -> None:
        self._writer = writer
        self._read = read

    async def headers_after(self, key: TimerKey | None, limit: int) -> list[StoredHeaders]:
        """Return the next headers in the order of the keys."""
        return [stored_headers(row) for row in await self._read(_AFTER, (*(key or ("", "")), limit))]

    async def replace_headers(self, changes: Sequence[tuple[StoredHeaders, StoredHeaders]]) -> int:
        """Replace headers that are still as they were."""
        replaced = [(json.dumps(new.headers), *old.key, json.dumps(old.headers)) for old, new in changes]
        async with self._writer.transaction():
            cursor = await self._writer.connection.executemany(_REPLACE, replaced)
            return cursor.rowcount
