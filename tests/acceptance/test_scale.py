"""A million timers: questions are answered quickly while timers fire."""

import asyncio
import sqlite3
import time
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.calls import call
from tests.support.messages import in_seconds, iso
from tests.support.world import World

pytestmark = pytest.mark.alone

TIMERS = 1_000_000
FIRED_PER_SECOND = 1_000
SECONDS = 4
ANSWER_LIMIT_MS = 50

_FILL = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)
INSERT INTO timer_schedules
  (tenant_id, service_call_id, state, due_at, generation, registered_at, stream_created_us, stream_sequence)
SELECT 'big', printf('t-%09d', i), 'Scheduled', '2999-01-01T00:00:00.' || printf('%03d', i % 1000) || 'Z', 1,
  '2026-01-01T00:00:00.000Z', 1, i + 1 FROM n
"""


async def test_get_and_list_answer_within_50_ms_while_1_000_timers_a_second_fire(world: World) -> None:
    service = world.service().start_ready()
    service.terminate()
    start = in_seconds(12)
    with closing(sqlite3.connect(world.db_path)) as link:
        link.execute("PRAGMA synchronous = OFF")
        link.execute(_FILL, {"count": TIMERS})
        link.executemany(
            "INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, "
            "registered_at, stream_created_us, stream_sequence) "
            "VALUES ('small', ?, 'Scheduled', ?, 1, ?, 1, 1)",
            [
                (f"s-{number}", iso(start + timedelta(milliseconds=number)), iso(start))
                for number in range(FIRED_PER_SECOND * SECONDS)
            ],
        )
        link.commit()
    service.restart().wait_for_log("broker.connected")
    await call(world, "list", tenant="big", limit=50)
    await asyncio.sleep(max(0.0, (start - in_seconds(0)).total_seconds()))

    get_ms, list_ms = [], []
    for number in range(100):
        get_ms.append(await _timed(world, "get", serviceCallId=f"t-{number * 9_973 % TIMERS:09d}"))
        list_ms.append(await _timed(world, "list", limit=50, state="Scheduled"))
    fired_meanwhile = len(world.rows("WHERE tenant_id = 'small' AND state = 'Reached'"))
    await world.wait_for_row("small", f"s-{FIRED_PER_SECOND * SECONDS - 1}", state="Reached")

    assert fired_meanwhile > 100, "timers fired while the questions were asked"
    assert sorted(get_ms)[98] < ANSWER_LIMIT_MS
    assert sorted(list_ms)[98] < ANSWER_LIMIT_MS


async def _timed(world: World, endpoint: str, **request: object) -> float:
    started = time.perf_counter()
    answer = await call(world, endpoint, tenant="big", **request)
    assert "code" not in answer, answer
    return (time.perf_counter() - started) * 1000
