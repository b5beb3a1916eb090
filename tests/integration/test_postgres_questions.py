"""Questions to the PostgreSQL store: none can end the process, none goes on without end."""

from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.postgres import execute, migrated_schema
from tests.support.timers import ACME, at, call, correlation, schedule, scheduled_timer
from timer_service.adapters.postgres.connections import Address, Connections, open_connections
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.postgres.store import PostgresTimerStore
from timer_service.domain.errors import (
    CriticalError,
    RequestRefused,
    StoreBusy,
    StoreFailed,
    StoreFull,
    TimerServiceError,
)
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import START

ANYTHING = [
    *("a\0b", "\0", "\ud800", "a\udfffb", "", "'", "\\", "%s", "$1", "\uffff"),
    *("x" * 100_000, "😀" * 300),
]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with migrated_schema() as address:
        yield address


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTimerStore]:
    async with open_postgres_store(url, lambda: START) as it:
        yield it


@pytest.fixture
async def answers(url: str) -> AsyncIterator[Connections]:
    async with open_connections(Address(url, 0), 1, asked=True) as it:
        yield it


@pytest.mark.parametrize("text", ANYTHING, ids=ascii)
async def test_no_text_that_is_asked_for_is_critical(store: PostgresTimerStore, text: str) -> None:
    await store.apply([schedule("order-1", 60)], at(0))

    questions = [
        store.get(ACME, call(text)),
        store.list_timers(TimerQuery(ACME, after=(at(61), call(text)))),
        store.list_timers(TimerQuery(ACME, correlation_id=correlation(text))),
    ]

    for question in questions:
        with suppress(RequestRefused):
            assert not await question

    assert await store.get(ACME, call("order-1")) == scheduled_timer("order-1", 60)


async def test_a_table_that_is_gone_is_critical_where_timers_are_kept_and_not_for_whoever_asks(
    url: str, store: PostgresTimerStore
) -> None:
    await execute(url, "ALTER TABLE timer_schedules RENAME TO lost")
    try:
        with pytest.raises(StoreBusy):
            await store.get(ACME, call("order-1"))
        with pytest.raises(StoreFailed, match="the table is gone; restore the database from a backup"):
            await store.apply([schedule("order-1", 60)], at(0))
    finally:
        await execute(url, "ALTER TABLE lost RENAME TO timer_schedules")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=ascii)
async def test_what_no_row_can_hold_is_refused(store: PostgresTimerStore, text: str) -> None:
    with pytest.raises(RequestRefused):
        await store.get(ACME, call(text))
    with pytest.raises(RequestRefused):
        await store.list_timers(TimerQuery(ACME, after=(at(0), call(text))))
    with pytest.raises(RequestRefused):
        await store.decide([schedule(text, 60)], at(0))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("22021", RequestRefused),
        ("22P02", RequestRefused),
        ("22008", RequestRefused),
        ("42501", StoreBusy),
        ("42P01", StoreBusy),
        ("54000", StoreBusy),
        ("57014", StoreBusy),
        ("XX000", StoreBusy),
        ("53100", StoreFull),
        ("58030", StoreFailed),
        ("58P01", StoreFailed),
        ("XX001", StoreFailed),
        ("XX002", StoreFailed),
    ],
)
async def test_only_damage_is_critical_for_an_answer(
    answers: Connections, url: str, code: str, error: type[TimerServiceError]
) -> None:
    await execute(
        url,
        "CREATE OR REPLACE FUNCTION refuse() RETURNS integer LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION 'as the test asked' USING ERRCODE = '{code}'; END$$",
    )

    with pytest.raises(error, match=f"as the test asked \\({code}\\)") as caught:
        await answers.ask("SELECT refuse()")

    assert isinstance(caught.value, CriticalError) == (error is StoreFailed)
    assert [tuple(row) for row in await answers.ask("SELECT 1")] == [(1,)]


async def test_what_tenants_are_told_names_no_host(store: PostgresTimerStore) -> None:
    where = store._answers.where

    for error in (StoreBusy(where), StoreFull(where), StoreFailed(where), RequestRefused(where)):
        assert where not in error.public


@pytest.mark.parametrize("correlated", [None, "request"])
async def test_a_page_begins_at_the_later_of_its_range_and_its_cursor(
    store: PostgresTimerStore, correlated: str | None
) -> None:
    names = [f"order-{n}" for n in range(9)]
    await store.apply(
        [schedule(name, n, number=n + 1, correlation="request") for n, name in enumerate(names)], at(0)
    )

    async def page(after_s: float, from_s: float) -> list[str]:
        query = TimerQuery(
            ACME,
            after=(at(after_s), call(f"order-{after_s:.0f}")),
            due_from=at(from_s),
            correlation_id=None if correlated is None else correlation(correlated),
            limit=2,
        )
        return [timer.service_call_id for timer in await store.list_timers(query)]

    assert await page(2, 5) == ["order-5", "order-6"]
    assert await page(5, 2) == ["order-6", "order-7"]
    assert await page(5, 5) == ["order-6", "order-7"]


async def test_the_server_ends_a_question_that_takes_too_long(answers: Connections) -> None:
    with pytest.raises(StoreBusy, match="statement timeout"):
        await answers.ask("SELECT pg_sleep(3600)", limit_s=0.05)

    assert [tuple(row) for row in await answers.ask("SELECT 1")] == [(1,)]


async def test_every_question_has_a_limit_that_the_server_keeps(
    url: str,
) -> None:
    limits = PostgresLimits(question_timeout_s=0.05, statement_timeout_s=0.05)
    async with open_postgres_store(url, lambda: START, limits=limits) as store:
        blocker = await asyncpg.connect(url)
        await blocker.execute("BEGIN; LOCK TABLE timer_schedules IN ACCESS EXCLUSIVE MODE")

        for question in (
            store.get(ACME, call("order-1")),
            store.list_timers(TimerQuery(ACME)),
            store.list_timers(TimerQuery(ACME, correlation_id=correlation("request-1"))),
            store.count(at(0)),
        ):
            with pytest.raises(StoreBusy, match="statement timeout"):
                await question

        await blocker.close()


async def test_no_setting_of_a_question_outlives_it(answers: Connections) -> None:
    before = await answers.fetch("SHOW statement_timeout")

    await answers.ask("SELECT 1", limit_s=PATIENCE_S)

    assert await answers.fetch("SHOW statement_timeout") == before
    assert [tuple(row) for row in await answers.fetch("SHOW transaction_read_only")] == [("off",)]
