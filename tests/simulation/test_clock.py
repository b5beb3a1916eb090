"""A wall clock that is stepped, drifts or sleeps: nothing early or twice, no busy loop, no long sleep."""

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tests.simulation.clock import START_MS
from tests.simulation.model import Wish
from tests.simulation.plan import Fault, Plan, Sending, iso, sendings
from tests.simulation.world import Tally, Workshop, World

POLL_S = 5.0
STEP_AT = 10.3
ENDS_AT = 40.0
SLACK_S = 0.5
MOST_POLLS_A_SECOND = 4
STEPS_S = [
    sign * size
    for size in (1, 30, 60, 3600, 86_400, 31_557_600, 315_576_000)  # One second to ten years.
    for sign in (1, -1)
]


def _timers() -> list[Sending]:
    """Timers that are due before, around and after the step, and while the clock is wrong."""
    found: list[Sending] = []
    for number, due_s in enumerate(
        (5.0, 10.29, 10.3, 10.31, 11.3, 15.0, 40.3, 70.3, 3610.3, 86_410.3), start=1
    ):
        wish = Wish("schedule", "acme", f"order-{number}", START_MS + round(due_s * 1000))
        found += sendings(Random(number), 1.0 + number / 100, wish, iso(wish.due_ms), number)
    for number, due_s in enumerate((12.0, 20.0, 35.0), start=20):
        wish = Wish("schedule", "acme", f"late-{number}", START_MS + round(due_s * 1000))
        found += sendings(Random(number), 11.0, wish, iso(wish.due_ms), number)
    return found


def _run(shop: Workshop, *faults: Fault, **values: object) -> tuple[World, Tally]:
    folder, template = shop
    plan = Plan(
        seed=0,
        sendings=_timers(),
        faults=list(faults),
        ends_at=ENDS_AT,
        poll_interval_ms=round(POLL_S * 1000),
        disk_latency_s=0.001,
        net_latency_s=0.001,
    )
    with TemporaryDirectory(dir=folder) as own:
        world = World(replace(plan, **values), Path(own), template)  # type: ignore[arg-type]
        return world, world.run()


def _gaps(world: World) -> list[float]:
    return [later - earlier for earlier, later in zip(world.polled_at, world.polled_at[1:], strict=False)]


def _busiest_second(world: World) -> int:
    times = world.polled_at
    return max(sum(start <= time < start + 1 for time in times) for start in times)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_after_a_step_nothing_is_early_or_twice_and_the_polls_go_on_at_their_pace(
    shop: Workshop, step_s: float
) -> None:
    world, tally = _run(shop, Fault(STEP_AT, "step", size=step_s))

    assert tally.violations == []
    assert tally.counts.published_again == 0
    assert max(_gaps(world)) <= POLL_S + SLACK_S
    assert _busiest_second(world) <= 2 * len(_timers()) + MOST_POLLS_A_SECOND


@pytest.mark.parametrize("step_s", [s for s in STEPS_S if s > 3600])
def test_a_large_step_forward_fires_nothing_until_it_is_accepted(shop: Workshop, step_s: float) -> None:
    world, tally = _run(shop, Fault(STEP_AT, "step", size=step_s), max_clock_step="1h", is_probed=False)

    early = [firing for firing in world.model.fired if firing[3] > world.wall.true_ms()]
    assert tally.violations == []
    assert early == []


@pytest.mark.parametrize("faster", [-0.5, -0.01, 0.01, 0.5])
def test_a_clock_that_drifts_is_followed(shop: Workshop, faster: float) -> None:
    world, tally = _run(shop, Fault(2.0, "drift", 30.0, size=faster * 200))

    assert tally.violations == []
    assert tally.counts.published_again == 0
    assert max(_gaps(world)) <= POLL_S + SLACK_S


@pytest.mark.parametrize("kind", ["freeze", "suspend"])
@pytest.mark.parametrize("lasts", [1.0, 20.0])
def test_after_a_sleep_what_was_missed_is_out_within_the_poll_interval(
    shop: Workshop, kind: str, lasts: float
) -> None:
    world, tally = _run(shop, Fault(STEP_AT, kind, lasts))

    assert tally.violations == []
    assert max(_gaps(world)) <= lasts + POLL_S + SLACK_S


def test_steps_one_after_the_other_do_not_keep_the_service_busy(shop: Workshop) -> None:
    back_and_forth = [
        Fault(STEP_AT + number / 10, "step", size=3600.0 * (-1) ** number) for number in range(200)
    ]

    world, tally = _run(shop, *back_and_forth)

    assert tally.violations == []
    assert _busiest_second(world) <= 2 * len(_timers()) + MOST_POLLS_A_SECOND
