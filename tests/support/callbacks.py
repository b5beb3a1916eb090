"""Callbacks and a real sender for tests: only what a test is about is spelled out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.timers import ACME, at, call
from timer_service.adapters.callback_headers import HeaderVault
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.webhook.connections import Routing
from timer_service.adapters.webhook.guard import MakeSocket
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.adapters.webhook.resolver import LookUp
from timer_service.adapters.webhook.sender import HttpCallbackSender, open_sender
from timer_service.domain.callback import Callback
from timer_service.domain.delivery import CallbackRequest
from timer_service.ports.secret_store import SecretStore
from timer_service.targets import AddressRules, read_allowed
from timer_service.testing.secrets import MemorySecretStore

SEALING = SecretKeys([bytes(range(32))])
VAULT = HeaderVault(SEALING)
FIRING = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
PATIENT = timedelta(seconds=60)


def request_to(url: str, *, attempt: int = 1, **callback: Any) -> CallbackRequest:
    """Return one attempt of a callback to a URL."""
    headers = tuple(callback.pop("headers", {}).items())
    key = (ACME, call("order-1"))
    return CallbackRequest(
        *key,
        callback=Callback(url, headers=VAULT.sealed(key, headers), **{"timeout": PATIENT} | callback),
        id=FIRING,
        generation=1,
        due_at=at(0),
        reached_at=at(0.002),
        attempt=attempt,
        sent_at=at(1.25),
    )


def keyring_of(store: SecretStore | None = None, sealing: SecretKeys = SEALING) -> Keyring:
    """Return a keyring whose clock stands and whose cache never ages."""
    return Keyring(MemorySecretStore() if store is None else store, sealing, lambda: at(0), lambda: 0.0)


@asynccontextmanager
async def sending(
    *,
    allow: str = "127.0.0.1/32",
    keyring: Keyring | None = None,
    proxy: str | None = None,
    proxy_login: str | None = None,
    ca_file: Path | None = None,
    **seams: LookUp | MakeSocket | float,
) -> AsyncIterator[HttpCallbackSender]:
    """Open a real sender that may reach a receiver on the loopback address."""
    rules = AddressRules(read_allowed(allow))
    routing = Routing(rules, proxy=proxy, proxy_login=proxy_login, **seams)  # type: ignore[arg-type]
    async with open_sender(keyring or keyring_of(), VAULT, routing, ca_file=ca_file) as sender:
        yield sender
