"""Opens the sender of callbacks that the settings ask for, and the secrets that it sends with."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from timer_service.adapters.callback_headers import HeaderVault
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.webhook.guard import listening_here
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.config import Settings
from timer_service.domain.delivery import CallbackRequest, CallResult, Trouble, Unreachable
from timer_service.domain.errors import CriticalError, InvalidConfiguration
from timer_service.ports.sealed_headers import SealedHeaders
from timer_service.ports.secret_store import SecretStore
from timer_service.secret_keys import key_file, read_secret_keys
from timer_service.targets import AddressRules, read_allowed
from timer_service.waiting import owned

if TYPE_CHECKING:
    from timer_service.adapters.webhook.sender import HttpCallbackSender


def sealing_keys(settings: Settings, *, make: bool = True) -> SecretKeys:
    """Return the keys that seal secrets: those of the settings, or those of a file beside the database.

    The file is made where there is none, unless that is not to be (`make`).
    """
    if settings.secret_keys is not None:
        return SecretKeys(read_secret_keys(settings.secret_keys.get_secret_value()))
    if settings.postgres_url is not None:
        raise InvalidConfiguration(
            "TIMER_SECRET_KEYS must be set where callbacks are sent from PostgreSQL: all instances need the "
            "same keys. `timer-service secrets new-key` makes one"
        )
    database = settings.sqlite_path
    return SecretKeys(key_file(database.with_name(database.name + ".secret-key"), make=make))


def address_rules(settings: Settings) -> AddressRules:
    """Return which addresses callbacks may go to."""
    ours = {port for port in (settings.http_port, settings.api_port, settings.page_port) if port}
    return AddressRules(read_allowed(settings.callback_allow or ""), is_ours=listening_here(ours))


@asynccontextmanager
async def open_callback_sender(
    settings: Settings,
    secrets: SecretStore,
    now: Callable[[], datetime],
    elapsed_s: Callable[[], float],
    *,
    at_once: bool,
) -> AsyncIterator["ReadySender"]:
    """Open the sender at once, or when the first callback is due.

    A service that sends none needs neither keys nor an HTTP client.
    """
    async with AsyncExitStack() as stack:

        async def opened() -> "HttpCallbackSender":
            # Here, because to load the client takes as long as the rest of the start.
            from timer_service.adapters.webhook.connections import Routing  # noqa: PLC0415
            from timer_service.adapters.webhook.sender import open_sender  # noqa: PLC0415

            sealing = sealing_keys(settings)
            login = settings.callback_proxy_login
            routing = Routing(
                address_rules(settings),
                proxy=settings.callback_proxy,
                proxy_login=None if login is None else login.get_secret_value(),
                keeps_answers=settings.callback_keep_answers,
            )
            keyring = Keyring(secrets, sealing, now, elapsed_s)
            opening = open_sender(keyring, HeaderVault(sealing), routing, ca_file=settings.callback_tls_ca)
            return await stack.enter_async_context(opening)

        sender = ReadySender(opened)
        if at_once:
            await sender.ready()
        yield sender


@asynccontextmanager
async def resealing(
    settings: Settings, secrets: SecretStore, headers: SealedHeaders, now: Callable[[], datetime]
) -> AsyncIterator[None]:
    """Beside the block, seal with the first key what older ones sealed; nothing if there is one key."""
    if settings.secret_keys is None or "," not in settings.secret_keys.get_secret_value().strip(", "):
        yield
        return
    # Here, as above.
    from timer_service.adapters.webhook.resealing import reseal_everything  # noqa: PLC0415

    sealing = sealing_keys(settings)
    keyring = Keyring(secrets, sealing, now, time.monotonic)
    async with owned(reseal_everything(keyring, HeaderVault(sealing), headers)):
        yield


class ReadySender:
    """A sender that is opened when it is first needed."""

    def __init__(self, open_it: Callable[[], Awaitable["HttpCallbackSender"]]) -> None:
        self._open = open_it
        self._opening = asyncio.Lock()
        self._sender: HttpCallbackSender | None = None

    async def ready(self) -> "HttpCallbackSender":
        """Return the sender itself. Raises CriticalError if there are no keys."""
        async with self._opening:
            if self._sender is None:
                self._sender = await self._open()
            return self._sender

    async def send(self, request: CallbackRequest) -> CallResult:
        """Send one request; without keys none is sent."""
        sender = self._sender
        if sender is None:
            try:
                sender = await self.ready()
            except CriticalError as error:
                return Unreachable(Trouble.SECRET, str(error))
        return await sender.send(request)
