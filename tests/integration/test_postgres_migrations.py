"""An older PostgreSQL database is brought up to date, whatever it holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.support.postgres import execute, fresh_schema
from tests.support.timers import ACME, at, call, schedule
from timer_service.adapters.migrations import load_migrations
from timer_service.adapters.postgres import schema
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.postgres.store import PostgresTimerStore
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import START

# As version 1 wrote them: each state, a cancel that came before any schedule, the first and the last time.
_ROWS_OF_VERSION_1 = """
INSERT INTO timer_schedules VALUES
 ('acme', 'due', 'Scheduled', '2026-01-01T11:59:00Z', 2, '2026-01-01T10:00:00Z', 'request', NULL, NULL, 1, 1, '00-ab', 'v=1'),
 ('acme', 'first', 'Scheduled', '0001-01-01T00:00:00Z', 1, '2026-01-01T10:00:00Z', NULL, NULL, NULL, 1, 2, NULL, NULL),
 ('acme', 'last', 'Scheduled', '9999-12-31T23:59:59.999Z', 1, '2026-01-01T10:00:00Z', NULL, NULL, NULL, 1, 3, NULL, NULL),
 ('acme', 'old', 'Scheduled', '1969-12-31T23:59:59.999Z', 1, '2026-01-01T10:00:00Z', NULL, NULL, NULL, 1, 4, NULL, NULL),
 ('acme', 'over', 'Reached', '2026-01-01T11:00:00Z', 1, '2026-01-01T10:00:00Z', 'request', '2026-01-01T11:00:00Z', NULL, 1, 5,
  NULL, NULL),
 ('acme', 'stopped', 'Cancelled', '2026-01-01T13:00:00Z', 1, '2026-01-01T10:00:00Z', NULL, NULL, '2026-01-01T10:30:00Z', 1, 6,
  NULL, NULL),
 ('acme', 'tombstone', 'Cancelled', NULL, 0, '2026-01-01T10:00:00Z', NULL, NULL, '2026-01-01T10:00:00Z', 1, 7, NULL, NULL)
"""  # noqa: E501


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The address of a database as version 1 left it."""
    async with fresh_schema() as address:
        first = load_migrations("postgres")[0]
        await execute(
            address,
            schema.CREATE_LEDGER,
            first.sql,
            f"INSERT INTO timer_migrations (version, name) VALUES (1, '{first.name}')",
            _ROWS_OF_VERSION_1,
        )
        yield address


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresTimerStore]:
    async with open_postgres_store(url, lambda: START) as store:
        yield store


async def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def test_every_row_of_an_older_database_is_kept_as_it_was(url: str) -> None:
    columns = (
        "tenant_id, service_call_id, state, due_at, generation, correlation_id, reached_at, cancelled_at"
    )
    sql = f"SELECT {columns}, stream_sequence, traceparent, tracestate FROM timer_schedules ORDER BY 2"
    before = await query(url, sql)

    async with opened(url):
        pass

    assert await query(url, sql) == before
    assert await query(url, "SELECT max(version) FROM timer_migrations") == [
        (load_migrations("postgres")[-1].version,)
    ]


async def test_timers_of_an_older_database_are_found_listed_and_fired(url: str) -> None:
    async with opened(url) as store:
        listed = [timer.service_call_id for timer in await store.list_timers(TimerQuery(ACME))]
        async with store.claim_due(at(0), 10) as claim:
            due = [timer.service_call_id for timer in claim.timers]
        async with store.claim_due(at(0), 2) as claim:
            in_turns = [timer.service_call_id for timer in claim.timers]
        states = {
            name: timer.state
            for name in ("due", "over", "stopped", "tombstone")
            if (timer := await store.get(ACME, call(name))) is not None
        }
        revived = await store.apply([schedule("stopped", 60, number=99)], at(0))

    assert listed == ["first", "old", "over", "due", "stopped", "last"]
    assert (due, in_turns) == (["first", "old", "due"], ["first", "old"])
    assert states == {
        "due": TimerState.SCHEDULED,
        "over": TimerState.REACHED,
        "stopped": TimerState.CANCELLED,
        "tombstone": TimerState.CANCELLED,
    }
    assert revived == [Outcome.SCHEDULED]
