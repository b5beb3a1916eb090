"""A clock that stands until it is moved: only once everybody has finished with the present moment."""

from dataclasses import asdict

import pytest

from tests.simulation.clock_planted import PLANTED, planted
from tests.simulation.clock_seeds import run_clock_seed
from tests.support.elsewhere import printed_elsewhere

SEEDS = range(16)
CAUGHT_BY = {
    "time moves on before an event is acknowledged": 1,
    "counters that are behind are believed": 4,
    "time jumps over a due time": 0,
    "time moves on while commands wait": 0,
    "what came due during the look is passed over": 6,
    "time moves on while a callback is under way": 1,
    "time jumps over a retry": 1,
}


def test_time_moves_from_due_time_to_due_time_whatever_a_seed_chooses() -> None:
    tallies = [run_clock_seed(seed) for seed in SEEDS]

    broken = [tally for tally in tallies if tally.violations]
    story = "\n".join(broken[0].story) if broken else ""
    assert not broken, f"seeds {[tally.seed for tally in broken]} break; the story of the first:\n{story}"
    met = {
        "moves": sum(tally.moves for tally in tallies),
        "events": sum(tally.events for tally in tallies),
        "reactions": sum(tally.reactions for tally in tallies),
        "callbacks": sum(tally.callbacks for tally in tallies),
    }
    assert min(met.values()) > 0, met


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    with planted(bug):
        violations = run_clock_seed(CAUGHT_BY[bug]).violations

    assert violations


def test_whatever_catches_a_bug_is_run_without_it_too() -> None:
    assert set(CAUGHT_BY.values()) <= set(SEEDS)


def test_a_seed_tells_the_same_story_every_time_and_in_another_process() -> None:
    seeds = (1, 6)
    here = [run_clock_seed(seed) for seed in seeds]

    again = [run_clock_seed(seed) for seed in seeds]
    code = (
        "from tests.simulation.clock_seeds import run_clock_seed\n"
        f"print(*[run_clock_seed(seed).trace_hash for seed in {seeds}])"
    )
    there = printed_elsewhere(code)

    assert [asdict(tally) for tally in again] == [asdict(tally) for tally in here]
    assert there == [tally.trace_hash for tally in here]
