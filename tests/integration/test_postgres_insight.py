"""No question of the page costs what there is: counted by the server, with some timers and with more."""

from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.support.insight import FEW, MANY, QUESTIONS, of
from tests.support.plans import costs
from tests.support.postgres import execute, fresh_schema
from tests.support.timers import at, call
from timer_service.adapters.insight_pages import MAX_LOOKED_THROUGH
from timer_service.adapters.postgres.connections import BY_INDEX, Connections, Row
from timer_service.adapters.postgres.insight import PostgresInsight
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.domain.messages import TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_insight import Insight
from timer_service.testing import START

TIED = 20_000
"""Timers that are due at one moment, as many are at midnight."""
MOMENT = at(60 * 86_400)
# One timer for each minute to come and for each that has passed, most of one tenant.
_FILL = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  correlation_id, reached_at, stream_created_us, stream_sequence)
SELECT CASE WHEN n % 10 = 0 THEN 'small' ELSE 'big' END, state || '-' || n, state, due, 1, due,
  CASE WHEN n <= {few} THEN 'request-' || n % 100 END, CASE state WHEN 'Reached' THEN due END, 1, n
FROM generate_series(1, {count}) AS n
CROSS JOIN (VALUES ('Scheduled', 1), ('Reached', -1)) AS kind(state, sign)
CROSS JOIN LATERAL (
  SELECT timestamptz '2026-01-01T12:00:00Z' + sign * n * interval '1 minute' AS due) AS moment
"""
_TIE = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  stream_created_us, stream_sequence)
SELECT 'tenant-' || n % 100, 'order-' || lpad(n::text, 6, '0'), 'Scheduled',
  timestamptz '2026-01-01T12:00:00Z' + interval '60 days', 1, now(), 1, n
FROM generate_series(1, {tied}) AS n
"""


class Asked:
    """Notes what is asked, and has it answered."""

    def __init__(self, answers: Connections) -> None:
        self._answers = answers
        self.questions: list[tuple[str, tuple[object, ...]]] = []

    async def ask(self, sql: str, *parameters: object) -> list[Row]:
        self.questions.append((sql, parameters))
        return await self._answers.ask(sql, *parameters)


async def most_read(url: str, ask: Callable[[Insight], Awaitable[object]]) -> tuple[int, int]:
    """Return the rows and the pages that the server reads for an answer, by the worse of its plans."""
    async with open_postgres_store(url, lambda: START) as store:
        asked = Asked(store._answers)
        await ask(PostgresInsight(cast("Connections", asked)))
    rows, pages = 0, 0
    for sql, parameters in asked.questions:
        found = await costs(url, sql, parameters, BY_INDEX)
        assert not any(cost.scans_table for cost in found), found
        rows += max(cost.rows for cost in found)
        pages += max(cost.buffers for cost in found)
    return rows, pages


async def filled(url: str, *statements: str) -> None:
    async with open_postgres_store(url, lambda: START):
        pass
    await execute(url, *statements, "VACUUM ANALYZE timer_schedules")


async def test_no_question_reads_more_where_there_are_more_timers() -> None:
    found = []
    for count in (FEW, MANY):
        async with fresh_schema() as url:
            await filled(url, _FILL.format(few=FEW, count=count))
            found.append({name: await most_read(url, ask) for name, ask in QUESTIONS.items()})

    few, many = found
    assert {
        name: (few[name], many[name])
        for name in few
        if many[name][0] > 1.2 * few[name][0] + 20 or many[name][1] > 1.2 * few[name][1] + 50
    } == {}
    assert max(rows for rows, _ in many.values()) <= 2 * MAX_LOOKED_THROUGH + len(TimerState)


@pytest.mark.parametrize("way", ["to it", "into it", "back"])
async def test_a_list_costs_a_page_where_very_many_are_due_at_one_moment(way: str) -> None:
    inside = MOMENT, TenantId("tenant-50"), call("order-010000")
    ways: dict[str, Callable[[Insight], Awaitable[object]]] = {
        "to it": lambda insight: insight.page(of(), 50),
        "into it": lambda insight: insight.page(of(), 50, after=inside),
        "back": lambda insight: insight.page(of(), 50, before=inside),
    }
    async with fresh_schema() as url:
        await filled(url, _TIE.format(tied=TIED))

        rows, pages = await most_read(url, ways[way])

    assert (rows, pages < 200) == (51, True)
