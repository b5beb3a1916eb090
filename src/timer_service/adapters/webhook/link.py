"""One connection to a receiver: a request at a time, and no more of the answer than decides."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from timer_service.domain.delivery import Answered, is_success

MAX_RESPONSE_BYTES: Final = 16 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a head, and of all that comes with a body without being part of it: sizes of chunks, trailers."""
_SWITCHING: Final = 101
_WANTED: Final = frozenset({b"retry-after", b"webhook-retry", b"location"})


class ClosedEarly(Exception):
    """The connection ended before an answer."""

    def __init__(self, *, is_silent: bool) -> None:
        super().__init__()
        self.is_silent = is_silent
        """Whether not a byte of one came."""


class NotHttp(Exception):
    """What came back is not an answer."""


class Link(asyncio.Protocol):
    """Writes requests as they are, and reads answers with a compiled parser.

    A client library takes ten times as long: what it offers beyond this is not allowed in callbacks anyway
    (redirects, cookies, compression, a proxy of the environment).
    """

    def __init__(self, lost: Callable[["Link"], None], *, keeps_answers: bool = False) -> None:
        self.is_reusable = True
        """Whether it may carry another request."""
        self.idle_from_s = 0.0
        self.answer: Answered | None = None
        """To the last request, as soon as its head has come."""
        self.said = b""
        """What has come of its body, if it is not a success and such answers are kept."""
        self._keeps_answers = keeps_answers
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._head_only = False

    @property
    def transport(self) -> asyncio.Transport:
        """The connection itself."""
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; a tunnel begins once more when it is encrypted."""
        self._transport = cast("asyncio.Transport", transport)

    async def exchange(self, request: bytes, *, head_only: bool = False) -> Answered:
        """Send a request and return its answer. Raises ClosedEarly and NotHttp.

        The body is read to its end if it is small, so that the connection can be used again. A caller that
        gives up finds in `answer` what has arrived so far.
        """
        if not self.is_reusable:
            raise ClosedEarly(is_silent=True)
        # Another parser for each answer: nothing of the one before is left in it.
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, str] = {}
        self._head_bytes = self._body_bytes = self._rest_bytes = 0
        self._head_only = head_only
        self.answer, self.said = None, b""
        self._ended = asyncio.get_running_loop().create_future()
        self.is_reusable = False  # Until the answer has come whole.
        self.transport.write(request)
        try:
            await self._ended
        finally:
            self._ended = None
            if not self.is_reusable:
                self.abort()
        assert self.answer is not None
        return self.answer

    def abort(self) -> None:
        """Close it at once: whatever comes, nobody waits for it."""
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how does not matter
        """Learn that it is over; an answer that was cut off after its status counts."""
        self.is_reusable = False
        self._lost(self)
        self._end(ClosedEarly(is_silent=self._ended is not None and not self._head_bytes))

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._ended is None or self._ended.done():
            self.abort()  # Nothing was asked: it must not be taken for the answer to the next request.
            return
        if self.answer is None:
            self._head_bytes += len(data)
        else:
            self._rest_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_reusable = self._head_only
        except httptools.HttpParserError:
            self.is_reusable = False
            self._end(NotHttp())
        if self.answer is None and self._head_bytes > MAX_HEAD_BYTES:
            self._end(NotHttp())
        if self._rest_bytes - self._body_bytes > MAX_HEAD_BYTES:
            self._end(None)  # The parser keeps what it reads of a trailer, however long it gets.

    # The parser calls these.

    def on_message_begin(self) -> None:
        """Refuse more answers than requests: the first one counts. What is raised here ends the parser."""
        if self._ended is None or self._ended.done():
            raise NotHttp

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few that matter, the first of each."""
        if name.lower() in _WANTED:
            self._headers.setdefault(name.lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Know the answer, unless it only says that one will come."""
        status = self._parser.get_status_code()
        if status < 200 and status != _SWITCHING:
            self._headers.clear()
            return
        self.answer = Answered(
            status,
            retry_after=self._headers.get(b"retry-after"),
            final=self._headers.get(b"webhook-retry", "").strip().lower() == "no",
            location=self._headers.get(b"location") if 300 <= status < 400 else None,
        )
        if self._head_only:
            self._end(None, is_whole=True)

    def on_body(self, body: bytes) -> None:
        """Read a small body, and no more than that of a large one."""
        self._body_bytes += len(body)
        if self._keeps_answers and self.answer is not None and not is_success(self.answer):
            self.said = (self.said + body)[:MAX_RESPONSE_BYTES]
        if self._body_bytes > MAX_RESPONSE_BYTES:
            self._end(None)

    def on_message_complete(self) -> None:
        """Be done, and perhaps ready for the next request."""
        if self.answer is not None:
            self._end(None, is_whole=self._parser.should_keep_alive())

    def _end(self, error: Exception | None, *, is_whole: bool = False) -> None:
        """End the exchange; once the status has come, it decides."""
        if self._ended is None or self._ended.done():
            return
        if error is not None and self.answer is None:
            self._ended.set_exception(error)
            return
        self.is_reusable = is_whole and not self.transport.get_write_buffer_size()
        self._ended.set_result(None)
