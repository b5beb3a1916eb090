"""Durable functions survive the death of a worker wherever it waits; bugs planted on purpose are found."""

from dataclasses import replace

import pytest

from tests.simulation.awaits import all_places
from tests.simulation.flow_crashes import WATCHED, Plan, Seen, crash, some_plans, told
from tests.simulation.flow_planted import PLANTED, planted
from tests.simulation.flow_process import PACKAGE

MAX_TRIES = 10

# Journals work in threads of their own, so that no two runs take the same steps.
pytestmark = pytest.mark.flow_crashes


async def test_every_run_ends_right_wherever_a_worker_dies() -> None:
    counts, places, broken = await crash("sqlite", some_plans)

    assert broken == []
    assert counts["sqlite: crash scenarios"] > 0
    assert places & all_places(PACKAGE, WATCHED).keys()


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_bug_is_caught(bug: str) -> None:
    _, text, plan = PLANTED[bug]

    with planted(bug):
        world, problems = await told("sqlite", plan if not text else Plan())
        for step in _steps_at(world.seen, text) if text else []:
            problems = problems or (await told("sqlite", replace(plan, step=step)))[1]

    assert problems != []


def _steps_at(seen: Seen, text: str) -> list[int]:
    """Return the first steps at which the process waits at a place with this text."""
    places = {place for place, source in all_places(PACKAGE, WATCHED).items() if text in source}
    return [step for step, waits_at in enumerate(seen, 1) if waits_at & places][:MAX_TRIES]
