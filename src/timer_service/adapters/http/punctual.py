"""Connections that are bounded in number, and whose requests have heads that are bounded in time and size.

uvicorn takes any, forever: it counts connections only once a request has come on one.
"""

import asyncio
import re
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT_S: Final = 10.0
"""From the connection, or from the answer before, to the end of the next request's headers."""
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_CONNECTIONS: Final = 2_048
_OFFER: Final = re.compile(rb"\nUpgrade:", re.IGNORECASE)
_PASSED_OVER: Final = b"\nX-Offer:"
"""Of the same length, so that a body in which such a line stands, which is no JSON, ends where it ended."""
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class PunctualProtocol(HttpToolsProtocol):
    """Closes a connection that is one too many, or whose next request is not there in time."""

    head_timeout_s = HEAD_TIMEOUT_S
    _deadline: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    """What has come since the last head was complete, or since the last piece of a body."""

    def __init__(self, *args: Any, max_connections: int = MAX_CONNECTIONS, **more: Any) -> None:
        super().__init__(*args, **more)
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; a silent connection holds a file, too, which the store may need."""
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > self._max_connections:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; lines that never end, of headers or of trailers, are not kept."""
        if self.transport.is_closing():
            return
        self._unread_bytes += len(data)
        # We speak no other protocol, which is for us to say; but the parser drops the body of a request that
        # offers one, as clients in Java do by themselves.
        super().data_received(_OFFER.sub(_PASSED_OVER, data))
        if self._unread_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers must be at most {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._unread_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; who answers knows how large it may be."""
        self._unread_bytes = 0
        super().on_body(body)

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
