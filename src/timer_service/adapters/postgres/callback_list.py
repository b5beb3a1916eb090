"""Lists of timers with callbacks in PostgreSQL, on the connections that answer questions."""

from typing import Final

from timer_service.adapters import rows
from timer_service.adapters.callback_list import ListDialect, count_statement, page_statement
from timer_service.adapters.postgres.connections import Connections
from timer_service.ports.callback_list import CallbackPage, CallbackQuery

DIALECT: Final = ListDialect("$1", "$2::bigint", "$3::bigint", "$4::bigint")


class PostgresCallbackList:
    """The list of a PostgreSQL database."""

    def __init__(self, answers: Connections) -> None:
        self._answers = answers

    async def page(self, query: CallbackQuery) -> CallbackPage:
        """Count along an index, then read a page by what the count has shown."""
        last, most = query.offset + query.limit, query.count_up_to + 1
        [(total,)] = await self._answers.ask(count_statement(query, DIALECT), query.tenant_id, most)
        reading = page_statement(query, DIALECT, is_long=total >= most)
        found = await self._answers.ask(reading, query.tenant_id, last, query.offset, query.limit)
        return CallbackPage([rows.timer(row) for row in found], min(total, most))
