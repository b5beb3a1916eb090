"""Copy the secrets of all tenants from one store to another, sealed as they are."""

from typing import Final

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
