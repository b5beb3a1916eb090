"""No search of the PostgreSQL store reads much: counted by the server, whatever lies idle or is to come."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from tests.support.plans import Cost, costs
from tests.support.postgres import execute, fresh_schema
from tests.support.timers import ACME, at, call, schedule
from timer_service.adapters import rows
from timer_service.adapters.postgres import looks, pages, statements
from timer_service.adapters.postgres.connections import BY_INDEX
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.domain.callback import Sink
from timer_service.domain.messages import CorrelationId, ServiceCallId, TenantId
from timer_service.domain.timer import TimerState
from timer_service.ports.timer_store import NOTHING_HELD_BACK, HeldBack, TimerQuery
from timer_service.testing import START

NOW = "2026-01-01T12:00:00.000Z"
BUCKET_NOW = int(START.timestamp()) // 600
FIRST = (-(2**31), "")

# The tenants: `held` has 60,000 that are due, `busy` 20,000 that are over or to come, all of one request.
# 20,000 have only history, 20,000 only what is to come, and `zz` has one timer that is due.
_FILL = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  reached_at, correlation_id, stream_created_us, stream_sequence)
SELECT tenant, 'order-' || lpad(n::text, 6, '0'), state, timestamptz '2026-01-01T12:00:00Z' + due, 1, now(),
  CASE WHEN state = 'Reached' THEN timestamptz '2026-02-01T00:00:00Z' + n * interval '1 second' END,
  correlation, 1, n
FROM (
  SELECT n, 'held' AS tenant, 'Scheduled' AS state, n * interval '-100 ms' AS due, NULL AS correlation
  FROM generate_series(1, 60000) AS n
  UNION ALL SELECT n, 'busy', CASE WHEN n % 2 = 0 THEN 'Reached' ELSE 'Scheduled' END,
    n * interval '1 minute', 'request'
  FROM generate_series(1, 20000) AS n
  UNION ALL SELECT n, 'idle-' || n, 'Reached', n * interval '-1 minute', NULL
  FROM generate_series(1, 20000) AS n
  UNION ALL SELECT n, 'later-' || n, 'Scheduled', interval '1 hour' + n * interval '1 second', NULL
  FROM generate_series(1, 20000) AS n
  UNION ALL SELECT 1, 'zz', 'Scheduled', interval '0', NULL) AS timer
"""

# One timer that fires over HTTP, beside all of the others.
_FILL_HTTP = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  stream_created_us, stream_sequence, sink)
VALUES ('held', 'http', 'Scheduled', '2026-01-01T11:00:00Z', 1, now(), 1, 1, 1)
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a schema that is filled once for all plans."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        address = runner.run(stack.enter_async_context(fresh_schema()))

        async def prepare() -> None:
            async with open_postgres_store(address, lambda: START):
                pass
            await execute(address, _FILL, _FILL_HTTP, "VACUUM ANALYZE timer_schedules")

        runner.run(prepare())
        yield address
        runner.run(stack.aclose())


def check(found: list[Cost], *, rows: int, buffers: int) -> None:
    for cost in found:
        assert not cost.scans_table, cost.text
        assert cost.rows <= rows, cost.text
        assert cost.buffers <= buffers, cost.text


SEARCHES: list[tuple[str, list[Any], int]] = [
    (looks.PEEK, [NOW, [], [], [], 1001], 1001),
    (looks.PEEK, [NOW, [], [], ["held"], 2001], 2001),
    (looks.FIND_DUE, [NOW, [], [], [], 1000], 1000),
    (looks.NEWEST, [NOW, 500], 500),
    (looks.SWEEP, [BUCKET_NOW, *FIRST, 1000], 50),
    (looks.FIND_DUE_IN_TURNS, [NOW, [], [], ["zz", "held"], 10, 1000], 11),
    (looks.FIND_DUE_IN_TURNS, [NOW, ["zz"], ["order-000001"], ["later-1", "zz", "idle-1"], 10, 1000], 1),
    (statements.NEXT_DUE, [NOW, None], 1),
    (rows.for_sink(looks.PEEK, Sink.HTTP), [NOW, [], [], [], 1001], 1),
    (rows.for_sink(looks.FIND_DUE, Sink.HTTP), [NOW, [], [], [], 1000], 1),
    (rows.for_sink(looks.NEWEST, Sink.HTTP), [NOW, 500], 1),
    (rows.for_sink(looks.SWEEP, Sink.HTTP), [BUCKET_NOW, *FIRST, 1000], 3),
    (rows.for_sink(looks.FIND_DUE_IN_TURNS, Sink.HTTP), [NOW, [], [], ["zz", "held"], 10, 1000], 1),
    (rows.for_sink(statements.NEXT_DUE, Sink.HTTP), [NOW, None], 1),
    # Found, deleted, and returned so that what is kept of their callbacks goes too.
    (statements.PURGE, ["2026-02-01T06:00:00Z", 500], 1500),
    (statements.GET, ["busy", "order-000001"], 1),
]


