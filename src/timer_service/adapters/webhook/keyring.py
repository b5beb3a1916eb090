"""The secrets of tenants: signing keys that rotate with overlap, and named secrets for headers."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakValueDictionary

from timer_service.adapters.callback_headers import SECRET_NAME, masked
from timer_service.adapters.sealing import SecretKeys
from timer_service.adapters.webhook.signature import SigningKey, new_key
from timer_service.domain.callback import Signing
from timer_service.domain.messages import TenantId
from timer_service.ports.secret_store import SecretKind, SecretPlace, SecretStore, StoredSecret

OVERLAP: Final = timedelta(hours=24)
"""How long the old key keeps signing."""
MAX_OVERLAP: Final = timedelta(days=7)
MAX_NAMED_SECRETS: Final = 100
MAX_SECRET_BYTES: Final = 4_096
MAX_CACHED_TENANTS: Final = 10_000
FRESH_S: Final = 5.0
"""How long another process's change may go unnoticed."""
MAX_READING: Final = 4
"""Tenants whose secrets are read at once: what waits for them goes on in as many steps, not all together."""
REWRAP_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A signing key of a tenant and for how long it signs."""

    name: str
    key: SigningKey
    created_at: datetime
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class TenantSecrets:
    """What a tenant's callbacks are made with."""

    signing: Sequence[KeptKey] = ()
    named: Mapping[str, str] | None = None

    def keys(self, kind: Signing, now: datetime) -> list[SigningKey]:
        """Return the keys that sign now, the newest first."""
        kept = [each for each in self.signing if each.key.kind is kind]
        return [each.key for each in reversed(kept) if each.ends_at is None or now < each.ends_at]


