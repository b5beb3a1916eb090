"""A short torture of the real process; `make torture` is the long one. And the checker proves itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import NatsServer
from tests.torture.__main__ import BROKER, SERVICE, torture
from tests.torture.kills import kill_at
from tests.torture.ledger import Findings, Firing, Ledger, Order
from tests.torture.soak import growth, thirds

KEY = ("acme", "order-1")
DUE_MS = 1_800_000_000_000
DUE_AT = "2027-01-15T08:00:00.000Z"
ID = "01a3185c-5000-7000-8000-000000000001"


async def test_the_service_loses_nothing_while_it_and_its_broker_are_killed(tmp_path: Path) -> None:
    site, found = await torture(tmp_path, seconds=3, kills=2, per_second=40, longest_s=2, seed=4)

    assert (found.violations, site.ended_by_itself) == ([], [])
    assert found.fired > 0
    assert (site.ledger.faults[SERVICE] >= 2, site.ledger.faults[BROKER] >= 1) == (True, True)


def _firing(**changes: Any) -> Firing:
    fields = {
        "subject": "timer.events.acme.DueTimeReached",
        "event_id": ID,
        "generation": 1,
        "due_ms": DUE_MS,
        "reached_ms": DUE_MS,
        "seen_ms": DUE_MS + 1,
    }
    return Firing(**{**fields, **changes})


def _check(
    *firings: Firing, orders: list[Order] | None = None, state: str = "Reached", now_ms: int = DUE_MS + 1_000
) -> Findings:
    ledger = Ledger()
    ledger.orders[KEY] = orders or [Order("schedule", DUE_MS)]
    ledger.tried_dues[KEY] = {DUE_MS}
    ledger.published[KEY] = list(firings)
    return ledger.check({KEY: {"state": state, "due_at": DUE_AT, "generation": 1}}, now_ms)


def test_the_checker_finds_nothing_wrong_with_a_timer_that_fired() -> None:
    assert _check(_firing(), _firing()) == Findings(accepted=1, fired=1, published_again=1)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (_check(), "lost"),
        (_check(state="Scheduled"), "lost"),
        (_check(state="Cancelled"), "lost"),
        (_check(state="Scheduled", now_ms=0, orders=[Order("schedule", DUE_MS + 1)]), "lost"),
        (_check(_firing(reached_ms=DUE_MS - 1)), "early"),
        (_check(_firing(seen_ms=DUE_MS - 1)), "early"),
        (_check(_firing(), _firing(subject="timer.events.globex.DueTimeReached")), "unexpected"),
        (_check(_firing(), orders=[Order("confirmed", DUE_MS, 1)]), "unexpected"),
        (_check(_firing(), _firing(event_id=ID[:-1] + "2")), "other_ids"),
    ],
)
def test_the_checker_finds_what_is_wrong(found: Findings, kind: str) -> None:
    assert len(getattr(found, kind)) == len(found.violations) == 1


def test_the_checker_finds_a_timer_without_a_row() -> None:
    ledger = Ledger()
    ledger.orders[KEY] = [Order("schedule", DUE_MS)]

    assert len(ledger.check({}, DUE_MS).lost) == 1


async def test_nothing_is_lost_where_the_process_dies_before_a_write_or_sync(
    shared_broker: NatsServer, tmp_path: Path
) -> None:
    steps = (3, 40, 60)

    outcomes = await asyncio.gather(
        *(kill_at(step, tmp_path / str(step), shared_broker, f"kill-{step}") for step in steps)
    )

    assert [(outcome.step, outcome.lives, outcome.problems) for outcome in outcomes] == [
        (step, 2, []) for step in steps
    ]


def test_what_is_taken_more_of_is_told_per_hour() -> None:
    looks = [(60.0 * minute, {"memory": 70.0 + minute, "files": 30.0}) for minute in range(30)]

    assert (round(growth(looks, "memory"), 6), growth(looks, "files")) == (60.0, 0.0)


def test_whether_it_fills_up_or_leaks_is_told_by_thirds() -> None:
    looks = [(60.0 * minute, {"memory": float(min(minute, 10))}) for minute in range(30)]

    assert list(thirds(looks, "memory")) == [("first", 4.5), ("second", 10.0), ("last", 10.0)]
