"""Bugs planted into durable functions on purpose, to see whether the crashes find them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.simulation.flow_story import Plan
from tests.simulation.planted import Change, replaced, rewritten, sql, together
from timer_client.flows import Run, SqliteJournal, Worker, statements

ONLY_TOLD_WHILE_IT_WAITS = """\
UPDATE flow_steps SET done = 1, value = $4
WHERE scope = $1 AND run_id = $2 AND name = $3 AND kind = 'wait' AND done = 0
RETURNING name, kind, wake, due_ms, done, value"""


TEN_YEARS_NS = 10 * 31_536_000_000_000_000
_COMMIT_TOO_EARLY = """\
                self._connection.commit()
                self._connection.execute("BEGIN IMMEDIATE")
"""


async def _wall_clock(_: Worker) -> int:
    """Return the time of a machine that is years behind."""
    return (time.time_ns() - TEN_YEARS_NS) // 1_000_000


PLANTED: dict[str, tuple[Callable[[], Change], str, Plan]] = {
    "ack when fenced": (
        lambda: rewritten(
            Worker,
            "_go_on",
            ('"flow.fenced", run_id)\n            raise', '"f", run_id)\n            return False'),
        ),
        "self.flows.journal.commit(take(",
        Plan(overtaken_for=40),
    ),
    "a used number is armed again": (
        lambda: sql("_KICK", "coalesce(max(wake), -1) + 1", "coalesce(max(wake), 0)", statements),
        "",
        Plan(),
    ),
    "not later than, in place of done": (
        lambda: sql("_WAKE_STEPS", "wake = $3", "wake <= $3", statements),
        "",
        Plan(),
    ),
    "the wall clock in the reconciler": (
        lambda: replaced(Worker, "ask_time", _wall_clock),
        "self._record(memo := _done(",
        Plan(loses_event=True),
    ),
    "a memo after the effect, outside its transaction": (
        lambda: rewritten(
            SqliteJournal,
            "perform",
            (
                "await effect(self._connection)\n",
                "await effect(self._connection)\n" + _COMMIT_TOO_EARLY,
            ),
        ),
        "save(hold, memos)",
        Plan(),
    ),
    "a signal is lost before the wait": (
        lambda: replaced(statements, "_SIGNAL", ONLY_TOLD_WHILE_IT_WAITS),
        "",
        Plan(),
    ),
    "what a dead worker has recorded is not armed": (
        lambda: rewritten(Worker, "handle", ("if firing.deliveries > 1:", "if False:")),
        "flows.arm(self.hold.id, recorded)",
        Plan(),
    ),
}
"""How each is planted, where the process waits when it dies, and how; without a place nobody has to die."""


PLANTED_IN_SEEDS: dict[str, Callable[[], Change]] = {
    "a worker that was overtaken is not fenced": lambda: together(
        rewritten(statements, "held", ("if run.epoch != hold.epoch:", "if False:")),
        rewritten(SqliteJournal, "perform", ("await self._in_thread(self._settle, held(hold))", "pass")),
    ),
    "a wait that is told meanwhile is armed": lambda: rewritten(
        Worker, "_go_on", ("self.flows.arm(run_id, new)", "self.flows.arm(run_id, turn.new)")
    ),
    "a failure that was caught before branches is forgotten": lambda: rewritten(
        Run,
        "gather",
        ('{name}/", self.caught)', '{name}/")'),
        ("self._turn.new += self.caught if self._has_left else []", "pass"),
    ),
    "a run in hand does not look again": lambda: sql(
        "_ABSORB", "woken = woken + 1", "woken = woken", statements
    ),
}
"""Bugs that only chance has a place for: two workers, or what happens while a run is in hand."""
CAUGHT_BY_SEEDS = {
    "a worker that was overtaken is not fenced": 14,
    "a wait that is told meanwhile is armed": 0,
    "a failure that was caught before branches is forgotten": 20,
    "a run in hand does not look again": 0,
    "a used number is armed again": 1,
    "not later than, in place of done": 1,
}
"""A seed that catches each; some of the bugs above are caught by seeds too."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the block with one bug in durable functions."""
    with ExitStack() as stack:
        plant = PLANTED[name][0] if name in PLANTED else PLANTED_IN_SEEDS[name]
        plant()(stack)
        yield
