"""Copy the secrets and the API keys of all tenants from one store to another, as they are kept."""

from typing import Final

from timer_service.ports.api_keys import ApiKeyStore
from timer_service.ports.secret_store import SecretPlace, SecretStore

COPY_BATCH: Final = 500


async def copy_secrets(source: SecretStore, target: SecretStore, batch_size: int = COPY_BATCH) -> int:
    """Copy in batches and return how many there were; repeating it is harmless.

    They open with the same keys as before.
    """
    copied = 0
    after: SecretPlace | None = None
    while batch := await source.secrets_after(after, batch_size):
        await target.save_secrets(batch)
        copied, after = copied + len(batch), batch[-1].place
    return copied


async def copy_keys(source: ApiKeyStore, target: ApiKeyStore) -> int:
    """Copy the keys that are not there yet, and return how many; repeating it is harmless.

    One that was revoked since it was copied is revoked there, too.
    """
    copied = 0
    for key in await source.list_keys():
        there = await target.get(key.id)
        if there is None:
            await target.add(key)
            copied += 1
        elif key.revoked_at is not None and there.revoked_at is None:
            await target.revoke(key.id, key.revoked_at)
    return copied
