"""Connections to receivers: dialled under guard, kept for a while, and a pace for TLS handshakes.

A handshake takes a millisecond of the event loop that everything shares.
"""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import aiohappyeyeballs

from timer_service.adapters.webhook import failures
from timer_service.adapters.webhook.guard import AddressInfo, MakeSocket, guarded
from timer_service.adapters.webhook.link import Link
from timer_service.adapters.webhook.resolver import LOOKUP_TIMEOUT_S, GuardedResolver, LookUp, look_up
from timer_service.domain.messages import TenantId
from timer_service.targets import AddressRules, Target, read_allowed, read_target

MAX_IN_A_ROW: Final = 8
PAUSE_S: Final = 0.005
MAX_KEPT: Final = 512
"""Connections, idle ones among them, beyond which a new one is used once."""
KEEP_ALIVE_S: Final = 5.0
"""Short: what is idle holds a file that others may need."""
SECOND_ADDRESS_AFTER_S: Final = 0.25
"""How long the first address of a name is waited for before the next one is dialled too (RFC 8305)."""


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


@dataclass(frozen=True, slots=True)
class Routing:
    """How receivers are reached."""

    rules: AddressRules
    proxy: str | None = None
    """An HTTP proxy that all callbacks go through; it then decides which addresses are reached."""
    proxy_login: str | None = field(default=None, repr=False)
    """What the proxy asks for, as user:password."""
    look_up: LookUp = look_up
    lookup_timeout_s: float = LOOKUP_TIMEOUT_S
    make_socket: MakeSocket = socket.socket
    max_kept: int = MAX_KEPT
    keeps_answers: bool = False
    """Whether to hand on what a receiver says that does not take a callback."""


class Connections:
    """Makes connections, and keeps those that are idle for the next request to the same receiver."""

    def __init__(self, routing: Routing, context: ssl.SSLContext) -> None:
        self.proxy = None if routing.proxy is None else _proxy_target(routing.proxy)
        self.proxy_headers = _login_headers(routing.proxy_login)
        """For the proxy alone: what goes through a tunnel never has them."""
        # Through a proxy every connection is one to the proxy, which the operator has named.
        rules = routing.rules if self.proxy is None else AddressRules(read_allowed("0.0.0.0/0, ::/0"))
        self._names = GuardedResolver(rules, routing.look_up, routing.lookup_timeout_s)
        self._socket_for = guarded(rules, routing.make_socket)
        self._context = context
        self._max_kept = routing.max_kept
        self._keeps_answers = routing.keeps_answers
        self._pace = Pace()
        self._open: set[Link] = set()
        self._idle: defaultdict[str, list[Link]] = defaultdict(list)
        self._sweep: asyncio.TimerHandle | None = None

    def kept(self, target: Target) -> Link | None:
        """Return an idle connection, the one used last; None if there is none."""
        idle = self._idle.get(target.origin)
        now_s = asyncio.get_running_loop().time()
        while idle:
            link = idle.pop()
            if link.is_reusable and now_s - link.idle_from_s < KEEP_ALIVE_S:
                return link
            link.abort()
        return None

    async def new(self, target: Target, tenant_id: TenantId) -> Link:
        """Connect for a tenant. Raises NoConnection, which says how far it came."""
        if target.scheme == "https":
            await self._pace.turn()
        dialled = await self._dial(self.proxy or target, tenant_id)
        link = Link(self._open.discard, keeps_answers=self._keeps_answers)
        connect = partial(asyncio.get_running_loop().create_connection, lambda: link, sock=dialled)
        try:
            if target.scheme == "http":
                await connect()
            elif self.proxy is None:
                await connect(ssl=self._context, server_hostname=target.host)
            else:
                await connect()
                await self._tunnel(link, target)
        except (OSError, ssl.SSLError) as error:
            raise failures.no_handshake(error) from error
        if link.is_reusable:  # Where something else was urgent, it may be lost by the time that we go on.
            self._open.add(link)
        return link

    def give_back(self, target: Target, link: Link) -> None:
        """Keep a connection for the next request, unless very many are open.

        Idle ones to very many receivers would use up the files that the store and the broker need, too.
        """
        if not link.is_reusable or len(self._open) > self._max_kept:
            link.abort()
            return
        loop = asyncio.get_running_loop()
        link.idle_from_s = loop.time()
        self._idle[target.origin].append(link)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP_ALIVE_S, self._drop_idle)

    def close(self) -> None:
        """Close all of them."""
        if self._sweep is not None:
            self._sweep.cancel()
        for link in list(self._open):
            link.abort()

    def _drop_idle(self) -> None:
        """Close what was not used for long."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        for origin, links in list(self._idle.items()):
            fresh = [each for each in links if loop.time() - each.idle_from_s < KEEP_ALIVE_S]
            for link in set(links) - set(fresh):
                link.abort()
            if fresh:
                self._idle[origin] = fresh
                self._sweep = self._sweep or loop.call_later(KEEP_ALIVE_S, self._drop_idle)
            else:
                del self._idle[origin]

    async def _dial(self, target: Target, tenant_id: TenantId) -> socket.socket:
        """Connect a socket to the first address that answers; each is checked when it is dialled."""
        try:
            addresses = (
                [target.address]
                if target.address
                else await self._names.resolve(tenant_id, target.host, target.port)
            )
        except OSError as error:
            raise failures.not_found(error) from error
        if not addresses:
            raise failures.not_found(OSError("the name has no address"))
        try:
            return await aiohappyeyeballs.start_connection(
                [_info(address, target.port) for address in addresses],
                happy_eyeballs_delay=SECOND_ADDRESS_AFTER_S,
                interleave=1,
                socket_factory=self._socket_for,
            )
        except OSError as error:
            raise failures.not_dialled(error, is_proxy=self.proxy is not None) from error

    async def _tunnel(self, link: Link, target: Target) -> None:
        """Ask the proxy for a way to a receiver, and speak TLS with the receiver through it."""
        place = target.origin.removeprefix("https://")
        try:
            lines = [f"CONNECT {place} HTTP/1.1", f"host: {place}", *self.proxy_headers]
            answer = await link.exchange("\r\n".join([*lines, "", ""]).encode(), head_only=True)
            if not 200 <= answer.status < 300:
                raise failures.proxy_refused(answer.status)
            encrypted = await asyncio.get_running_loop().start_tls(
                link.transport, link, self._context, server_hostname=target.host
            )
        except BaseException:
            link.abort()
            raise
        assert encrypted is not None
        link.connection_made(encrypted)


def _proxy_target(url: str) -> Target:
    """Read the address of a proxy, which may be any that the operator names."""
    parts = urlsplit(url)
    return read_target(f"http://{parts.netloc}/")


def _login_headers(login: str | None) -> tuple[str, ...]:
    if login is None:
        return ()
    return (f"proxy-authorization: Basic {b64encode(login.encode()).decode()}",)


def _info(address: str, port: int) -> AddressInfo:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
