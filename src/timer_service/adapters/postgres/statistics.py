"""What the server knows about the table: without it, it would read and sort a whole backlog for each look.

Autovacuum sees to that within about a minute, but not before; and a database that was restored knows nothing.
No way to write the looks helps: settings of the planner hold for a transaction, and a look that finds nothing
is a single statement.
"""

from contextlib import suppress
from typing import Final

import structlog

from timer_service.adapters.postgres.connections import Connections
from timer_service.domain.errors import TransientError

# More than about 7,000 timers, and not one of them was ever looked at.
_IS_UNKNOWN: Final = """
SELECT pg_relation_size(c.oid) > 1024 * 1024 AND NOT EXISTS (
  SELECT 1 FROM pg_stats AS s
  WHERE s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'due_at')
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = 'timer_schedules'::regclass
"""
# It reads a sample of a bounded size. A user that does not own the table is passed over with a warning.
_LEARN: Final = "ANALYZE timer_schedules"
LEARN_TIMEOUT_S: Final = 60.0
"""It takes less than a second, but a server that is busy with a long table may take its time."""

log = structlog.get_logger(__name__)


class Statistics:
    """Makes the server look at the table before it has to plan for a long one."""

    def __init__(self, answers: Connections, learn_every: int) -> None:
        self._answers = answers
        self._learn_every = learn_every
        self._applied = 0

    async def applied(self, commands: int) -> None:
        """Count commands: whenever the table may have grown by much, see whether the server knows it."""
        self._applied += commands
        if self._applied >= self._learn_every:
            self._applied = 0
            await self.learn()

    async def learn(self) -> None:
        """Have the table analysed if it is long and never was."""
        with suppress(TransientError):  # Nothing depends on it but speed.
            async with self._answers.connection() as connection:
                if await connection.fetchval(_IS_UNKNOWN):
                    await connection.execute(_LEARN, timeout=LEARN_TIMEOUT_S)
                    log.info("store.analysed", store=self._answers.where)
