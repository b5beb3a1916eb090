"""What every table of actions promises; the port says it in words."""

import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.timers import ACME, GLOBEX, at
from timer_service.adapters.sqlite.audit import SqliteAudit, audit_path
from timer_service.ports.audit import KEPT_FOR, Action, Audit
from timer_service.wiring.stores import OpenedStore

CANCEL = Action(
    at(0), "kim", "operator", "cancel", ACME, "order <1>", "Scheduled, generation 1", "cancelled", "asked"
)
MOVE = replace(CANCEL, at=at(1), action="move", tenant_id=GLOBEX, outcome="rescheduled")
REFUSED = replace(CANCEL, at=at(2), role="", tenant_id=None, outcome="refused")


@pytest.fixture
def audit(opened: OpenedStore) -> Audit:
    """What each kind of store keeps beside the timers."""
    return opened.audit


async def test_actions_are_found_as_they_were_kept_newest_first_and_by_tenant(audit: Audit) -> None:
    assert await audit.page(None, None, 10) == []
    for action in (CANCEL, MOVE, REFUSED):
        await audit.record(action)

    found = await audit.page(None, None, 10)
    numbers = [action.number for action in found]

    assert [replace(action, number=0) for action in found] == [REFUSED, MOVE, CANCEL]
    assert numbers == sorted(set(numbers), reverse=True)
    assert [action.action for action in await audit.page(frozenset({GLOBEX}), None, 10)] == ["move"]
    assert await audit.page(frozenset(), None, 10) == []
    assert [action.at for action in await audit.page(None, numbers[0], 1)] == [at(1)]


async def test_what_is_too_old_is_forgotten_with_the_next_action(audit: Audit) -> None:
    await audit.record(CANCEL)
    await audit.record(MOVE)
    await audit.record(replace(CANCEL, at=at(0) + KEPT_FOR + timedelta(milliseconds=1)))

    assert [action.at for action in await audit.page(None, None, 10)] == [
        at(0) + KEPT_FOR + timedelta(milliseconds=1),
        MOVE.at,
    ]


async def test_what_a_job_did_is_found_with_the_job_and_not_among_the_rest(audit: Audit) -> None:
    assert await audit.get(1) is None
    number = await audit.record(CANCEL)
    of_job = replace(CANCEL, job=number)

    last = await audit.record(of_job, replace(of_job, tenant_id=GLOBEX), replace(of_job, outcome="changed"))

    assert await audit.get(number) == replace(CANCEL, number=number)
    assert [action.number for action in await audit.page(None, None, 10)] == [number]
    found = await audit.page(None, None, 10, job=number)
    assert [action.outcome for action in found] == ["changed", "cancelled", "cancelled"]
    assert found[0].number == last
    assert dict(await audit.tally(number)) == {("cancel", "cancelled"): 2, ("cancel", "changed"): 1}
    assert await audit.tally(last) == {}


async def test_what_is_too_old_can_be_forgotten_without_an_action(audit: Audit) -> None:
    assert await audit.forget(at(1)) == 0
    await audit.record(CANCEL, MOVE)

    assert await audit.forget(at(1)) == 1
    assert [action.at for action in await audit.page(None, None, 10)] == [MOVE.at]


async def test_a_file_of_an_older_version_is_read_as_it_is(tmp_path: Path) -> None:
    path = audit_path(tmp_path / "timers.db")
    with sqlite3.connect(path) as old:
        old.execute(
            "CREATE TABLE page_actions (number INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, "
            "actor TEXT NOT NULL, role TEXT NOT NULL, action TEXT NOT NULL, tenant_id TEXT, "
            "subject TEXT NOT NULL, before TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL) STRICT"
        )
        old.execute(
            "INSERT INTO page_actions VALUES (7, '2026-01-01T12:00:00.000Z', 'kim', 'operator', 'cancel', "
            "'acme', 'order <1>', 'Scheduled, generation 1', 'cancelled', 'asked')"
        )

    assert await SqliteAudit(path).page(None, None, 10) == [replace(CANCEL, number=7)]
