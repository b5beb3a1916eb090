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
    outdated,
    some_crashes,
    watched,
)
from tests.simulation.plan import CrashPoint
from tests.simulation.world import Tally, Workshop

Undisturbed = dict[str, tuple[Tally, list[set[Place]]]]


@pytest.fixture(scope="module")
def undisturbed(shop: Workshop) -> Undisturbed:
    """Every story as it goes when nobody kills the service."""
    return {story: watched(story, *shop) for story in STORIES}


@pytest.fixture(scope="module")
def crashes(undisturbed: Undisturbed) -> dict[str, list[CrashPoint]]:
    return some_crashes({story: places for story, (_, places) in undisturbed.items()})


@pytest.mark.parametrize("story", STORIES)
def test_no_crash_breaks_an_invariant(
    shop: Workshop, crashes: dict[str, list[CrashPoint]], story: str
) -> None:
    report = CrashReport()

    crash_everywhere(story, crashes[story], *shop, report)

    assert [(point, tally.violations[0]) for _, point, tally in report.failures] == []
    assert report.scenarios > 0


def test_the_stories_meet_every_place_at_which_the_service_can_wait(undisturbed: Undisturbed) -> None:
    met = {place for _, places in undisturbed.values() for place in set().union(*places)}

    assert forgotten(met) == {}


def test_a_place_at_which_nobody_can_be_killed_is_still_in_the_source() -> None:
    assert outdated() == set()


def test_a_story_without_a_crash_breaks_no_invariant(undisturbed: Undisturbed) -> None:
    broken = {story: tally.violations for story, (tally, _) in undisturbed.items() if tally.violations}

    assert broken == {}
