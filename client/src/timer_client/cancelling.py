"""Notice a cancellation that was lost on the way.

nats-py waits with `asyncio.wait_for`, and that of Python 3.11 returns an answer that comes in at the same
moment as a cancellation, and forgets the cancellation. Who sleeps for three days would then go on sleeping.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise CancelledError at the end if the task was cancelled in the block and nobody said so."""
    task = asyncio.current_task()
    # What cleans up after a cancellation was cancelled before: that does not count again.
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
