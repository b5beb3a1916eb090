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
    """Copy the keys that are not there yet, and return how many; repeating it is harmless."""
    missing = [key for key in await source.list_keys() if await target.get(key.id) is None]
    for key in missing:
        await target.add(key)
    return len(missing)
