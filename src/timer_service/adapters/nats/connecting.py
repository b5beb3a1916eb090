"""Finds a server to connect to: the configured ones first, then those that the last session announced."""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoServersError

from timer_service.adapters.nats.client import TolerantClient
from timer_service.addresses import without_credentials
from timer_service.domain.errors import BrokerRefused
from timer_service.waiting import within

PING_INTERVAL_S: Final = 5
CONNECT_TIMEOUT_S: Final = 2
"""For each step: to open the connection, to read the first line, to shake hands, to get a pong."""
ATTEMPT_TIMEOUT_S: Final = 5.0
LEARNT_ROUND_S: Final = 5.0
"""All learnt servers together: however many of them are dead, the configured ones soon have their turn."""
CLOSE_TIMEOUT_S: Final = 2.0

_FAILURES: Final = (NatsError, OSError, TimeoutError)


class Connector:
    """Makes clients; remembers which other servers a session announced, until the next one does."""

    def __init__(
        self,
        connect: Mapping[str, Any],
        chance: Callable[[], float],
        on_error: Callable[[Exception], Awaitable[None]],
        on_closed: Callable[[], Awaitable[None]],
        *,
        make_client: Callable[[], TolerantClient] = TolerantClient,
        ping_interval_s: int = PING_INTERVAL_S,
    ) -> None:
        self._connect = connect
        self._chance = chance
        self._on_error = on_error
        self._on_closed = on_closed
        self._make_client = make_client
        self._ping_interval_s = ping_interval_s
        self._learnt: list[dict[str, Any]] = []
        self._here: ParseResult | None = None
        self._tls_name: str | None = None
        self._is_known = False
        self.is_connecting = False

    @property
    def learnt(self) -> list[str]:
        """The addresses that the last session announced."""
        return [address for options in self._learnt for address in options["servers"]]

    async def connect(self) -> TolerantClient:
        """Return a connected client, or raise the most telling of the errors."""
        self.is_connecting = True
        try:
            return await self._first([{"servers": [one]} for one in self._connect["servers"]])
        except _FAILURES as error:
            if not self._learnt:
                raise
            with suppress(*_FAILURES):
                return await within(LEARNT_ROUND_S, self._first(self._learnt))
            raise error from None
        finally:
            self.is_connecting = False

    def learn(self, client: TolerantClient) -> None:
        """Keep the addresses that this session announced, and no others."""
        # A client that is closed no longer knows where it was connected to.
        here = self._here = client.connected_url or self._here
        if here is None or here.scheme not in ("nats", "tls"):
            return
        known = {_host(address) for address in self._connect["servers"]}
        told = [address for address in client.told_servers if address not in known]
        if _host(here.geturl()) in known:
            self._tls_name = here.hostname
        self._learnt = [learnt_options(here, self._tls_name, address) for address in told]

    async def _first(self, candidates: Sequence[dict[str, Any]]) -> TolerantClient:
        """Connect to any, in random order, so that many instances spread over the servers."""
        telling: Exception = NoServersError()
        shuffled = sorted(candidates, key=lambda _: self._chance()) if len(candidates) > 1 else candidates
        for options in shuffled:
            try:
                return await self._try(options)
            except _FAILURES as error:
                if not isinstance(error, NoServersError):
                    telling = error
        raise telling

    async def _try(self, options: dict[str, Any]) -> TolerantClient:
        client = self._make_client()
        try:
            await within(
                ATTEMPT_TIMEOUT_S,
                client.connect(
                    **{**self._connect, **options},
                    name="timer-service",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    ping_interval=self._ping_interval_s,
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                ),
            )
        except BaseException as error:
            await close(client)
            if not self._is_known and is_refusal(error):
                shown = ", ".join(map(without_credentials, options["servers"]))
                raise BrokerRefused(
                    f"the broker at {shown} does not accept our credentials ({error}): "
                    "check TIMER_BROKER_USER and _PASSWORD, _TOKEN, _CREDS or _NKEY"
                ) from error
            raise
        self._is_known = True
        self.learn(client)
        return client


def learnt_options(here: ParseResult, tls_name: str | None, address: str) -> dict[str, Any]:
    """Return how to reach an address that the server `here` announced.

    It has the credentials of our own address. Where it is a number, its certificate is that of the name which
    we know: a certificate rarely holds numbers.
    """
    login, at, _ = here.netloc.rpartition("@")
    options: dict[str, Any] = {"servers": [f"{here.scheme}://{login}{at}{address}"]}
    if tls_name is not None and _is_number(address):
        options["tls_hostname"] = tls_name
    return options


def is_refusal(error: BaseException) -> bool:
    """Return whether the broker does not want us; a busy one only had no time to look at us."""
    text = str(error).lower()
    return "authorization" in text or ("authentication" in text and "timeout" not in text)


async def close(client: Client) -> None:
    """Close a client, in whatever state it is."""
    with suppress(NatsError, OSError, TimeoutError):
        await within(CLOSE_TIMEOUT_S, client.close())


def _host(address: str) -> str:
    """Return host and port of an address as a server would tell it."""
    rest = address.rpartition("://")[2].rpartition("@")[2].rstrip("/")
    return rest if rest.rpartition(":")[2].isdigit() else f"{rest}:4222"


def _is_number(address: str) -> bool:
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True
