"""How many timers are pending: counted each time while that is cheap, and now and then where it is not."""

from collections.abc import Callable

from timer_service.adapters.postgres import statements
from timer_service.adapters.postgres.connections import Connections
from timer_service.adapters.postgres.limits import PostgresLimits


class PendingCount:
    """The number of scheduled timers, due or not."""

    def __init__(self, answers: Connections, limits: PostgresLimits, elapsed_s: Callable[[], float]) -> None:
        self._answers = answers
        self._limits = limits
        self._elapsed_s = elapsed_s
        self._known: tuple[float, int] | None = None
        """Until when a count serves, and what it was."""

    async def count(self) -> int:
        """Count, unless that took long and not long ago."""
        if self._known is None or self._elapsed_s() >= self._known[0]:
            limits = self._limits
            started = self._elapsed_s()
            [(pending,)] = await self._answers.ask(
                statements.COUNT_PENDING, limit_s=limits.statement_timeout_s
            )
            ended = self._elapsed_s()
            is_cheap = ended - started <= limits.cheap_count_s
            self._known = (ended if is_cheap else ended + limits.pending_fresh_s, pending)
        return self._known[1]
