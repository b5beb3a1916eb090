"""No question of the page costs what there is: counted in steps, with some timers and with more."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.support.insight import BIG, FEW, MANY, QUESTIONS, SMALL
from tests.support.steps import counted
from tests.support.timers import at
from timer_client.wire import format_time
from timer_service.adapters.insight_pages import MAX_LOOKED_THROUGH
from timer_service.adapters.sqlite.insight import COUNTING
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.messages import epoch_ms
from timer_service.testing import START

INSERT = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at,
  correlation_id, reached_at, stream_created_us, stream_sequence, pending_due_ms)
VALUES (?, ?, ?, ?, 1, ?, ?, ?, 1, ?, ?)
"""


def fill(path: Path, count: int) -> None:
    """Put one timer for each minute to come and for each that has passed, most of one tenant."""

    def rows() -> Iterator[tuple[object, ...]]:
        for number in range(1, count + 1):
            whose = SMALL if number % 10 == 0 else BIG
            for state, minutes in (("Scheduled", number), ("Reached", -number)):
                moment = format_time(at(60 * minutes))
                request = f"request-{number % 100}" if number <= FEW else None
                ended = moment if state == "Reached" else None
                due_ms = None if ended else epoch_ms(at(60 * minutes))
                yield whose, f"{state}-{number}", state, moment, moment, request, ended, number, due_ms

    with closing(sqlite3.connect(path)) as link, link:
        link.executemany(INSERT, rows())


async def steps_of_each(path: Path, count: int) -> dict[str, int]:
    async with open_sqlite_store(path, lambda: START):
        pass
    fill(path, count)
    found = {}
    async with open_sqlite_store(path, lambda: START) as store:
        for name, ask in QUESTIONS.items():
            async with counted(*store._questions._connections) as steps:
                await ask(store.insight)
            found[name] = steps[0]
    return found


async def test_whoever_looks_does_not_wait_for_a_long_count(tmp_path: Path) -> None:
    path = tmp_path / "timers.db"
    async with open_sqlite_store(path, lambda: START):
        pass
    fill(path, 10)
    async with open_sqlite_store(path, lambda: START) as store, store._questions.asking(COUNTING):
        counting = asyncio.ensure_future(store.insight.shares([at(0), at(3_600)], 5))

        for ask in (QUESTIONS["page"], QUESTIONS["count"], QUESTIONS["glance"], QUESTIONS["tenants"]):
            await ask(store.insight)

        assert not counting.done()
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)


async def test_no_question_takes_more_steps_where_there_are_more_timers(tmp_path: Path) -> None:
    few, many = [await steps_of_each(tmp_path / f"{count}.db", count) for count in (FEW, MANY)]

    assert {name: (few[name], many[name]) for name in few if many[name] > 1.2 * few[name] + 200} == {}
    assert max(many.values()) < 40 * MAX_LOOKED_THROUGH
