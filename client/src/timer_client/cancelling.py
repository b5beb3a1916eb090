"""Cancellations that are lost on the way, come from elsewhere, or must not abandon what was begun.

nats-py waits with `asyncio.wait_for`, and that of Python 3.11 returns an answer that comes in at the same
moment as a cancellation, and forgets the cancellation. Who sleeps for three days would then go on sleeping.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise CancelledError at the end if the task was cancelled in the block and nobody said so."""
    task = asyncio.current_task()
    # What cleans up after a cancellation was cancelled before: that does not count again.
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


async def uncancelled(work: Awaitable[T]) -> T:
    """Return what comes of work; if what it waits for was cancelled by somebody else, that is an error."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("somebody else has cancelled what this has waited for") from error


async def to_the_end(work: Awaitable[T]) -> T:
    """Return what comes of something that goes on when nobody waits; if cancelled, wait for its end first."""
    job = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        while not job.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({job})
        if not job.cancelled():
            job.exception()  # Nobody else looks at it.
        raise
