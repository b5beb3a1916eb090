"""Callbacks over HTTP: one time limit for the whole of an attempt, and a bound for all that comes back."""

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from timer_service.adapters.callback_headers import HeaderVault, secret_values
from timer_service.adapters.webhook.connections import Connections, Routing
from timer_service.adapters.webhook.failures import NoConnection, result_of
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.adapters.webhook.link import ClosedEarly, Link, NotHttp
from timer_service.adapters.webhook.message import Message, wire_bytes
from timer_service.adapters.webhook.preparing import Preparer
from timer_service.adapters.webhook.said import kept_answer, without_secrets
from timer_service.domain.delivery import (
    Answered,
    CallbackRequest,
    CallResult,
    TimedOut,
    Trouble,
    Unreachable,
)
from timer_service.domain.errors import StoreBusy
from timer_service.domain.messages import TenantId
from timer_service.targets import Target, read_target

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_sender(
    keyring: Keyring, vault: HeaderVault, routing: Routing, *, ca_file: Path | None = None
) -> AsyncIterator["HttpCallbackSender"]:
    """Open the connections to all receivers; `ca_file` is trusted besides the system's certificates."""
    # One for all connections: to load the certificates takes as long as a hundred handshakes.
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    connections = Connections(routing, context)
    try:
        yield HttpCallbackSender(Preparer(keyring, vault, routing.rules), connections)
    finally:
        connections.close()


@dataclass(slots=True)
class _Seen:
    """What became known about one attempt."""

    answer: Answered | None = None
    said: bytes = b""
    """What has come of its body, if that is to be kept."""
    sent: dict[str, str] = field(default_factory=dict)
    """The headers of the request."""

    def result(self, result: CallResult, request: CallbackRequest) -> CallResult:
        """Return a result with what the receiver said, without the secrets that it was sent."""
        if not isinstance(result, Answered) or not (self.said or result.location):
            return result
        secrets = secret_values(request.callback.headers, self.sent)
        location = result.location and without_secrets(result.location, secrets)
        return replace(result, said=kept_answer(self.said, secrets), location=location)


class HttpCallbackSender:
    """Signs and sends callbacks; an address is checked in the URL, when it is looked up and when dialled."""

    def __init__(self, preparer: Preparer, connections: Connections) -> None:
        self._preparer = preparer
        self._connections = connections

    async def send(self, request: CallbackRequest) -> CallResult:
        """Sign and send one request; whatever goes wrong is a result."""
        timeout = request.callback.timeout
        seen = _Seen()
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                prepared = await self._preparer.prepare_to_send(request)
                if not isinstance(prepared, Message):
                    return prepared
                seen.sent = prepared.headers
                return seen.result(await self._call(prepared, request.tenant_id, seen), request)
        except TimeoutError:
            if not seen.sent:  # Nobody was asked yet: our own secrets came too late.
                return Unreachable(Trouble.STORE, StoreBusy.public)
            # The status decides: a body that takes too long changes nothing about it.
            return seen.result(seen.answer or TimedOut(timeout), request)
        except Exception as error:
            # The promise is kept even for what nobody has thought of: one bad request must not end a loop.
            kind = type(error).__name__
            log.error("callback.failed", kind=kind, tenant=request.tenant_id, place=_place(error))
            return Unreachable(Trouble.RESET, f"unexpected: {kind}")

    async def _call(self, message: Message, tenant_id: TenantId, seen: _Seen) -> CallResult:
        target = read_target(message.url)
        is_in_full = self._connections.proxy is not None and target.scheme == "http"
        written = wire_bytes(message, in_full=is_in_full, proxy_headers=self._connections.proxy_headers)
        try:
            kept = self._connections.kept(target)
            if kept is not None:
                try:
                    return await self._exchange(target, kept, written, seen)
                except ClosedEarly as error:
                    # A receiver may close a connection that it kept just when it is used again. Nothing came
                    # back, so the attempt is begun once more, on a new connection.
                    if not error.is_silent:
                        raise
            link = await self._connections.new(target, tenant_id)
            return await self._exchange(target, link, written, seen)
        except (NoConnection, ClosedEarly, NotHttp) as error:
            return result_of(error)

    async def _exchange(self, target: Target, link: Link, written: bytes, seen: _Seen) -> Answered:
        try:
            return await link.exchange(written)
        finally:
            seen.answer, seen.said = link.answer, link.said
            self._connections.give_back(target, link)


def _place(error: Exception) -> str:
    """Return where an error was raised; its text might hold a header."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
