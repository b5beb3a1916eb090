"""Connections on which the head of a request has to arrive in time: uvicorn waits for it forever."""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S: Final = 10.0
"""From the connection, or from the answer before, to the end of the next request's headers."""


class PunctualProtocol(H11Protocol):
    """Closes a connection whose next request is not there in time, however it trickles in."""

    head_timeout_s = HEAD_TIMEOUT_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._wait_for_head()
        super().on_response_complete()

    def _wait_for_head(self) -> None:
        self._wait_no_more()
        self._deadline = self.loop.call_later(self.head_timeout_s, self._close_if_idle)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
