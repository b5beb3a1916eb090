"""What every store of API keys promises; the port says it in words."""

from dataclasses import replace

import pytest

from tests.support.timers import ACME, GLOBEX, at
from timer_service.domain.api_keys import ApiKey, Scope, digest_of
from timer_service.ports.api_keys import ApiKeyStore
from timer_service.wiring.stores import OpenedStore

KEY = ApiKey(
    "a1", ACME, frozenset({Scope.READ, Scope.WRITE}), digest_of("tmr_a1_x"), at(0), at(60), note="ci"
)
OTHER = ApiKey("b2", GLOBEX, frozenset({Scope.ADMIN}), digest_of("tmr_b2_x"), at(1))


@pytest.fixture
def keys(opened: OpenedStore) -> ApiKeyStore:
    """What each kind of store keeps beside the timers."""
    return opened.api_keys


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


async def test_the_last_use_of_a_key_is_kept_and_never_goes_back(keys: ApiKeyStore) -> None:
    await keys.add(KEY)
    await keys.note_use("nobody", at(1))

    await keys.note_use("a1", at(20))
    await keys.note_use("a1", at(10))

    assert await keys.get("a1") == replace(KEY, used_at=at(20))
