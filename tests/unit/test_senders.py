"""The sender that the settings ask for, opened when it is needed."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.callbacks import keyring_of, request_to
from tests.support.patience import PATIENCE_S
from tests.support.receiver import receiving
from tests.support.timers import ACME, at, schedule
from timer_service.adapters.callback_headers import HeaderVault
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.webhook.keyring import MAX_READING
from timer_service.config import load_settings
from timer_service.domain.callback import Callback, Signing
from timer_service.domain.delivery import Blocked, Trouble, Unreachable
from timer_service.domain.errors import InvalidConfiguration
from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import StoredSecret
from timer_service.secret_keys import new_secret_key, read_secret_keys
from timer_service.testing import MemoryTimerStore
from timer_service.testing.secrets import MemorySecretStore
from timer_service.wiring.senders import address_rules, open_callback_sender, resealing

POSTGRES = "postgresql://localhost/timers"


def opened(folder: Path, *, at_once: bool = False, **settings: Any) -> Any:
    """Return a sender for a database in the folder."""
    loaded = load_settings(**{"db_path": folder / "timers.db"} | settings)
    return open_callback_sender(loaded, MemorySecretStore(), lambda: at(0), lambda: 0.0, at_once=at_once)


def test_a_service_without_callbacks_loads_no_http_client() -> None:
    loaded = "sorted({'aiohttp.client', 'idna', 'aiohappyeyeballs'} & sys.modules.keys())"
    code = f"import sys, timer_service.bootstrap; print({loaded}); import aiohttp.client; print({loaded})"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=True)

    assert said.stdout == b"[]\n['aiohappyeyeballs', 'aiohttp.client', 'idna']\n"


async def test_there_is_no_key_file_before_the_first_callback(tmp_path: Path) -> None:
    async with opened(tmp_path) as sender:
        before = list(tmp_path.iterdir())
        await sender.send(request_to("http://127.0.0.1:1/"))

    assert before == []
    assert [path.name for path in tmp_path.iterdir()] == ["timers.db.secret-key"]


async def test_callbacks_from_postgres_need_keys_and_say_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="TIMER_SECRET_KEYS must be set"):
        async with opened(tmp_path, store_url=POSTGRES, at_once=True):
            pass
    async with opened(tmp_path, store_url=POSTGRES) as sender:
        result = await sender.send(request_to("http://127.0.0.1:1/"))

    assert isinstance(result, Unreachable)
    assert result.trouble is Trouble.SECRET


async def test_an_allowed_range_does_not_open_the_ports_of_the_service_itself(tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        opened(tmp_path, callback_allow="127.0.0.0/8", http_port=receiver.port) as sender,
    ):
        result = await sender.send(request_to(receiver.url()))

    assert isinstance(result, Blocked)
    assert "on which this service listens" in result.detail
    assert receiver.connections == 0


def test_only_addresses_of_this_machine_count_as_our_own() -> None:
    ours = {"http_port": 8080, "api_port": 8081, "page_port": 8082}
    rules = address_rules(load_settings(callback_allow="127.0.0.0/8", **ours))

    assert [rules.denial("127.0.0.1", port) is None for port in (8080, 8081, 8082, 8083)] == [
        *(False, False, False),
        True,
    ]
    assert rules.denial("8.8.8.8", 8080) is None


def test_nats_gets_the_client_where_it_speaks_over_websockets() -> None:
    code = (
        "from timer_service.config import load_settings, nats_connect_options\n"
        "from nats.aio import transport\n"
        "print(transport.aiohttp); nats_connect_options(load_settings(broker_url='ws://localhost')); "
        "print(transport.aiohttp.__name__)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=True)

    assert said.stdout == b"None\naiohttp\n"


async def test_a_new_first_key_seals_everything_beside_the_service() -> None:
    old, new = new_secret_key(), new_secret_key()
    store, secrets, timer = MemoryTimerStore(), MemorySecretStore(), schedule("order-1")
    before, after = (SecretKeys(read_secret_keys(key)) for key in (old, new))
    headers = HeaderVault(before).sealed(timer.key, (("X-Token", "t"),))
    await store.decide([replace(timer, callback=Callback("https://shop.example/", headers=headers))], at(0))
    await keyring_of(secrets, before).set_named(ACME, "token", "value")

    async with asyncio.timeout(PATIENCE_S):
        for keys in (f"{new},{old}", new):
            async with resealing(
                load_settings(secret_keys=keys), secrets, store.sealed_headers, lambda: at(0)
            ):
                while store.deliveries.callbacks[timer.key].headers == headers:
                    await asyncio.sleep(0.001)

    stored = store.deliveries.callbacks[timer.key].headers
    assert HeaderVault(after).opened(timer.key, stored) == (("X-Token", "t"),)
    assert (await keyring_of(secrets, after).read(ACME)).named == {"token": "value"}


class _Counting(MemorySecretStore):
    """Notes how many tenants' secrets are being read at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = self.most = 0

    async def secrets_of(self, tenant_id: TenantId) -> list[StoredSecret]:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await asyncio.sleep(0)
        self.reading -= 1
        return await super().secrets_of(tenant_id)


async def test_the_first_callbacks_of_many_tenants_read_the_secrets_of_a_few_at_once() -> None:
    store = _Counting()
    ring = keyring_of(store)
    tenants = [TenantId(f"tenant-{n}") for n in range(20)]

    await asyncio.gather(*(ring.secrets_for(tenant, Signing.HMAC) for tenant in tenants))

    assert (store.most, ring.cached_tenants) == (MAX_READING, 20)
