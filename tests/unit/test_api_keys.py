"""Keys of the REST API: who is let in, and for how long."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.timers import ACME, at
from timer_service.adapters.http.auth import (
    FRESH_S,
    MAX_KNOWN_KEYS,
    WRONG_KEYS_PER_MINUTE,
    Caller,
    Doorkeeper,
    TooManyTries,
)
from timer_service.domain.api_keys import ALL_SCOPES, ApiKey, Scope, digest_of, key_id_of
from timer_service.testing import ManualClock, MemoryApiKeys

TEXT = "tmr_a1_secret"
KEY = ApiKey("a1", ACME, frozenset({Scope.READ}), digest_of(TEXT), at(0))
SINGLE = "s" * 32


class CountingKeys(MemoryApiKeys):
    asked = 0
    most_at_once = 0
    _under_way = 0

    async def get(self, key_id: str) -> ApiKey | None:
        self.asked += 1
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        return await super().get(key_id)


@dataclass
class Door:
    clock: ManualClock = field(default_factory=ManualClock)
    keys: CountingKeys = field(default_factory=CountingKeys)

    def keeper(self, **settings: Any) -> Doorkeeper:
        return Doorkeeper(self.keys, now=self.clock.now, elapsed_s=lambda: self.clock.elapsed_s, **settings)


@pytest.mark.parametrize(
    "headers",
    [{"x-api-key": TEXT}, {"authorization": f"Bearer {TEXT}"}, {"authorization": f"bearer  {TEXT}"}],
)
async def test_a_key_opens_for_its_tenant_with_its_scopes(headers: dict[str, str]) -> None:
    door = Door()
    await door.keys.add(KEY)

    assert await door.keeper().caller(headers) == Caller(ACME, frozenset({Scope.READ}))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": "tmr_a1_other"},
        {"x-api-key": "tmr_b2_secret"},
        {"x-api-key": "tmr_a1"},
        {"x-api-key": "a1"},
        {"x-api-key": TEXT + "x" * 600},
        {"authorization": f"Basic {TEXT}"},
        {"authorization": "Bearer"},
    ],
)
async def test_nothing_else_opens(headers: dict[str, str]) -> None:
    door = Door()
    await door.keys.add(KEY)

    assert await door.keeper(single_key=SINGLE).caller(headers) is None


async def test_a_key_that_has_expired_or_was_revoked_does_not_open() -> None:
    door = Door()
    await door.keys.add(replace(KEY, expires_at=at(10)))
    keeper = door.keeper()
    valid = await keeper.caller({"x-api-key": TEXT})

    door.clock.advance(10)

    assert (valid is not None, await keeper.caller({"x-api-key": TEXT})) == (True, None)


async def test_a_revocation_is_seen_within_five_seconds_and_a_key_is_not_looked_up_at_every_request() -> None:
    door = Door()
    await door.keys.add(KEY)
    keeper = door.keeper()
    for _ in range(10):
        await keeper.caller({"x-api-key": TEXT})
    looked_up = door.keys.asked

    await door.keys.revoke("a1", at(1))
    door.clock.advance(FRESH_S)

    assert (looked_up, await keeper.caller({"x-api-key": TEXT})) == (1, None)


async def test_two_keys_of_a_tenant_are_valid_at_once() -> None:
    door = Door()
    second = "tmr_a2_secret"
    await door.keys.add(KEY)
    await door.keys.add(replace(KEY, id="a2", digest=digest_of(second)))
    keeper = door.keeper()

    assert await keeper.caller({"x-api-key": TEXT}) == await keeper.caller({"x-api-key": second})


async def test_the_key_of_the_settings_opens_for_its_tenant() -> None:
    keeper = Door().keeper(single_key=SINGLE, single_tenant="acme")

    assert await keeper.caller({"x-api-key": SINGLE}) == Caller(ACME, ALL_SCOPES)


async def test_the_use_of_a_key_is_kept_at_most_once_a_minute_and_a_wrong_one_is_no_use() -> None:
    door = Door()
    await door.keys.add(KEY)
    keeper, used = door.keeper(), []

    await keeper.caller({"x-api-key": "tmr_a1_other"})
    used.append(await door.keys.get("a1"))
    for _ in range(4):
        await keeper.caller({"x-api-key": TEXT})
        used.append(await door.keys.get("a1"))
        door.clock.advance(30)

    assert [key and key.used_at for key in used] == [None, at(0), at(0), at(60), at(60)]


async def wrong_keys(keeper: Doorkeeper, address: str, count: int = WRONG_KEYS_PER_MINUTE) -> None:
    for number in range(count):
        await keeper.caller({"x-api-key": f"tmr_b{number}_secret"}, address)


async def test_many_wrong_keys_from_an_address_are_refused() -> None:
    keeper = Door().keeper()
    another = {"x-api-key": "tmr_c1_secret"}

    await wrong_keys(keeper, "192.0.2.1")
    with pytest.raises(TooManyTries):
        await keeper.caller(another, "192.0.2.1")

    assert await keeper.caller(another, "192.0.2.2") is None


async def test_an_address_that_was_refused_is_told_of_wrong_keys_again_after_a_while() -> None:
    door = Door()
    keeper = door.keeper()
    await wrong_keys(keeper, "192.0.2.1")
    with pytest.raises(TooManyTries) as refused:
        await keeper.caller({"x-api-key": "wrong"}, "192.0.2.1")

    door.clock.advance(refused.value.wait_s)

    assert await keeper.caller({"x-api-key": "wrong"}, "192.0.2.1") is None


async def test_wrong_keys_do_not_lock_out_a_key_from_their_address_that_was_never_used() -> None:
    door = Door()
    await door.keys.add(KEY)
    keeper = door.keeper()
    await wrong_keys(keeper, "192.0.2.1")

    assert await keeper.caller({"x-api-key": TEXT}, "192.0.2.1") == Caller(ACME, KEY.scopes)


async def test_unknown_keys_from_an_address_with_many_wrong_ones_are_looked_up_one_at_a_time() -> None:
    door = Door()
    await door.keys.add(KEY)
    keeper = door.keeper()
    await wrong_keys(keeper, "192.0.2.1")
    unknown = [keeper.caller({"x-api-key": f"tmr_c{n}_x"}, "192.0.2.1") for n in range(5)]

    tried = await asyncio.gather(*unknown, return_exceptions=True)

    assert ([type(each) for each in tried], door.keys.most_at_once) == ([TooManyTries] * 5, 1)


async def test_a_wrong_key_that_comes_again_is_not_looked_up_again_at_once() -> None:
    door = Door()
    keeper = door.keeper()
    await wrong_keys(keeper, "192.0.2.1")

    looked_up = door.keys.asked
    for _ in range(3):
        with pytest.raises(TooManyTries):
            await keeper.caller({"x-api-key": "tmr_c1_secret"}, "192.0.2.1")

    assert (looked_up, door.keys.asked) == (WRONG_KEYS_PER_MINUTE, WRONG_KEYS_PER_MINUTE + 1)


async def test_a_key_that_opens_goes_on_to_do_so_beside_wrong_ones_from_its_address() -> None:
    door = Door()
    await door.keys.add(KEY)
    keeper = door.keeper(single_key=SINGLE, single_tenant="acme")
    await keeper.caller({"x-api-key": TEXT}, "192.0.2.1")
    for n in range(WRONG_KEYS_PER_MINUTE):
        await keeper.caller({"x-api-key": f"wrong-{n}"}, "192.0.2.1")

    door.clock.advance(FRESH_S)
    by_key = await keeper.caller({"x-api-key": TEXT}, "192.0.2.1")
    by_setting = await keeper.caller({"x-api-key": SINGLE}, "192.0.2.1")

    assert (by_key, by_setting) == (Caller(ACME, KEY.scopes), Caller(ACME, ALL_SCOPES))


async def test_a_flood_of_unknown_keys_takes_no_more_than_a_bounded_memory() -> None:
    keeper = Door().keeper()

    for number in range(MAX_KNOWN_KEYS + 10):
        await keeper.caller({"x-api-key": f"tmr_{number}_x"}, f"address {number}")

    assert keeper.remembered <= 2 * MAX_KNOWN_KEYS


async def test_a_flood_of_unknown_keys_from_everywhere_does_not_make_a_key_forgotten_that_opened() -> None:
    door = Door()
    await door.keys.add(KEY)
    keeper = door.keeper()
    await keeper.caller({"x-api-key": TEXT})

    for number in range(MAX_KNOWN_KEYS + 10):
        await keeper.caller({"x-api-key": f"tmr_{number}_x"}, f"address {number}")
    looked_up = door.keys.asked

    assert await keeper.caller({"x-api-key": TEXT}) == Caller(ACME, KEY.scopes)
    assert door.keys.asked == looked_up


def test_the_id_of_a_key_is_what_stands_between_the_underscores() -> None:
    assert [key_id_of(text) for text in (TEXT, "tmr_a1_x_y-_", "tmr__x", "x_a1_y", "tmr_a1_")] == [
        "a1",
        "a1",
        None,
        None,
        None,
    ]
