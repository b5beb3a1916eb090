"""The questions of looks for due timers that the broker has not answered yet."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class OpenQuestions:
    """Lets a look read the store while the broker still says which commands wait.

    A command that is applied once the store was read, and acknowledged before the broker answers, would be in
    neither. So whatever is applied while a question is open is acknowledged once that is answered.
    """

    def __init__(self) -> None:
        self._open: dict[asyncio.Event, None] = {}
        """Oldest first. A set has the order of addresses: no seed of the simulation would repeat."""

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Hold back acknowledgements while the block runs."""
        answered = asyncio.Event()
        self._open[answered] = None
        try:
            yield
        finally:
            del self._open[answered]
            answered.set()

    async def answered(self) -> None:
        """Wait for the questions that are open now; later ones see what is applied by now."""
        for question in list(self._open):
            await question.wait()
