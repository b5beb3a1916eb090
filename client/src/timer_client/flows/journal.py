"""The journal of runs, in a database of the caller's: the port, and what every journal does alike."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from timer_client.flows.statements import Hold, Memo, Rows, Work

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


async def settle(work: Work[T], run: Callable[..., Awaitable[Rows]]) -> T:
    """Do an operation with a function that runs a statement."""
    try:
        statement = next(work)
        while True:
            statement = work.send(await run(*statement))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
