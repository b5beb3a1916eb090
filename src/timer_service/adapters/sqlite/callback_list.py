"""Lists of timers with callbacks in a SQLite file, on the connections that firing does not need."""

from typing import Final

from timer_service.adapters import rows
from timer_service.adapters.callback_list import ListDialect, count_statement, page_statement
from timer_service.adapters.sqlite.questions import Questions
from timer_service.ports.callback_list import CallbackPage, CallbackQuery

DIALECT: Final = ListDialect(
    *(":tenant", ":last", ":offset", ":limit"),
    created="INDEXED BY timer_schedules_created",
    pending="INDEXED BY timer_schedules_pending",
    over="INDEXED BY timer_schedules_over",
    delivered="INDEXED BY callback_deliveries_by_state",
    join="CROSS JOIN",
    is_pending="t.pending_due_ms IS NOT NULL",
    pending_due="pending_due_ms",
)


class SqliteCallbackList:
    """The list of a SQLite file."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def page(self, query: CallbackQuery) -> CallbackPage:
        """Count along an index, then read a page by what the count has shown."""
        tenant, most = query.tenant_id, query.count_up_to + 1
        counting = count_statement(query, DIALECT)
        [(total,)] = await self._questions.ask(tenant, counting, {"tenant": tenant, "last": most})
        reading = page_statement(query, DIALECT, is_long=total >= most)
        place = {"tenant": tenant, "offset": query.offset, "limit": query.limit}
        place["last"] = query.offset + query.limit
        found = await self._questions.ask(tenant, reading, place)
        return CallbackPage([rows.timer(row) for row in found], min(total, most))
