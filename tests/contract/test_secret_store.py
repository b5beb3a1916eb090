"""Where the secrets of tenants are kept, and the keyring on top of it."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.callbacks import SEALING, keyring_of
from tests.support.timers import ACME, GLOBEX, at
from timer_service.adapters.sealing import NotOpened, SecretKeys
from timer_service.adapters.sqlite.secrets import SqliteSecretStore, secrets_path
from timer_service.adapters.webhook.keyring import FRESH_S, MAX_NAMED_SECRETS, MAX_READING, OVERLAP, Keyring
from timer_service.domain.callback import Signing
from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import SecretKind, SecretStore, StoredSecret
from timer_service.wiring.stores import OpenedStore

SECRET = StoredSecret(ACME, SecretKind.NAMED, "token", b"\x00sealed\xff", created_at=at(0))


@pytest.fixture
def secrets(opened: OpenedStore) -> SecretStore:
    """What each kind of store keeps beside the timers."""
    return opened.secrets


async def test_a_tenant_has_no_secrets_at_first(secrets: SecretStore) -> None:
    assert list(await secrets.secrets_of(ACME)) == []
    assert list(await secrets.secrets_after(None, 10)) == []


async def test_secrets_come_back_whole_by_kind_and_age_and_only_to_their_tenant(secrets: SecretStore) -> None:
    first = replace(SECRET, kind=SecretKind.ED25519, name="ed25519-000001", ends_at=at(3600))
    second = replace(SECRET, kind=SecretKind.ED25519, name="ed25519-000002")
    for each in (SECRET, second, first, replace(SECRET, tenant_id=GLOBEX)):
        assert await secrets.add_secret(each)

    assert list(await secrets.secrets_of(ACME)) == [first, second, SECRET]
    assert list(await secrets.secrets_of(GLOBEX)) == [replace(SECRET, tenant_id=GLOBEX)]


async def test_a_place_that_is_taken_stays_as_it_is(secrets: SecretStore) -> None:
    added = [replace(SECRET, sealed=bytes([n])) for n in range(5)]

    kept = await asyncio.gather(*map(secrets.add_secret, added))

    assert sum(kept) == 1
    assert list(await secrets.secrets_of(ACME)) == [added[kept.index(True)]]


async def test_saving_replaces_and_may_be_repeated(secrets: SecretStore) -> None:
    newer = replace(SECRET, sealed=b"newer", created_at=at(5), ends_at=at(9))
    other = replace(SECRET, name="other")
    await secrets.add_secret(SECRET)

    for _ in range(2):
        await secrets.save_secrets([newer, other])

    assert list(await secrets.secrets_of(ACME)) == [other, newer]


async def test_a_secret_is_resealed_only_if_nobody_changed_it_meanwhile(secrets: SecretStore) -> None:
    newer = replace(SECRET, sealed=b"newer")
    await secrets.add_secret(SECRET)

    assert await secrets.reseal_secret(SECRET, newer)
    assert not await secrets.reseal_secret(SECRET, replace(SECRET, sealed=b"late"))
    assert list(await secrets.secrets_of(ACME)) == [newer]


async def test_a_secret_is_removed_once(secrets: SecretStore) -> None:
    await secrets.add_secret(SECRET)

    assert await secrets.remove_secret(SECRET.place)
    assert not await secrets.remove_secret(SECRET.place)
    assert list(await secrets.secrets_of(ACME)) == []


async def test_all_secrets_are_read_page_by_page(secrets: SecretStore) -> None:
    names = [f"s-{n}" for n in range(7)]
    await secrets.save_secrets(
        [replace(SECRET, tenant_id=tenant, name=name) for tenant in (GLOBEX, ACME) for name in names]
    )

    read: list[StoredSecret] = []
    while page := await secrets.secrets_after(read[-1].place if read else None, 3):
        read += page

    assert [(each.tenant_id, each.name) for each in read] == [(t, n) for t in (ACME, GLOBEX) for n in names]


async def test_the_first_key_is_made_when_it_is_needed_and_is_one_however_many_ask(
    secrets: SecretStore,
) -> None:
    rings = [keyring_of(secrets) for _ in range(4)]

    found = await asyncio.gather(*[ring.secrets_for(ACME, Signing.ED25519) for ring in rings * 2])

    keys = {each.keys(Signing.ED25519, at(0))[0].secret for each in found}
    assert len(keys) == 1
    assert len(await secrets.secrets_of(ACME)) == 1


async def test_a_new_key_signs_at_once_and_the_one_before_it_for_a_day(secrets: SecretStore) -> None:
    ring = keyring_of(secrets)
    first = (await ring.secrets_for(ACME, Signing.ED25519)).keys(Signing.ED25519, at(0))

    second = (await ring.rotate(ACME, Signing.ED25519)).key
    third = (await ring.rotate(ACME, Signing.ED25519, timedelta(hours=1))).key

    found = await ring.secrets_for(ACME, Signing.ED25519)
    assert found.keys(Signing.ED25519, at(0)) == [third, second, *first]
    assert found.keys(Signing.ED25519, at(3599)) == [third, second, *first]
    assert found.keys(Signing.ED25519, at(3600)) == [third]
    assert found.keys(Signing.HMAC, at(0)) == []
    assert timedelta(hours=24) == OVERLAP


async def test_rotating_many_times_locks_nobody_out(secrets: SecretStore) -> None:
    ring = keyring_of(secrets)

    keys = [(await ring.rotate(ACME, Signing.HMAC)).key for _ in range(5)]

    assert (await ring.secrets_for(ACME, Signing.HMAC)).keys(Signing.HMAC, at(3600)) == keys[::-1]


async def test_a_change_by_another_process_is_seen_within_seconds(secrets: SecretStore) -> None:
    elapsed = [0.0]
    ring = Keyring(secrets, SEALING, lambda: at(0), lambda: elapsed[0])
    await ring.secrets_for(ACME, Signing.ED25519)
    await keyring_of(secrets).set_named(ACME, "token", "value")

    before = (await ring.secrets_for(ACME, Signing.ED25519)).named
    elapsed[0] = FRESH_S + 0.1
    after = (await ring.secrets_for(ACME, Signing.ED25519)).named

    assert (before, after) == ({}, {"token": "value"})


async def test_no_more_secrets_are_in_memory_than_were_used_a_moment_ago(secrets: SecretStore) -> None:
    now_s = 0.0
    ring = Keyring(secrets, SEALING, lambda: at(0), lambda: now_s)

    for number in range(20):
        now_s += FRESH_S / 4
        await ring.secrets_for(TenantId(f"tenant-{number}"), Signing.HMAC)

    assert ring.cached_tenants <= 5


async def test_named_secrets_are_set_listed_masked_and_removed(secrets: SecretStore) -> None:
    ring = keyring_of(secrets)

    assert not await ring.set_named(ACME, "token", "value")
    assert await ring.set_named(ACME, "token", "other")
    assert list(await ring.named(ACME)) == ["token"]
    assert "other" not in repr(await ring.named(ACME))
    assert await ring.named(GLOBEX) == {}
    assert await ring.remove_named(ACME, "token")
    assert not await ring.remove_named(ACME, "token")


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "x"), ("a b", "x"), ("a" * 65, "x"), ("a", ""), ("a", "x\r\ny"), ("a", "ä"), ("a", "x" * 4097)],
)
async def test_what_could_not_stand_in_a_header_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"a secret"):
        await keyring_of().set_named(ACME, name, value)


async def test_a_tenant_has_a_bounded_number_of_named_secrets() -> None:
    ring = keyring_of()
    for number in range(MAX_NAMED_SECRETS):
        await ring.set_named(ACME, f"s-{number}", "x")

    await ring.set_named(ACME, "s-0", "y")
    with pytest.raises(ValueError, match="at most 100"):
        await ring.set_named(ACME, "one-more", "x")


async def test_an_overlap_has_a_bound() -> None:
    for overlap in (timedelta(days=8), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="overlap"):
            await keyring_of().rotate(ACME, Signing.ED25519, overlap)


async def test_rewrapping_makes_the_old_key_superfluous(secrets: SecretStore) -> None:
    old, new = bytes(32), bytes(range(1, 33))
    before = keyring_of(secrets, SecretKeys([old]))
    key = (await before.rotate(ACME, Signing.ED25519)).key
    await before.set_named(GLOBEX, "token", "value")

    assert await keyring_of(secrets, SecretKeys([new, old])).rewrap() == 2
    assert await keyring_of(secrets, SecretKeys([new, old])).rewrap() == 0

    after = keyring_of(secrets, SecretKeys([new]))
    assert (await after.read(ACME)).keys(Signing.ED25519, at(0)) == [key]
    assert (await after.read(GLOBEX)).named == {"token": "value"}
    with pytest.raises(NotOpened):
        await before.read(ACME)


def test_the_file_of_the_secrets_is_only_for_us(tmp_path: Path) -> None:
    store = SqliteSecretStore(secrets_path(tmp_path / "timers.db"))

    asyncio.run(store.save_secrets([SECRET]))

    assert (tmp_path / "timers.db.secrets").stat().st_mode & 0o777 == 0o600


class _Threads(ThreadPoolExecutor):
    """Threads for what would hold up the event loop; knows how much they did, and how much at once."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = self.most_at_once = self.total = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.at_once += 1
        self.total += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        return super().submit(self._work, fn, *args, **kwargs)

    def _work(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            self.at_once -= 1


async def test_the_secrets_of_many_tenants_in_a_file_occupy_one_thread_which_each_uses_twice(
    tmp_path: Path,
) -> None:
    store = SqliteSecretStore(secrets_path(tmp_path / "timers.db"))
    await store.save_secrets([SECRET])
    asyncio.get_running_loop().set_default_executor(threads := _Threads())
    ring = keyring_of(store)

    tenants = [TenantId(f"tenant-{number}") for number in range(10)]
    found = await asyncio.gather(*(ring.secrets_for(each, Signing.ED25519) for each in tenants))

    assert threads.most_at_once == 1
    assert threads.total == 2 * len(tenants)  # To look for a key, and to keep a new one.
    stored = [await keyring_of(store).read(each) for each in tenants]
    assert found == stored


async def test_keys_that_wait_for_another_process_hold_up_no_other_tenant(tmp_path: Path) -> None:
    path = secrets_path(tmp_path / "timers.db")
    await keyring_of(SqliteSecretStore(path)).secrets_for(ACME, Signing.ED25519)
    keyring = keyring_of(SqliteSecretStore(path))
    newcomers = [TenantId(f"new-{n}") for n in range(2 * MAX_READING)]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.ensure_future(keyring.secrets_for(each, Signing.ED25519)) for each in newcomers]
        await asyncio.sleep(0)

        found = await keyring.secrets_for(ACME, Signing.ED25519)
        still_waiting = [not each.done() for each in waiting]
        other.execute("ROLLBACK")

    assert (len(found.signing), still_waiting) == (1, [True] * len(waiting))
    assert [len(each.signing) for each in await asyncio.gather(*waiting)] == [1] * len(waiting)
