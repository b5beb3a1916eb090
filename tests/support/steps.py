"""Count what SQLite does instead of how long it takes: a busy machine changes no count."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiosqlite

_GRAIN = 10


@asynccontextmanager
async def counted(*connections: aiosqlite.Connection) -> AsyncIterator[list[int]]:
    """Count the steps of SQLite's virtual machine on these connections together."""
    steps = [0]

    def count() -> int:
        steps[0] += _GRAIN
        return 0

    async with AsyncExitStack() as stack:
        for connection in connections:
            await connection.set_progress_handler(count, _GRAIN)
            stack.push_async_callback(connection.set_progress_handler, None, 0)  # type: ignore[arg-type]
        yield steps
