"""What every table of actions promises; the port says it in words."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.postgres import fresh_schema
from tests.support.timers import ACME, GLOBEX, at
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sqlite.audit import SqliteAudit, audit_path
from timer_service.ports.audit import KEPT_FOR, Action, Audit
from timer_service.testing import START
from timer_service.testing.audit import MemoryAudit

CANCEL = Action(
    at(0), "kim", "operator", "cancel", ACME, "order <1>", "Scheduled, generation 1", "cancelled", "asked"
)
MOVE = replace(CANCEL, at=at(1), action="move", tenant_id=GLOBEX, outcome="rescheduled")
REFUSED = replace(CANCEL, at=at(2), role="", tenant_id=None, outcome="refused")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def audit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Audit]:
    """An empty table of each kind."""
    match request.param:
        case "memory":
            yield MemoryAudit()
        case "sqlite":
            yield SqliteAudit(audit_path(tmp_path / "timers.db"))
        case _:
            async with fresh_schema() as url, open_postgres_store(url, lambda: START) as store:
                yield store.audit


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
