"""The body of a request as it comes, also when it was refused before it had arrived whole."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

LINGER_S: Final = 10.0
LINGER_PIECE_S: Final = 1.0
"""For the next piece of what is dropped."""
MAX_DROPPED_BYTES: Final = 8 * 1024 * 1024

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Incoming:
    """Says whether there is more to come; called for one piece after the other."""

    def __init__(self, receive: Receive, *, is_sent: bool) -> None:
        self._receive = receive
        self._has_more = is_sent
        """A client that waits until it is told to go on (Expect: 100-continue) has sent nothing."""

    async def __call__(self) -> dict[str, Any]:
        """Return the next piece as ASGI has it."""
        message = await self._receive()
        self._has_more = message.get("more_body", False)
        return message

    def give_up(self) -> None:
        """Expect no more: what is still to come is too slow."""
        self._has_more = False

    async def drop_rest(self) -> None:
        """Drop what is still on its way, within bounds.

        To close a connection before it has come would reset it, and many clients would never see our answer.
        """
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while self._has_more and dropped < MAX_DROPPED_BYTES:
                    async with asyncio.timeout(LINGER_PIECE_S):
                        dropped += len((await self()).get("body", b""))
