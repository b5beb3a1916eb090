"""Durable functions survive the death of a worker wherever it waits; bugs planted on purpose are found.

`make flow-crashes` kills it at every step of the same story, in every way, on every journal.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.simulation.awaits import all_places
from tests.simulation.flow_crashes import WATCHED, Report, crash, opened, some_plans
from tests.simulation.flow_databases import Database
from tests.simulation.flow_planted import PLANTED, planted
from tests.simulation.flow_process import PACKAGE
from tests.simulation.flow_story import Plan, Seen, World, tell

MAX_TRIES = 10


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with opened("sqlite") as database:
        yield database


@pytest.fixture(scope="module")
def whole(database: Database) -> World:
    return tell(database, Plan())


def test_every_run_ends_right_wherever_a_worker_dies() -> None:
    report = Report()

    crash("sqlite", partial(some_plans, set()), report)

    assert report.broken == []
    assert report.counts["sqlite: crash scenarios"] > 0


def test_the_same_story_takes_the_same_steps(database: Database, whole: World) -> None:
    again = tell(database, Plan())

    assert again.seen == whole.seen
    assert again.done == whole.done


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(database: Database, whole: World, bug: str) -> None:
    _, text, plan = PLANTED[bug]
    seen = tell(database, Plan(loses_event=True)).seen if plan.loses_event else whole.seen
    plans = [replace(plan, step=step) for step in _steps_at(seen, text)] if text else [plan]

    with planted(bug):
        assert any(tell(database, each).problems for each in plans)


def _steps_at(seen: Seen, text: str) -> list[int]:
    """Return the first steps at which the process waits at a place with this text."""
    places = {place for place, source in all_places(PACKAGE, WATCHED).items() if text in source}
    return [step for step, waits_at in enumerate(seen, 1) if waits_at & places][:MAX_TRIES]
