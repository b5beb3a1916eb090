"""Kill the service wherever it can wait: whatever it was doing, nothing is lost or done twice.

`make crashes` kills it at every step of the same stories, in every way.
"""

import pytest

from tests.simulation.awaits import Place
from tests.simulation.crashes import (
    STORIES,
    CrashReport,
    crash_everywhere,
    forgotten,
    places_by_step,
    some_crashes,
    undisturbed,
)
from tests.simulation.plan import CrashPoint
from tests.simulation.world import Workshop


@pytest.fixture(scope="module")
def crashes(shop: Workshop) -> dict[str, list[CrashPoint]]:
    return some_crashes(shop)


@pytest.mark.parametrize("story", STORIES)
def test_no_crash_breaks_an_invariant(
    shop: Workshop, crashes: dict[str, list[CrashPoint]], story: str
) -> None:
    report = CrashReport()

    crash_everywhere(story, crashes[story], *shop, report)

    assert [(point, tally.violations[0]) for _, point, tally in report.failures] == []
    assert report.scenarios > 0


def test_the_stories_meet_every_place_at_which_the_service_can_wait(shop: Workshop) -> None:
    met: set[Place] = set()

    for story in STORIES:
        met.update(*places_by_step(story, *shop))

    assert forgotten(met) == {}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_without_a_crash_breaks_no_invariant(shop: Workshop, story: str) -> None:
    assert undisturbed(story, *shop).violations == []
