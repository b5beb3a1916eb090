"""Send what callers are told if there is no answer."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final

from nats.errors import Error as NatsError
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from timer_service.adapters.endpoints import ApiError
from timer_service.adapters.nats.client import Outgoing, TolerantClient, head_of

RETRY_HEADER: Final = "Retry-After"
MAX_UNSENT: Final = 10_000
GATHER_S: Final = 0.005
"""Errors gather this long: a flood is answered in 200 pieces per second at most, whatever its rate."""
SEND_TIMEOUT_S: Final = 5.0
"""A connection that is lost while the socket is full never says that it has taken all."""


def error_headers(error: ApiError) -> dict[str, str]:
    """Return the headers of an error, as every NATS micro service sends them."""
    return _headers(error.code, error.text, math.ceil(error.retry_after_s))


@lru_cache(maxsize=64)  # A flood gets the same answer again and again.
def _headers(code: str, text: str, retry_after_s: int) -> dict[str, str]:
    # Neither line break nor what is not ASCII: a header has no escape for either.
    printable = text.encode("ascii", "backslashreplace").decode().replace("\r", " ").replace("\n", " ")
    headers = {ERROR_CODE_HEADER: code, ERROR_HEADER: printable}
    if retry_after_s:
        headers[RETRY_HEADER] = str(retry_after_s)
    return headers


class Refusals:
    """Errors that are sent at once, many in one piece, so that a flood of them costs little."""

    def __init__(self, send_timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._send_timeout_s = send_timeout_s
        self._unsent: list[Outgoing] = []
        self._arrived = asyncio.Event()

    def tell(self, reply: str, headers: dict[str, str]) -> None:
        """Send an error with the next ones at hand; beyond all bounds it is dropped."""
        if len(self._unsent) < MAX_UNSENT:
            self._unsent.append(Outgoing(reply, b"", head_of(headers)))
            self._arrived.set()

    async def keep_sending(self, client: Callable[[], TolerantClient | None]) -> None:
        """Send whatever comes in, until cancelled."""
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_S)
            await self.flush(client())

    async def flush(self, client: TolerantClient | None) -> None:
        """Send what has not been sent."""
        unsent, self._unsent = self._unsent, []
        self._arrived.clear()
        if unsent and client is not None:
            with suppress(NatsError, OSError):  # The caller, or the broker, is gone.
                async with asyncio.timeout(self._send_timeout_s):
                    await client.publish_all(unsent)
