"""Waits that end in time, whatever they wait for makes of a cancellation."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns, or raise TimeoutError after so many seconds.

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
    """Take the error of a task that nobody waits for any more, so that it is not complained about."""
    if not task.cancelled():
        task.exception()
