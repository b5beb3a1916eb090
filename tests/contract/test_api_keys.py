"""What every store of API keys promises; the port says it in words."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.postgres import fresh_schema
from tests.support.timers import ACME, GLOBEX, at
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.sqlite.api_keys import SqliteApiKeys, keys_path
from timer_service.domain.api_keys import ApiKey, Scope, digest_of
from timer_service.ports.api_keys import ApiKeyStore
from timer_service.testing import START, MemoryApiKeys

KEY = ApiKey(
    "a1", ACME, frozenset({Scope.READ, Scope.WRITE}), digest_of("tmr_a1_x"), at(0), at(60), note="ci"
)
OTHER = ApiKey("b2", GLOBEX, frozenset({Scope.ADMIN}), digest_of("tmr_b2_x"), at(1))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def keys(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ApiKeyStore]:
    """An empty store of each kind."""
    match request.param:
        case "memory":
            yield MemoryApiKeys()
        case "sqlite":
            yield SqliteApiKeys(keys_path(tmp_path / "timers.db"))
        case _:
            async with fresh_schema() as url, open_postgres_store(url, lambda: START) as store:
                yield store.api_keys


async def test_an_empty_store_has_no_keys(keys: ApiKeyStore) -> None:
    assert await keys.get("a1") is None
    assert await keys.list_keys() == []
    assert await keys.revoke("a1", at(0)) is None


async def test_a_key_is_found_as_it_was_kept(keys: ApiKeyStore) -> None:
    await keys.add(KEY)
    await keys.add(OTHER)

    assert (await keys.get("a1"), await keys.get("b2")) == (KEY, OTHER)


async def test_keys_are_listed_oldest_first_and_by_tenant(keys: ApiKeyStore) -> None:
    await keys.add(OTHER)
    await keys.add(KEY)

    assert [key.id for key in await keys.list_keys()] == ["a1", "b2"]
    assert [key.id for key in await keys.list_keys(GLOBEX)] == ["b2"]


async def test_a_revoked_key_keeps_the_moment_at_which_it_ended(keys: ApiKeyStore) -> None:
    await keys.add(KEY)

    first = await keys.revoke("a1", at(5))
    again = await keys.revoke("a1", at(9))

    assert first is not None
    assert (first.revoked_at, again, await keys.get("a1")) == (at(5), first, first)