class Keyring:
    """Reads and changes the secrets of tenants; a tenant's first signing key is made when it is needed."""

    def __init__(
        self,
        store: SecretStore,
        sealing: SecretKeys,
        now: Callable[[], datetime],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._sealing = sealing
        self._now = now
        self._elapsed_s = elapsed_s
        self._cached: OrderedDict[TenantId, tuple[float, TenantSecrets]] = OrderedDict()
        self._reading: WeakValueDictionary[TenantId, asyncio.Lock] = WeakValueDictionary()
        self._turns = asyncio.Semaphore(MAX_READING)
        # Apart from them: to keep a new key may take seconds, which those who only read do not wait for.
        self._turns_of_new = asyncio.Semaphore(MAX_READING)

    @property
    def cached_tenants(self) -> int:
        """Of how many tenants the secrets are in memory."""
        return len(self._cached)

    async def secrets_for(self, tenant_id: TenantId, kind: Signing) -> TenantSecrets:
        """Return a tenant's secrets, at most a few seconds old, with at least one key of the kind."""
        found = self._fresh(tenant_id)
        if found is not None and found.keys(kind, self._now()):
            return found
        lock = self._reading.setdefault(tenant_id, asyncio.Lock())
        async with lock:  # So that a burst of one tenant reads once.
            found = self._fresh(tenant_id)
            if found is not None and found.keys(kind, self._now()):
                return found
            if found is None:
                async with self._turns:
                    found = await self.read(tenant_id)
            if not found.keys(kind, self._now()):
                async with self._turns_of_new:
                    found = await self._with_new_key(tenant_id, kind, found)
        return found

    async def _with_new_key(self, tenant_id: TenantId, kind: Signing, found: TenantSecrets) -> TenantSecrets:
        names = [each.name for each in found.signing if each.key.kind is kind]
        key = new_key(kind)
        added = self._sealed_key(tenant_id, key, names)
        if not await self._store.add_secret(added):
            return await self.read(tenant_id)  # Somebody else was first: theirs counts.
        kept = KeptKey(added.name, key, added.created_at, added.ends_at)
        return self._remembered(tenant_id, replace(found, signing=[*found.signing, kept]))

    def _fresh(self, tenant_id: TenantId) -> TenantSecrets | None:
        """Return what was read a moment ago."""
        read_at, found = self._cached.get(tenant_id, (0.0, None))
        return found if self._elapsed_s() - read_at <= FRESH_S else None

    async def read(self, tenant_id: TenantId) -> TenantSecrets:
        """Return a tenant's secrets as they are now."""
        stored = await self._store.secrets_of(tenant_id)
        named: dict[str, str] = {}
        signing: list[KeptKey] = []
        for each in stored:
            opened = self._sealing.open(each.sealed, *each.place)
            if each.kind is SecretKind.NAMED:
                named[each.name] = opened.decode()
            else:
                key = SigningKey(Signing(each.kind.value), opened)
                signing.append(KeptKey(each.name, key, each.created_at, each.ends_at))
        return self._remembered(tenant_id, TenantSecrets(signing, named))

    def _remembered(self, tenant_id: TenantId, found: TenantSecrets) -> TenantSecrets:
        self._cached[tenant_id] = (self._elapsed_s(), found)
        self._cached.move_to_end(tenant_id)
        self._forget_old()
        return found

    def _forget_old(self) -> None:
        """Keep no secret in memory that would be read again anyway, and never very many."""
        while self._cached:
            oldest = next(iter(self._cached))
            if self._fresh(oldest) is not None and len(self._cached) <= MAX_CACHED_TENANTS:
                break
            del self._cached[oldest]

    async def rotate(self, tenant_id: TenantId, kind: Signing, overlap: timedelta = OVERLAP) -> KeptKey:
        """Sign with a new key from now on, and with those before it for a while."""
        if not timedelta() <= overlap <= MAX_OVERLAP:
            raise ValueError(f"the overlap must be from 0s to {MAX_OVERLAP.days}d")
        now = self._now()
        stored = [each for each in await self._store.secrets_of(tenant_id) if each.kind.value == kind.value]
        live = [each for each in stored if each.ends_at is None or each.ends_at > now + overlap]
        key = new_key(kind)
        added = self._sealed_key(tenant_id, key, [each.name for each in stored])
        await self._store.save_secrets([*[replace(each, ends_at=now + overlap) for each in live], added])
        self._cached.pop(tenant_id, None)
        return KeptKey(added.name, key, now, None)

    async def set_named(self, tenant_id: TenantId, name: str, value: str) -> bool:
        """Keep a named secret; return whether there was one before. Raises ValueError."""
        if not SECRET_NAME.fullmatch(name):
            raise ValueError("a secret's name must be 1 to 64 letters, digits and _.-")
        if not value or not value.isascii() or not value.isprintable() or len(value) > MAX_SECRET_BYTES:
            raise ValueError(f"a secret must be 1 to {MAX_SECRET_BYTES} printable ASCII characters")
        known = await self.named(tenant_id)
        if name not in known and len(known) >= MAX_NAMED_SECRETS:
            raise ValueError(f"a tenant may have at most {MAX_NAMED_SECRETS} named secrets")
        place = (tenant_id, SecretKind.NAMED.value, name)
        sealed = self._sealing.seal(value.encode(), *place)
        await self._store.save_secrets(
            [StoredSecret(tenant_id, SecretKind.NAMED, name, sealed, created_at=self._now())]
        )
        self._cached.pop(tenant_id, None)
        return name in known

    async def remove_named(self, tenant_id: TenantId, name: str) -> bool:
        """Delete a named secret; return whether there was one."""
        self._cached.pop(tenant_id, None)
        return await self._store.remove_secret((tenant_id, SecretKind.NAMED.value, name))

    async def named(self, tenant_id: TenantId) -> dict[str, str]:
        """Return the names of a tenant's secrets with masks of their values."""
        found = (await self.read(tenant_id)).named or {}
        return {name: masked(self._sealing, tenant_id, value) for name, value in found.items()}

    async def rewrap(self) -> int:
        """Seal with the newest key what is sealed with an older one; return how many there were."""
        changed = 0
        after: SecretPlace | None = None
        while batch := await self._store.secrets_after(after, REWRAP_BATCH):
            for each in batch:
                if not self._sealing.is_newest(each.sealed):
                    opened = self._sealing.open(each.sealed, *each.place)
                    newer = replace(each, sealed=self._sealing.seal(opened, *each.place))
                    changed += await self._store.reseal_secret(each, newer)
            after = batch[-1].place
        return changed

    def _sealed_key(self, tenant_id: TenantId, key: SigningKey, names: Sequence[str]) -> StoredSecret:
        """Return a key under the name that comes after all the names of its kind."""
        name = _next_name(key.kind, names)
        sealed = self._sealing.seal(key.secret, tenant_id, key.kind.value, name)
        return StoredSecret(tenant_id, SecretKind(key.kind.value), name, sealed, created_at=self._now())


def _next_name(kind: Signing, names: Sequence[str]) -> str:
    number = 1 + max((int(name.rpartition("-")[2]) for name in names), default=0)
    # With leading zeros: the order of names is that of age.
    return f"{kind.value}-{number:06d}"
