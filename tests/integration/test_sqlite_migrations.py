"""An older SQLite file is brought up to date, whatever it holds and from whichever version."""

import sqlite3
from pathlib import Path

import pytest

from tests.support.timers import ACME, at, call, schedule
from timer_service.adapters.migrations import load_migrations
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.schema import CREATE_LEDGER, as_one_transaction
from timer_service.domain.messages import CorrelationId
from timer_service.domain.timer import Outcome, TimerState
from timer_service.ports.timer_store import TimerQuery
from timer_service.testing import START

# As version 1 wrote them: each state, a cancel that came before any schedule, the first and the last time.
_ROWS = """
INSERT INTO timer_schedules (tenant_id, service_call_id, state, due_at, generation, registered_at, correlation_id,
  reached_at, cancelled_at, stream_created_us, stream_sequence, traceparent, tracestate) VALUES
 ('acme', 'due', 'Scheduled', '2026-01-01T11:59:00.000Z', 2, '2026-01-01T10:00:00.000Z', 'request', NULL, NULL, 1, 1, '00-ab', 'v=1'),
 ('acme', 'first', 'Scheduled', '0001-01-01T00:00:00.000Z', 1, '2026-01-01T10:00:00.000Z', NULL, NULL, NULL, 1, 2, NULL, NULL),
 ('acme', 'last', 'Scheduled', '9999-12-31T23:59:59.999Z', 1, '2026-01-01T10:00:00.000Z', NULL, NULL, NULL, 1, 3, NULL, NULL),
 ('acme', 'over', 'Reached', '2026-01-01T11:00:00.000Z', 1, '2026-01-01T10:00:00.000Z', 'request', '2026-01-01T11:00:00.000Z', NULL,
  1, 5, NULL, NULL),
 ('acme', 'stopped', 'Cancelled', '2026-01-01T13:00:00.000Z', 1, '2026-01-01T10:00:00.000Z', NULL, NULL,
  '2026-01-01T10:30:00.000Z', 1, 6, NULL, NULL),
 ('acme', 'tombstone', 'Cancelled', NULL, 0, '2026-01-01T10:00:00.000Z', NULL, NULL, '2026-01-01T10:00:00.000Z', 1, 7, NULL, NULL);
"""  # noqa: E501
_READ = """
SELECT tenant_id, service_call_id, state, due_at, generation, registered_at, correlation_id, reached_at,
  cancelled_at, stream_created_us, stream_sequence, traceparent, tracestate FROM timer_schedules ORDER BY 2
"""

STEPS = load_migrations("sqlite")
WITH_NUMBERS = 9
"""The version from which on a row has its due time as a number, too: those rows could not be written."""


def _written_by(version: int, path: Path) -> list[tuple[object, ...]]:
    """Make a file as a program of this version left it, and return its rows."""
    with sqlite3.connect(path) as connection:
        connection.execute(CREATE_LEDGER)
        for step in STEPS[:version]:
            if step.version == WITH_NUMBERS:
                connection.executescript(_ROWS)
            connection.executescript(as_one_transaction(step, "2026-01-01T10:00:00.000Z"))
        if version < WITH_NUMBERS:
            connection.executescript(_ROWS)
        return connection.execute(_READ).fetchall()


@pytest.mark.parametrize("version", [step.version for step in STEPS])
async def test_every_row_of_an_older_file_is_kept_found_and_fired(version: int, tmp_path: Path) -> None:
    path = tmp_path / "timers.db"
    before = _written_by(version, path)

    async with open_sqlite_store(path, lambda: START) as store:
        listed = [timer.service_call_id for timer in await store.list_timers(TimerQuery(ACME))]
        of_request = TimerQuery(ACME, correlation_id=CorrelationId("request"))
        related = [timer.service_call_id for timer in await store.list_timers(of_request)]
        counts = await store.count(at(0))
        async with store.claim_due(at(0), 10) as claim:
            due = [timer.service_call_id for timer in claim.timers]
        tombstone = await store.get(ACME, call("tombstone"))
        unchanged = await store.apply([schedule("over", 60, number=98)], at(0))

    with sqlite3.connect(path) as connection:
        assert connection.execute(_READ).fetchall() == before
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ledger = connection.execute("SELECT version FROM timer_migrations ORDER BY 1").fetchall()
        assert ledger == [(step.version,) for step in STEPS]
    assert listed == ["first", "over", "due", "stopped", "last"]
    assert related == ["over", "due"]
    assert (due, counts.overdue, counts.pending) == (["first", "due"], 2, 3)
    assert tombstone is not None
    assert (tombstone.state, tombstone.expires_after_ms) == (TimerState.CANCELLED, None)
    assert unchanged == [Outcome.ALREADY_REACHED]


async def test_a_file_made_step_by_step_has_the_schema_of_a_new_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    _written_by(1, old)
    async with open_sqlite_store(old, lambda: START), open_sqlite_store(new, lambda: START):
        pass

    def schema(path: Path) -> list[tuple[object, ...]]:
        with sqlite3.connect(path) as connection:
            sql = "SELECT name, sql FROM sqlite_schema WHERE tbl_name LIKE 'timer_schedules%' ORDER BY name"
            return connection.execute(sql).fetchall()

    assert schema(old) == schema(new)
