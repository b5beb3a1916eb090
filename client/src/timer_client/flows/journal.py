"""The journal of runs, in a database of the caller's: the port, and what every journal does alike."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from timer_client.flows import statements
from timer_client.flows.model import FlowError, Hold, Memo
from timer_client.flows.statements import Work

T = TypeVar("T")


class Journal(Protocol):
    """Where runs and their steps are recorded; workers on one journal share its runs."""

    async def migrate(self) -> None:
        """Create the tables where they are missing; repeating it changes nothing."""

    async def commit(self, work: Work[T], connection: Any = None) -> T:
        """Do an operation of `statements` in one transaction that is durable when this returns.

        With a connection it joins the transaction that the caller has begun there and will commit.
        """

    async def perform(self, hold: Hold, effect: Callable[[Any], Awaitable[list[Memo]]]) -> None:
        """Commit a worker's effect and the memos that it returns together, or neither.

        `effect` gets the connection of the transaction. Raises Fenced, without calling it, if the run is no
        longer in the worker's hands.
        """


async def settle(work: Work[T], run: Callable[..., Awaitable[statements.Rows]]) -> T:
    """Do an operation with a function that runs a statement."""
    rows: statements.Rows | None = None
    while True:
        try:
            statement = next(work) if rows is None else work.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = await run(*statement)


def settle_now(work: Work[T], run: Callable[..., Awaitable[statements.Rows]]) -> T:
    """Do an operation with a function that never waits."""
    try:
        settle(work, run).send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a statement had to be waited for")


def check_tables(error: Exception) -> None:
    """Raise FlowError that says what to do if an error is that of missing tables."""
    if getattr(error, "sqlstate", "") == "42P01" or "no such table: flow_" in str(error):
        raise FlowError("the tables of the journal are missing: await journal.migrate() at start") from error
