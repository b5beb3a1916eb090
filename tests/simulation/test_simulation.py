"""Hundreds of short lives of the service, each with its own load and faults, each the same every time."""

from collections import Counter
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest

from tests.simulation import __main__ as runner
from tests.simulation.plan import SEEDS, make_plan
from tests.simulation.world import FAULT_KINDS, Tally, Workshop, run_seed
from tests.support.elsewhere import printed_elsewhere

PARTS = 2


@pytest.mark.parametrize("first", range(PARTS))
def test_every_invariant_holds_whatever_a_seed_chooses(shop: Workshop, first: int) -> None:
    tallies = [run_seed(seed, *shop) for seed in SEEDS[first::PARTS]]

    broken = [tally.seed for tally in tallies if tally.violations]
    story = "\n".join(run_seed(broken[0], *shop, verbose=True).story) if broken else ""
    assert not broken, f"seeds {broken} break an invariant; the story of the first:\n{story}"
    met = {
        "commands": sum(tally.counts.commands for tally in tallies),
        "refused messages": sum(tally.counts.refused for tally in tallies),
        "definite answers": sum(tally.counts.definite_answers for tally in tallies),
        "events": sum(tally.counts.fired for tally in tallies),
        "events published again": sum(tally.counts.published_again for tally in tallies),
        "crashes": sum(tally.crashes for tally in tallies),
        "outages": sum(tally.outages for tally in tallies),
        "store errors": sum(tally.store_errors for tally in tallies),
    }
    assert min(met.values()) > 0, met


FOUND = {
    37: "every timer that was ever asked about left an entry in memory",
    206: "nothing so far: an expiry in doubt is told again here, which few seeds have",
    214: "nothing so far: a timer comes in here between the last reading of the store and the sleep",
    228: "a clock that had drifted was set right at the end, and timers due soon after were taken for late",
    264: "nothing so far: a timer is changed here between its event and its mark",
    522: "requests for a due timer kept it from firing until they gave up",
    843: "tenants whom nobody had heard for days asked again while the service was to be idle",
    1613: "a store that was busy between two batches of a backlog of callbacks ended the service",
    1706: "a cancel through the stream came too late, and a call found the timer cancelled",
    1793: "as 522, with three requests",
    1906: "as 30025, before the message that had taken the place was delivered",
    1995: "what the writer does for callbacks was not counted in how late a timer may be on a slow disk",
    2891: "a receiver with more failures left than the judge had pauses for was taken for a lost callback",
    3385: "as 522, with a slow disk",
    3924: "many tenants were taken in turns, and the looks that learn of two at a time were not waited for",
    4072: "a timer was purged, and scheduled again with the same due time",
    5860: "that a look takes half of a batch under backlog was not counted in how late a timer may be",
    9394: "polls each second took a few steps more than were allowed to an idle service",
    12519: "a clock that was set back during a look made its timers seem due later than they were published",
    12204: "a batch that was confirmed went out again, because a dead letter was forbidden just before",
    14166: "a poll was answered out of memory, and the file went unread for longer than the interval",
    18002: "timers that were being marked were claimed again, because another of the tenant was saved",
    6254: "a timer was purged, its command delivered again, and by then it had expired",
    30_025: "what was delivered before the broker lost it was acknowledged in the place of another command",
    32_066: "a confirmation that came while the process was frozen counted as known",
    31_507: "letters that came late after a loss of the tail were not waited for",
    90_127: "a letter was dropped for that of a message which had its place before the tail was lost",
    60_262: "an event was taken for one that was refused before, on a subject in another case",
    30_100: "refused messages that were deleted were still remembered, for their two minutes",
    30_335: "a timer waited for a refused message whose letter could not be written",
    30_528: "a file that was busy at the start was tried again and again without a pause",
    30_741: "a stop gave back a message as often as it had been delivered",
    70_012: "a question of one row was taken for a slow one, and a small log emptied for each batch",
    200_729: "what a timer had waited for in vain after a kill was to be waited for again",
    54_000_909: "a callback that was sent again on request and then given up was still waited for",
    57_000_221: "a callback that was due at once came before its tenant heard that it was scheduled",
    20_001_296: "due timers in the hands of requests were asked for again and again without a pause",
    20_003_142: "as 20001296, with two batches at once",
    20_013_179: "the disk failed for one batch, and another published its confirmed timers again",
    20_013_663: "as 20013179, with one timer",
}
"""Seeds that once broke an invariant, and why; some were mended in the service, some in the model. And some
in which a planted bug shows that shows in few."""


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_has_found_stays_mended(shop: Workshop, seed: int) -> None:
    assert run_seed(seed, *shop).violations == []


def test_a_seed_that_raises_is_named_and_does_not_stop_the_others() -> None:
    def raises_at_1(seed: int, *shop: Path) -> Tally:
        if seed == 1:
            raise RuntimeError("a task outlives its process")
        return run_seed(seed, *shop)

    counts, broken, _ = runner.run_seeds(0, 3, raises_at_1)

    assert broken == ["seed 1 raises RuntimeError: a task outlives its process"]
    assert counts["seeds"] == 3


def test_a_seed_tells_the_same_story_every_time(shop: Workshop) -> None:
    first, second = run_seed(7, *shop, verbose=True), run_seed(7, *shop, verbose=True)

    assert first.story == second.story
    assert asdict(first) == asdict(second)


def test_a_seed_tells_the_same_story_in_another_process(shop: Workshop) -> None:
    # The last two of these have looks for both sinks at once, whose order once was that of addresses.
    seeds = (0, 29, 30)
    here = [run_seed(seed, *shop) for seed in seeds]

    code = (
        "from tests.simulation.world import run_seed, workshop\n"
        f"with workshop() as shop: told = [run_seed(seed, *shop) for seed in {seeds}]\n"
        "print(*[tally.trace_hash for tally in told], *[tally.steps for tally in told])"
    )
    there = printed_elsewhere(code)

    assert there == [*(t.trace_hash for t in here), *(str(t.steps) for t in here)]


def test_the_seeds_meet_every_kind_of_fault() -> None:
    met = {fault.kind for seed in SEEDS for fault in make_plan(seed).faults}

    assert met == FAULT_KINDS


def test_a_long_run_tells_what_it_finds_at_once_and_how_far_it_is_every_minute() -> None:
    now_s, out = 0.0, StringIO()
    progress = runner.Progress(out, lambda: now_s)

    progress.told(Counter(seeds=25), ["seed 7 breaks"])
    now_s = 59.0
    progress.told(Counter(seeds=50), [])
    now_s = 61.0
    progress.told(Counter(seeds=75, crashes=9), [])

    assert out.getvalue().splitlines() == ["seed 7 breaks", "after 1 min: 75 seeds, 1 violations"]
