"""Waits: for the first of several things, for a limited time, and longer from try to try.

Nothing that is started here outlives its starter, except what swallows its cancellation.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from timer_service.domain.errors import CriticalError

FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 1.0
"""Between two tries of a store that fails."""
CANCEL_AGAIN_S: Final = 2.0
"""Now and then a library swallows a cancellation: after this long it is repeated."""

T = TypeVar("T")


class Backoff:
    """Growing waits, each with jitter, so that many instances do not return in step."""

    def __init__(
        self, chance: Callable[[], float], first_s: float = FIRST_BACKOFF_S, max_s: float = MAX_BACKOFF_S
    ) -> None:
        self._chance = chance
        self._first_s = self._seconds = first_s
        self._max_s = max_s

    def next_s(self) -> float:
        """Return how long to wait before the next try."""
        seconds, self._seconds = self._seconds, min(self._seconds * 2, self._max_s)
        return seconds * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """Begin again with the shortest wait: a try has worked."""
        self._seconds = self._first_s


class Over(Exception):
    """The event came before the step was done."""


async def unless(over: asyncio.Event, step: Coroutine[Any, Any, T]) -> T:
    """Return what the step returns, or end it and raise Over once the event is set.

    A step that is done by then counts: what it returns may be work that was taken from somewhere.
    """
    async with owned(step, over.wait()) as (work, ending):
        await first_done(work, ending)
        if not work.done():
            raise Over
        result: T = work.result()
        return result


async def first_done(*tasks: "asyncio.Task[Any]") -> None:
    """Wait until one of the tasks is done."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns, or raise TimeoutError after `seconds`.

    nats-py swallows a cancellation while a full socket holds it up, and `asyncio.timeout` then waits on. Here
    the wait is outside: what does not end is cancelled and left to end with its connection.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_look)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not task.done():
        raise TimeoutError
    return task.result()


def _look(task: asyncio.Future[Any]) -> None:
    """Take the error of a task that nobody waits for, so that asyncio does not complain about it."""
    if not task.cancelled():
        task.exception()


@asynccontextmanager
async def owned(
    *steps: Coroutine[Any, Any, Any], cancel_again_s: float = CANCEL_AGAIN_S
) -> AsyncIterator[tuple["asyncio.Task[Any]", ...]]:
    """Run steps beside the block; at its end each of them is over, and no critical error is swallowed."""
    tasks = tuple(asyncio.ensure_future(step) for step in steps)
    try:
        yield tasks
    finally:
        await _end(tasks, cancel_again_s)
        for task in tasks:
            if not task.cancelled() and (critical := first_critical(task.exception())) is not None:
                raise critical


async def _end(tasks: Iterable["asyncio.Task[Any]"], cancel_again_s: float) -> None:
    """Cancel what is not done and wait for it, even if we are cancelled ourselves meanwhile."""
    interruption: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=cancel_again_s)
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None:
        raise interruption


def first_critical(error: BaseException | None) -> CriticalError | None:
    """Return the critical error that is among errors which came together."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(first_critical, error.exceptions)), None)
    return error if isinstance(error, CriticalError) else None
