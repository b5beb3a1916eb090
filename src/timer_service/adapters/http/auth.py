"""Who asks: the tenant and the scopes of an API key, before anything else of a request is read."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Any, Final

from timer_service.domain.admission import RateLimit
from timer_service.domain.api_keys import (
    ALL_SCOPES,
    ALL_TENANTS,
    MAX_KEY_CHARS,
    ApiKey,
    Scope,
    digest_of,
    key_id_of,
)
from timer_service.domain.errors import TransientError
from timer_service.domain.messages import TenantId
from timer_service.ports.api_keys import ApiKeyStore

FRESH_S: Final = 5.0
"""How long a revoked key may still open: it is looked up again after that."""
MAX_KNOWN_KEYS: Final = 10_000
"""And as many ids that there are not, apart from them: nobody makes us forget a key by trying others."""
WRONG_KEYS_PER_MINUTE: Final = 30
"""From one address; a program that is set up wrongly is told so this often."""
MAX_ADDRESS_CHARS: Final = 64
STRANGERS_PAUSE_S: Final = 0.005
"""After a key that there is not, where many wrong ones come from: so many look-ups they may cost us."""
USE_NOTED_EVERY: Final = timedelta(minutes=1)
_BEARER: Final = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is, and what it may do."""

    tenant_id: TenantId
    scopes: frozenset[Scope]


class TooManyTries(Exception):
    """Too many keys were tried from one address."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


class Tries:
    """How many keys may be tried from one address per minute."""

    def __init__(self, per_minute: int, elapsed_s: Callable[[], float]) -> None:
        self._limit = RateLimit(per_minute / 60, per_minute)
        self._elapsed_s = elapsed_s

    def count(self, address: str) -> None:
        """Count one more try. Raises TooManyTries."""
        if wait_s := self._limit.wait_s(address[:MAX_ADDRESS_CHARS], self._elapsed_s()):
            raise TooManyTries(wait_s)

    def are_left(self, address: str) -> bool:
        """Return whether another try would be counted."""
        return self._limit.left(address[:MAX_ADDRESS_CHARS], self._elapsed_s()) != 0


class Doorkeeper:
    """Knows the keys: those of the store, and the one of the settings."""

    def __init__(
        self,
        keys: ApiKeyStore,
        *,
        now: Callable[[], datetime],
        elapsed_s: Callable[[], float],
        single_key: str | None = None,
        single_tenant: str = "default",
    ) -> None:
        self._keys = keys
        self._now = now
        self._elapsed_s = elapsed_s
        self.single = None if single_key is None else digest_of(single_key)
        self.single_caller = Caller(TenantId(single_tenant), ALL_SCOPES)
        self._known: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._strangers = asyncio.Lock()
        self._wrong = Tries(WRONG_KEYS_PER_MINUTE, elapsed_s)

    async def caller(self, headers: Mapping[str, str], address: str = "") -> Caller | None:
        """Return whose key the headers carry; None if it is not valid.

        Raises TransientError, and TooManyTries for a wrong key where many came from its address. Somebody
        else there may have a valid one: it opens all the same.
        """
        text = _key_in(headers)
        if text is None:
            return None
        if self.single is not None and compare_digest(self.single, digest_of(text)):
            return self.single_caller
        key_id = key_id_of(text)
        key = None if key_id is None else await self.key_from(address, key_id)
        # A key for every tenant is one for the page: the API has no way to say whose timer is meant.
        if key is None or key.tenant_id == ALL_TENANTS or not compare_digest(key.digest, digest_of(text)):
            self.count_wrong(address)
            return None
        await self.note_use(key.id)
        return Caller(key.tenant_id, key.scopes)

    async def note_use(self, key_id: str) -> None:
        """Keep that a key of the store has opened, at most once a minute."""
        found_s, key = self._known.get(key_id, (0.0, None))
        now = self._now()
        if key is None or (key.used_at is not None and now - key.used_at < USE_NOTED_EVERY):
            return
        # Before it is kept: of many requests at once only one keeps it.
        self._known[key_id] = (found_s, replace(key, used_at=now))
        with suppress(TransientError):
            await self._keys.note_use(key_id, now)

    @property
    def remembered(self) -> int:
        """How many ids of keys are in memory."""
        return len(self._known) + len(self._unknown)

    def count_wrong(self, address: str) -> None:
        """Count a key that does not open. Raises TooManyTries."""
        self._wrong.count(address)

    async def key_from(self, address: str, key_id: str) -> ApiKey | None:
        """Return a valid key; unknown ones from where many wrong ones come are looked up one by one."""
        is_cheap = key_id in self._known or self._is_unknown(key_id)
        if is_cheap or self._wrong.are_left(address):
            return await self.valid_key(key_id)
        async with self._strangers:
            key = await self.valid_key(key_id)
            if key is None:
                await asyncio.sleep(STRANGERS_PAUSE_S)
            return key

    async def valid_key(self, key_id: str) -> ApiKey | None:
        """Return a key that was neither revoked nor has expired, by its id. Raises TransientError."""
        key = await self._find(key_id)
        return key if key is not None and key.is_valid(self._now()) else None

    async def _find(self, key_id: str) -> ApiKey | None:
        """Look a key up, at most every few seconds: also one that there is not."""
        now_s = self._elapsed_s()
        found_s, key = self._known.get(key_id, (0.0, None))
        if (key is not None and now_s - found_s < FRESH_S) or self._is_unknown(key_id):
            return key
        key = await self._keys.get(key_id)
        if key is None:
            self._known.pop(key_id, None)
            self._unknown[key_id] = now_s
            _keep_newest(self._unknown, key_id)
        else:
            self._known[key_id] = (now_s, key)
            _keep_newest(self._known, key_id)
        return key

    def _is_unknown(self, key_id: str) -> bool:
        """Return whether a moment ago there was no such key."""
        asked_s = self._unknown.get(key_id)
        return asked_s is not None and self._elapsed_s() - asked_s < FRESH_S


def _keep_newest(remembered: OrderedDict[str, Any], key_id: str) -> None:
    remembered.move_to_end(key_id)
    if len(remembered) > MAX_KNOWN_KEYS:
        remembered.popitem(last=False)


def _key_in(headers: Mapping[str, str]) -> str | None:
    """Return the key of a request: in X-API-Key, or as a bearer token."""
    text = headers.get("x-api-key")
    if text is None:
        bearer = headers.get("authorization", "")
        text = bearer[len(_BEARER) :].strip() if bearer[: len(_BEARER)].lower() == _BEARER else None
    return text if text and len(text) <= MAX_KEY_CHARS else None
