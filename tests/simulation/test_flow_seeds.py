"""Two workers of durable functions: every run ends right, whatever a seed chooses to happen to them."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from tests.simulation.flow_databases import SharedSqlite
from tests.simulation.flow_plan import FAULTS, LOSING, make_flow_plan
from tests.simulation.flow_planted import CAUGHT_BY_SEEDS, PLANTED_IN_SEEDS, planted
from tests.simulation.flow_seeds import flow_database, run_flow_seed
from tests.support.elsewhere import printed_elsewhere

SEEDS = range(24)
FOUND = {
    847: "a worker was taken to keep a firing that the broker had delivered again, and ended the other's",
    1087: "as 847, and time went on while the other was still at work",
}
"""Seeds that once broke a promise, and why."""


@pytest.fixture(scope="module")
def database() -> Iterator[SharedSqlite]:
    with flow_database() as opened:
        yield opened


def test_every_run_ends_right_whatever_a_seed_chooses(database: SharedSqlite) -> None:
    tallies = [run_flow_seed(seed, database) for seed in (*SEEDS, *FOUND)]

    broken = [tally for tally in tallies if tally.violations]
    story = "\n".join([*broken[0].story, str(broken[0].violations)]) if broken else ""
    assert not broken, f"seeds {[tally.seed for tally in broken]} break; the story of the first:\n{story}"
    met = {
        "runs": sum(tally.runs for tally in tallies),
        "crashes": sum(tally.crashes for tally in tallies),
        "overtaken": sum(tally.overtaken for tally in tallies),
    }
    assert min(met.values()) > 0, met


@pytest.mark.parametrize("bug", CAUGHT_BY_SEEDS)
def test_a_planted_bug_is_caught(database: SharedSqlite, bug: str) -> None:
    with planted(bug):
        violations = run_flow_seed(CAUGHT_BY_SEEDS[bug], database).violations

    assert violations


def test_whatever_catches_a_bug_is_run_without_it_too() -> None:
    assert set(CAUGHT_BY_SEEDS.values()) <= set(SEEDS)
    assert CAUGHT_BY_SEEDS.keys() >= PLANTED_IN_SEEDS.keys()


def test_a_seed_tells_the_same_story_every_time_and_in_another_process(database: SharedSqlite) -> None:
    seeds = (1, 2, 7)
    here = [run_flow_seed(seed, database) for seed in seeds]

    again = [run_flow_seed(seed, database) for seed in seeds]
    code = (
        "from tests.simulation.flow_seeds import flow_database, run_flow_seed\n"
        f"with flow_database() as database: told = [run_flow_seed(seed, database) for seed in {seeds}]\n"
        "print(*[tally.trace_hash for tally in told], *[tally.steps for tally in told])"
    )
    there = printed_elsewhere(code)

    assert [asdict(tally) for tally in again] == [asdict(tally) for tally in here]
    assert there == [*(t.trace_hash for t in here), *(str(t.steps) for t in here)]


def test_the_seeds_meet_every_kind_of_fault() -> None:
    met = {fault.kind for seed in SEEDS for fault in make_flow_plan(seed).faults}

    assert met == {*FAULTS, *LOSING}
