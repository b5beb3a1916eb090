"""Where a PostgreSQL database stands in a copy, kept in tables of its own."""

from typing import Final

from timer_service.adapters.postgres.connections import APPLICATION_NAME, Connection, Connections, commit
from timer_service.adapters.postgres.schema import IS_COPY, moved_to

ANALYZE_TIMEOUT_S: Final = 600.0

# With the lock's own transaction. Every user of the service may read it.
_MARK_MOVED: Final = """
CREATE TABLE IF NOT EXISTS timer_moved (target text NOT NULL);
GRANT SELECT ON timer_moved TO PUBLIC;
DELETE FROM timer_moved
"""
# An instance that has connected meanwhile has to connect again, and is then refused.
_PART_WITH_OTHERS: Final = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = $1
"""


class PostgresCopyState:
    """The copy that fills one database, or that moved its timers elsewhere."""

    def __init__(self, connections: Connections, connection: Connection) -> None:
        self._connections = connections
        self._connection = connection

    async def unfinished_copy_of(self) -> str | None:
        """Return the name of the store that is being copied into this one."""
        if not await self._connection.fetchval(IS_COPY):
            return None
        return str(await self._connection.fetchval("SELECT max(source) FROM timer_copy"))

    async def begin(self, source: str) -> None:
        """Remember that this database is being filled."""
        async with self._connections.transaction_on(self._connection):
            await self._connection.execute("CREATE TABLE IF NOT EXISTS timer_copy (source text NOT NULL)")
            await self._connection.execute("DELETE FROM timer_copy")
            await self._connection.execute("INSERT INTO timer_copy VALUES ($1)", source)

    async def end(self) -> None:
        """Forget that: the copy is whole. Fresh statistics make for good plans from the start."""
        await self._connection.execute("ANALYZE timer_schedules", timeout=ANALYZE_TIMEOUT_S)
        await self._connection.execute("DROP TABLE timer_copy")

    async def mark_moved(self, target: str) -> None:
        """Remember that the timers are elsewhere now, and let no instance that is connected go on."""
        await self._connection.execute(_MARK_MOVED)
        await self._connection.execute("INSERT INTO timer_moved VALUES ($1)", target)
        await commit(self._connection)
        await self._connection.fetchval(_PART_WITH_OTHERS, APPLICATION_NAME)

    async def reopen(self) -> str | None:
        """Forget that; return where they were moved to."""
        target = await moved_to(self._connection)
        await self._connection.execute("DROP TABLE IF EXISTS timer_moved")
        await commit(self._connection)
        return target
