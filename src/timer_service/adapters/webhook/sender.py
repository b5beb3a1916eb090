"""Callbacks over HTTP: one time limit for the whole of an attempt, and a bound for all that comes back."""

import asyncio
import socket
import ssl
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from yarl import URL

from timer_service.adapters.callback_headers import HeaderVault
from timer_service.adapters.webhook.connector import ATTEMPT, MAX_KEPT, Attempt, Pace, WatchedConnector
from timer_service.adapters.webhook.failures import result_of
from timer_service.adapters.webhook.guard import MakeSocket, guarded
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.adapters.webhook.message import Message
from timer_service.adapters.webhook.preparing import Preparer
from timer_service.adapters.webhook.resolver import GuardedResolver, LookUp, look_up
from timer_service.domain.delivery import (
    Answered,
    CallbackRequest,
    CallResult,
    TimedOut,
    Trouble,
    Unreachable,
)
from timer_service.targets import AddressRules, read_allowed

MAX_RESPONSE_BYTES: Final = 16 * 1024
KEEP_ALIVE_S: Final = 5.0
"""Short: what is idle holds a file that others may need."""
DNS_CACHE_S: Final = 10

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """How receivers are reached."""

    rules: AddressRules
    proxy: str | None = None
    """An HTTP proxy that all callbacks go through; it then decides which addresses are reached."""
    ca_file: Path | None = None
    """Certificates to trust besides the system's."""
    look_up: LookUp = look_up
    make_socket: MakeSocket = socket.socket
    max_kept: int = MAX_KEPT
    """Connections beyond which a new one is used once."""


@asynccontextmanager
async def open_sender(
    keyring: Keyring, vault: HeaderVault, options: SenderOptions
) -> AsyncIterator["HttpCallbackSender"]:
    """Open the connections to all receivers."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if options.ca_file is not None:
        context.load_verify_locations(cafile=options.ca_file)
    pace = Pace()
    async with (
        _session(options, context, pace, force_close=False) as session,
        _session(options, context, pace, force_close=True) as fresh,
    ):
        yield HttpCallbackSender(Preparer(keyring, vault, options.rules), session, fresh)


def _session(
    options: SenderOptions, context: ssl.SSLContext, pace: Pace, *, force_close: bool
) -> aiohttp.ClientSession:
    # Through a proxy every connection is one to the proxy, which the operator has named.
    rules = options.rules if options.proxy is None else AddressRules(read_allowed("0.0.0.0/0, ::/0"))
    connect = partial(
        WatchedConnector,
        pace,
        max_kept=options.max_kept,
        limit=0,  # The workflow has the limits, and they are fair.
        ssl=context,
        resolver=GuardedResolver(rules, options.look_up),
        ttl_dns_cache=DNS_CACHE_S,
        socket_factory=guarded(rules, options.make_socket),
    )
    return aiohttp.ClientSession(
        connector=connect(force_close=True) if force_close else connect(keepalive_timeout=KEEP_ALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        proxy=options.proxy,
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        skip_auto_headers=("accept-encoding", "content-type"),
    )


class HttpCallbackSender:
    """Signs and sends callbacks; an address is checked in the URL, when it is looked up and when dialled."""

    def __init__(
        self,
        preparer: Preparer,
        session: aiohttp.ClientSession,
        fresh: aiohttp.ClientSession,
    ) -> None:
        self._preparer = preparer
        self._session = session
        self._fresh = fresh
        """Never uses a connection twice."""

    async def send(self, request: CallbackRequest) -> CallResult:
        """Sign and send one request; whatever goes wrong is a result."""
        timeout = request.callback.timeout
        attempt = Attempt()
        ATTEMPT.set(attempt)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                prepared = await self._preparer.prepare_to_send(request)
                return await self._call(prepared, attempt) if isinstance(prepared, Message) else prepared
        except TimeoutError:
            # The status decides: a body that takes too long changes nothing about it.
            return attempt.answer or TimedOut(timeout)
        except Exception as error:
            # The promise is kept even for what nobody has thought of: one bad request must not end a loop.
            kind = type(error).__name__
            log.error("callback.failed", kind=kind, tenant=request.tenant_id, place=_place(error))
            return Unreachable(Trouble.RESET, f"unexpected: {kind}")

    async def _call(self, message: Message, attempt: Attempt) -> CallResult:
        try:
            return await self._exchange(self._session, message, attempt)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            # A receiver may close a connection that it kept just when it is used again. Nothing came back, so
            # the attempt is begun once more, on a new connection.
            if not attempt.is_reused or attempt.reuses > 1:
                return result_of(error)
        except aiohttp.ClientError as error:
            return result_of(error)
        try:
            return await self._exchange(self._fresh, message, attempt)
        except aiohttp.ClientError as error:
            return result_of(error)

    async def _exchange(self, session: aiohttp.ClientSession, message: Message, attempt: Attempt) -> Answered:
        response = await session.request(
            message.method,
            URL(message.url, encoded=True),
            headers=message.headers,
            data=message.body or None,
            allow_redirects=False,
        )
        attempt.answer = answer = _answer(response)
        try:
            await _read_bounded(response)
        finally:
            response.close()  # A connection whose answer was read to its end is kept all the same.
        return answer


def _place(error: Exception) -> str:
    """Return where an error was raised; its text might hold a header."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _answer(response: aiohttp.ClientResponse) -> Answered:
    headers = response.headers
    is_redirect = 300 <= response.status < 400
    return Answered(
        response.status,
        retry_after=headers.get("retry-after"),
        final=headers.get("webhook-retry", "").strip().lower() == "no",
        location=headers.get("location") if is_redirect else None,
    )


async def _read_bounded(response: aiohttp.ClientResponse) -> None:
    """Read a small answer to its end, so that its connection is kept, and no more than that of a large."""
    size = 0
    try:
        while size <= MAX_RESPONSE_BYTES:
            chunk = await response.content.readany()
            if not chunk:
                return
            size += len(chunk)
    except aiohttp.ClientError:
        pass  # It broke off after the status, which has decided already.