@pytest.mark.parametrize(
    ("sql", "parameters", "most"),
    SEARCHES,
    ids=["peek", "peek-held", "find", "newest", "sweep", "turns", "turns-none", "next",
         "http-peek", "http-find", "http-newest", "http-sweep", "http-turns", "http-next", "purge", "get"],
)  # fmt: skip
async def test_no_search_reads_more_than_it_returns(
    url: str, sql: str, parameters: list[Any], most: int
) -> None:
    check(await costs(url, sql, parameters), rows=most, buffers=12 * most + 100)


def test_a_look_reads_a_bounded_number_of_rows_of_those_who_are_held_back() -> None:
    held = HeldBack(tenants=frozenset({TenantId("held")}), timers=frozenset({(ACME, call("order-1"))}))

    assert looks.most_to_read(100, NOTHING_HELD_BACK, 1_000) == 101
    assert looks.most_to_read(100, held, 1_000) == 1_102


async def test_a_sweep_leaps_over_a_backlog_and_never_sees_what_is_to_come(url: str) -> None:
    for cost in await costs(url, looks.SWEEP, [BUCKET_NOW, *FIRST, 1000]):
        # 60,000 timers of one tenant lie within 100 minutes: ten or eleven leaps, and one to the last tenant.
        assert cost.indexes == {"timer_schedules_turns"}, cost.text
        assert cost.rows <= 13, cost.text
        assert cost.buffers <= 13 * 6, cost.text


def page(**parts: Any) -> TimerQuery:
    return TimerQuery(TenantId("busy"), limit=50, **parts)


DEEP = (at(0) + timedelta(minutes=19_001), ServiceCallId("order-019001"))
PAGES = {
    "all states": {},
    "one state": {"state": TimerState.SCHEDULED},
    "a range": {"due_from": at(0), "due_before": at(10**7)},
    "a request": {"correlation_id": CorrelationId("request")},
    "a request, one state": {"correlation_id": CorrelationId("request"), "state": TimerState.REACHED},
}


@pytest.mark.parametrize("parts", PAGES.values(), ids=PAGES.keys())
async def test_a_page_costs_the_same_at_any_depth(url: str, parts: dict[str, Any]) -> None:
    states = 1 if "state" in parts else len(TimerState)
    # By request, both sinks are in one page.
    states *= 1 if "correlation_id" in parts else len(Sink)

    for after in (None, DEEP):
        found = await costs(url, *pages.page_of(page(after=after, **parts)))

        check(found, rows=50 * states, buffers=60 * states)


async def test_a_page_begins_at_the_later_of_its_range_and_its_cursor(url: str) -> None:
    found = await costs(url, *pages.page_of(page(after=(at(1), ServiceCallId("x")), due_from=DEEP[0])))

    check(found, rows=150, buffers=180)


_KNOWN = "SELECT 1 FROM pg_stats WHERE schemaname = current_schema() AND attname = 'due_at' LIMIT 1"
COUNTS = {"pending": (statements.COUNT_PENDING, []), "overdue": (statements.COUNT_OVERDUE, [NOW])}


@pytest.mark.parametrize(("sql", "parameters"), COUNTS.values(), ids=COUNTS.keys())
async def test_counting_reads_the_index_of_what_is_due_and_next_to_nothing_of_the_table(
    url: str, sql: str, parameters: list[Any]
) -> None:
    for cost in await costs(url, sql, parameters, BY_INDEX):
        assert not cost.scans_table, cost.text
        indexes = {"timer_schedules_due", "timer_schedules_turns"}
        assert cost.indexes <= indexes | {f"{index}_http" for index in indexes}, cost.text
        # The tests before this one have locked rows, which makes the server look at some pages again.
        assert cost.heap_fetches < cost.rows // 10, cost.text


async def test_what_the_server_does_not_know_of_the_table_it_learns_before_it_plans_a_look() -> None:
    limits = PostgresLimits(learn_every=2)
    async with fresh_schema() as unknown:
        async with open_postgres_store(unknown, lambda: START, limits=limits) as store:
            await execute(
                unknown, "ALTER TABLE timer_schedules SET (autovacuum_enabled = off)", _FILL, _FILL_HTTP
            )
            for sql, parameters in COUNTS.values():
                for cost in await costs(unknown, sql, parameters, BY_INDEX):
                    assert not cost.scans_table, cost.text
            await store.apply([schedule("one", 60)], at(0))
            before = await store._answers.fetch(_KNOWN)

            await store.apply([schedule("two", 60)], at(0))

            for sql, parameters, most in SEARCHES:
                check(await costs(unknown, sql, parameters), rows=most, buffers=12 * most + 100)
        await execute(unknown, "DELETE FROM pg_statistic WHERE starelid = 'timer_schedules'::regclass")
        async with open_postgres_store(unknown, lambda: START) as store:  # As one that was restored.
            after = await store._answers.fetch(_KNOWN)

    assert (len(before), len(after)) == (0, 1)


async def test_a_tenants_only_timer_is_found_beside_a_backlog_that_is_held_back(url: str) -> None:
    held = HeldBack(tenants=frozenset({TenantId("held"), *(TenantId(f"waits-{n}") for n in range(5_000))}))

    async with open_postgres_store(url, lambda: START) as store, store.claim_due(at(0), 100, held) as claim:
        found = [timer.key for timer in claim.timers]

        assert (found, claim.more) == ([("zz", "order-000001")], False)
