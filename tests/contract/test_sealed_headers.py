"""Headers of pending callbacks are sealed with another key while everything goes on."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.callbacks import keyring_of
from tests.support.postgres import migrated_schema
from tests.support.timers import ACME, GLOBEX, at, schedule
from timer_service.adapters.callback_headers import Headers, HeaderVault
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.webhook import resealing
from timer_service.domain.callback import Callback
from timer_service.domain.messages import TenantId
from timer_service.ports.delivery_store import DeliveryStore
from timer_service.ports.sealed_headers import SealedHeaders, StoredHeaders
from timer_service.ports.timer_store import TimerStore
from timer_service.testing import START, MemoryTimerStore

OLD, NEW = bytes(32), bytes(range(1, 33))
BEFORE, BOTH, AFTER = (HeaderVault(SecretKeys(keys)) for keys in ([OLD], [NEW, OLD], [NEW]))
GIVEN: Headers = (("Authorization", "Bearer t"), ("Accept", "text/plain"))


class Store(TimerStore, Protocol):
    """A timer store with the callbacks beside it."""

    @property
    def deliveries(self) -> DeliveryStore: ...

    @property
    def sealed_headers(self) -> SealedHeaders: ...


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryTimerStore()
    elif request.param == "sqlite":
        async with open_sqlite_store(tmp_path / "timers.db", lambda: START) as sqlite:
            yield sqlite
    else:
        async with migrated_schema() as url, open_postgres_store(url, lambda: START) as postgres:
            yield postgres


async def fill(store: Store, count: int, headers: Headers = GIVEN) -> None:
    for tenant in (ACME, GLOBEX):
        requests = [
            replace(
                timer := schedule(f"order-{n:03d}", tenant=tenant),
                callback=Callback("https://shop.example/", headers=BEFORE.sealed(timer.key, headers)),
            )
            for n in range(count)
        ]
        await store.decide(requests, at(0))


async def opened(store: Store, vault: HeaderVault, tenant: TenantId = ACME) -> list[Headers]:
    found = await store.sealed_headers.headers_after(None, 1_000)
    return [vault.opened(each.key, each.headers) for each in found if each.tenant_id == tenant]


async def test_headers_are_read_page_by_page_in_the_order_of_their_timers(store: Store) -> None:
    await fill(store, 4)
    await store.decide([schedule("on-the-bus")], at(0))
    await store.decide([replace(schedule("bare"), callback=Callback("https://shop.example/"))], at(0))

    pages: list[StoredHeaders] = []
    while page := await store.sealed_headers.headers_after(pages[-1].key if pages else None, 3):
        pages += page

    names = [f"order-{n:03d}" for n in range(4)]
    assert [each.key for each in pages] == [(tenant, name) for tenant in (ACME, GLOBEX) for name in names]


async def test_after_resealing_the_old_key_opens_nothing_and_the_new_one_all(store: Store) -> None:
    await fill(store, 3)

    assert await resealing.reseal_headers(BOTH, store.sealed_headers, pause_s=0) == (6, 0)
    assert await resealing.reseal_headers(BOTH, store.sealed_headers, pause_s=0) == (0, 0)

    assert await opened(store, AFTER) == await opened(store, AFTER, GLOBEX) == [GIVEN] * 3


async def test_headers_that_were_changed_meanwhile_stay_as_they_are(store: Store) -> None:
    await fill(store, 1)
    [old, *_] = await store.sealed_headers.headers_after(None, 1)
    newer = replace(old, headers=AFTER.sealed(old.key, (("X-New", "1"),)))
    late = replace(old, headers=AFTER.sealed(old.key, (("X-Late", "1"),)))

    assert await store.sealed_headers.replace_headers([(old, newer)]) == 1
    assert await store.sealed_headers.replace_headers([(old, late)]) == 0

    assert await opened(store, AFTER) == [(("X-New", "1"),)]


async def test_what_no_key_opens_is_counted_and_left(store: Store) -> None:
    await fill(store, 2)

    assert await resealing.reseal_headers(AFTER, store.sealed_headers, pause_s=0) == (0, 4)
    assert await opened(store, BEFORE) == [GIVEN] * 2


async def test_everything_is_resealed_at_once(store: Store) -> None:
    secrets = keyring_of(sealing=SecretKeys([NEW, OLD]))
    await fill(store, 1)

    await resealing.reseal_everything(secrets, BOTH, store.sealed_headers)

    assert await opened(store, AFTER) == [GIVEN]
