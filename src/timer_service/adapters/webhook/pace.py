"""A pace for TLS handshakes, each of which takes a millisecond of the event loop that everything shares."""

import asyncio
from typing import Final

MAX_IN_A_ROW: Final = 8
PAUSE_S: Final = 0.005


class Pace:
    """Lets a few begin at a time; in the pauses the loop turns to everything else.

    Nobody holds a place: a receiver that never answers delays the next one by no more than a pause.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Lock()
        self._left = MAX_IN_A_ROW
        self._last_s = 0.0

    async def turn(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        async with self._turns:
            if loop.time() - self._last_s > PAUSE_S:
                self._left = MAX_IN_A_ROW
            if self._left == 0:
                # On a busy loop a pause takes longer by itself.
                await asyncio.sleep(PAUSE_S)
                self._left = MAX_IN_A_ROW
            self._left -= 1
            self._last_s = loop.time()
