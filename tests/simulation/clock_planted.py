"""Bugs planted into what moves the virtual clock, to see whether the seeds find them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.simulation.planted import Change, rewritten
from timer_service.testing.settling import Settling
from timer_service.testing.walk import Walk

PLANTED: dict[str, Callable[[], Change]] = {
    "time moves on before an event is acknowledged": lambda: rewritten(
        Settling, "_lag", ("if not waiting and not unacknowledged:", "if not waiting:")
    ),
    "counters that are behind are believed": lambda: rewritten(
        Settling, "_lag", ("if delivered >= last_sequence or", "if True or")
    ),
    "time jumps over a due time": lambda: rewritten(
        Walk, "_step", ("min(look.next_due_at or target, target)", "target")
    ),
    "time moves on while commands wait": lambda: rewritten(
        Settling, "_look", ("if commands.messages:", "if False:")
    ),
    "what came due during the look is passed over": lambda: rewritten(
        Settling, "_look", ("if counts.overdue or attempts.found or after != before:", "if False:")
    ),
    "time moves on while a callback is under way": lambda: rewritten(
        Settling,
        "_look",
        ("if callbacks:", "if False:"),
        ("if counts.overdue or attempts.found or after", "if counts.overdue or after"),
    ),
    "time jumps over a retry": lambda: rewritten(
        Settling, "_look", ("(counts.next_due_at, attempts.next_attempt_at)", "(counts.next_due_at,)")
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the block with one bug in what moves the clock."""
    with ExitStack() as stack:
        PLANTED[name]()(stack)
        yield
