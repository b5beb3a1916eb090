"""Bugs planted into durable functions on purpose, to see whether the crashes find them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.simulation.flow_crashes import Plan
from tests.simulation.planted import Change, replaced, rewritten, sql
from timer_client.flows import Flows, SqliteJournal, Worker, reconcile, statements

ONLY_TOLD_WHILE_IT_WAITS = """\
UPDATE flow_steps SET done = 1, value = $4
WHERE scope = $1 AND run_id = $2 AND name = $3 AND kind = 'wait' AND done = 0 RETURNING wake, due_ms"""


_COMMIT_TOO_EARLY = """\
                self._connection.commit()
                self._connection.execute("BEGIN IMMEDIATE")
"""


async def _wall_clock(_: Flows) -> int:
    return time.time_ns() // 1_000_000


def _together(*changes: Change) -> Change:
    def plant(stack: ExitStack) -> None:
        for change in changes:
            change(stack)

    return plant


PLANTED: dict[str, tuple[Callable[[], Change], str, Plan]] = {
    "ack when fenced": (
        lambda: rewritten(
            Worker,
            "_go_on",
            ('"flow.fenced", run_id)\n            raise', '"f", run_id)\n            return False'),
        ),
        "taken = await self._journal.commit(",
        Plan(overtaken_for=3),
    ),
    "a used number is armed again": (
        lambda: rewritten(statements, "_kick", ("run.wake + 1", "run.wake")),
        "",
        Plan(),
    ),
    "not later than, in place of done": (
        lambda: sql("_WAKE_STEPS", "wake = $3", "wake <= $3", statements),
        "",
        Plan(),
    ),
    "the wall clock in the reconciler": (
        lambda: replaced(reconcile, "service_time_ms", _wall_clock),
        "",
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
        "self._journal.perform(",
        Plan(),
    ),
    "a signal is lost before the wait": (
        lambda: _together(
            replaced(statements, "_SIGNAL", ONLY_TOLD_WHILE_IT_WAITS),
            rewritten(
                statements,
                "signal",
                ("if not rows:", "if not rows:\n        return False, None, None\n    if not rows:"),
            ),
        ),
        "",
        Plan(),
    ),
    "what a dead worker has recorded is not armed": (
        lambda: rewritten(Worker, "handle", ("if firing.deliveries > 1:", "if False:")),
        "self._guarded(self._arm(new))",
        Plan(),
    ),
}
"""How each is planted, where the process waits when it dies, and how; without a place nobody has to die."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the block with one bug in durable functions."""
    with ExitStack() as stack:
        PLANTED[name][0]()(stack)
        yield
