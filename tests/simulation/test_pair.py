"""Two instances that share a real PostgreSQL and one consumer: nothing is lost, early or done twice."""

from collections.abc import Iterator

import pytest

from tests.simulation.pair import make_pair_plan, run_pair
from tests.simulation.planted import PLANTED_IN_PAIRS, planted
from tests.simulation.server import Postgres, postgres

SEEDS = (3, 11, 54, 74, 77, 285)
"""Quick ones, some of them without a fault; `make simulate` plays many more.

77: one instance had applied what the broker then lost; the other took new commands for the lost ones.
"""
CAUGHT_BY = {"two instances claim one timer": 74, "two instances claim one callback": 11}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as opened:
        yield opened


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds_where_two_instances_share_a_database(server: Postgres, seed: int) -> None:
    tally = run_pair(seed, server)

    assert tally.violations == []


@pytest.mark.parametrize("bug", PLANTED_IN_PAIRS)
def test_a_planted_bug_is_caught(server: Postgres, bug: str) -> None:
    with planted(bug):
        violations = run_pair(CAUGHT_BY[bug], server).violations

    assert violations


def test_whatever_catches_a_bug_is_run_without_it_too() -> None:
    assert set(CAUGHT_BY.values()) <= set(SEEDS)
    assert CAUGHT_BY.keys() == PLANTED_IN_PAIRS.keys()


def test_the_seeds_meet_every_kind_of_fault_that_two_instances_have() -> None:
    met = {fault.kind for seed in range(200) for fault in make_pair_plan(seed).faults}

    assert met >= {"crash", "freeze", "stop", "server cut", "server slow", "lost answers", "outage"}
