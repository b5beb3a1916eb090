"""The simulation proves itself: a bug that is planted on purpose does not stay hidden."""

import pytest

from tests.simulation.crashes import STORIES, undisturbed
from tests.simulation.plan import SEEDS
from tests.simulation.planted import PLANTED, planted
from tests.simulation.test_simulation import FOUND
from tests.simulation.world import Tally, Workshop, run_seed

FAILING = "callbacks that are cancelled, and receivers that fail in every way"
CHANGING = "callbacks that move, expire, are given up and sent again"
IN_VAIN = "commands that come late, and some that came while a timer waited in vain"
CAUGHT_BY: dict[str, int | str] = {
    "mark before publish": "an event stream that is full for a while",
    "acknowledge before commit": "a first start, commands, and more due than a batch",
    "a fresh id for a repetition": "a broker that loses streams, consumer and permissions",
    "earlier than instead of not later than": "a first start, commands, and more due than a batch",
    "no generation guard": "a command between two events and the mark that they share",
    "no redelivery guard": 2,
    "an overtaken command is dropped whole": 8,
    "no new epoch after the broker lost its tail": "a broker that comes back without its newest commands",
    "a message that outlived the loss counts as new": 101,
    "an expired timer fires all the same": "timers that expire, and some that nearly do",
    "which event a timer gets is decided anew at each try": "a firing in doubt, until after it would expire",
    "a verdict is kept after the event is out": "timers that expire, and some that nearly do",
    "a verdict in doubt is taken back": "a firing in doubt, until after it would expire",
    "an expiry has a fresh id each time": "an expiry in doubt",
    "if absent overwrites": "timers that expire, and some that nearly do",
    "a delay counts from the delivery": 70,
    "missing tenant filter on mark": "a broker that loses streams, consumer and permissions",
    "a timer that is being marked is claimed again": "timers that come due one by one on a slow disk",
    "a timer that was changed is fired as it was read": "a first start, commands, and more due than a batch",
    "an unmarked timer is given back before its mark": "timers that come due one by one on a slow disk",
    "a mark that fails is forgotten": "timers that come due one by one on a slow disk",
    "a mark that is lost with its group counts as done": "timers that come due one by one on a slow disk",
    "no bound on what is published and not marked": 21,
    "what was changed before its mark is not looked for": 45,
    "missing tenant filter on get": 1,
    "wake-up checked before waiting": 201,
    "cancel without tombstone": "an orderly stop with work in hand, and retention",
    "due time rounded down": 0,
    "a new due time keeps the generation": "a first start, commands, and more due than a batch",
    "a reached timer is scheduled again": "an orderly stop with work in hand, and retention",
    "terminate before the letter": "a first start, commands, and more due than a batch",
    "a letter that cannot be written is dropped": "letters that cannot be written",
    "a refused message is given back without a delay": "letters that cannot be written",
    "a pause without an end": "an event stream that is full for a while",
    "a stream that takes nothing is never tried again": "an event stream that is full for a while",
    "purge forgets the retention": 1,
    "a clock that is rounded up": 8,
    "a leap that nobody can confirm": "a clock that is behind at the start, and set right at the end",
    "a stop cuts off the batch in hand": "a stop between an event and its mark",
    "a pull that is lost is waited for forever": "nothing, until a pull is lost",
    "an unconfirmed event counts as confirmed": "a broker that loses streams, consumer and permissions",
    "an error inside a batch is forgotten": 10,
    "a batch that the broker left open counts as confirmed": 10,
    "fire without asking what waits": 2,
    "what is applied while the broker is asked is acknowledged at once": 32,
    "a silent command stream is waited for forever": "a command stream that answers no question for long",
    "a silent command stream counts as empty at once": "a command stream that answers no question for long",
    "whatever was stored at the look before counts as applied": 2,
    "who has waited in vain never waits again": IN_VAIN,
    "what came while a timer waited in vain is given up too": IN_VAIN,
    "what nobody has come to yet is given up too": (
        "a command that nobody has come to yet, for which each timer waits"
    ),
    "sleep without regard to the poll interval": (
        "a clock that is behind at the start, and set right at the end"
    ),
    "a look from memory puts off the poll": 1,
    "a request is answered before the commit": "requests that meet each other, commands and firings",
    "a request changes a timer that is being fired": "a request between an event and its mark",
    "a delivery is opened outside the transaction of its mark": (
        "a crash right after callbacks were handed over"
    ),
    "a fresh id for each attempt": FAILING,
    "an open breaker uses up attempts": FAILING,
    "an attempt before the receiver allows it": FAILING,
    "an attempt before its time": FAILING,
    "what has been handed over is cancelled": FAILING,
    "an outcome that cannot be kept is forgotten": FAILING,
    "a callback is sent although it has expired": CHANGING,
    "an outcome that comes late counts for what was abandoned": CHANGING,
    "whatever a receiver leaves open is waited for by all": (
        "receivers that hang, and others that must not wait for them"
    ),
    "two requests for one timer share a transaction": "two requests for one timer at once",
}
"""Where each bug shows: a seed, or one of the stories. `python -m tests.simulation --catch BUG` finds one.

Without a bug they are clean: the seeds are among those of the default run, the stories have a test each.
"""


def _run(where: int | str, shop: Workshop) -> Tally:
    return undisturbed(where, *shop) if isinstance(where, str) else run_seed(where, *shop)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(shop: Workshop, bug: str) -> None:
    where = CAUGHT_BY[bug]

    with planted(bug):
        violations = _run(where, shop).violations

    assert violations, f"{bug!r} breaks no invariant in {where!r}: --catch looks for another place"


def test_whatever_catches_a_bug_is_run_without_it_too() -> None:
    seeds = {where for where in CAUGHT_BY.values() if isinstance(where, int)}
    stories = {where for where in CAUGHT_BY.values() if isinstance(where, str)}

    assert seeds <= {*SEEDS, *FOUND}
    assert stories <= set(STORIES)


def test_no_planted_bug_stays_behind(shop: Workshop) -> None:
    for bug in PLANTED:
        with planted(bug):
            pass

    assert run_seed(0, *shop).violations == []
