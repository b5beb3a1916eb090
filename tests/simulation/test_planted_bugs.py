"""The simulation proves itself: a bug that is planted on purpose does not stay hidden."""

import pytest

from tests.simulation.planted import PLANTED, planted
from tests.simulation.world import Workshop, run_seed

MOST_SEEDS = 200
LOOK_FIRST_AT = {"a leap that nobody can confirm": 131, "a stop cuts off the batch in hand": 577}
"""Seeds that catch what few do; only to be quick about it."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(shop: Workshop, bug: str) -> None:
    seeds = (LOOK_FIRST_AT.get(bug, 0), *range(MOST_SEEDS))
    with planted(bug):
        caught = next((seed for seed in seeds if run_seed(seed, *shop).violations), None)

    assert caught is not None, f"{bug!r} breaks no invariant in {MOST_SEEDS} seeds"


def test_no_planted_bug_stays_behind(shop: Workshop) -> None:
    for bug in PLANTED:
        with planted(bug):
            pass

    assert run_seed(0, *shop).violations == []
