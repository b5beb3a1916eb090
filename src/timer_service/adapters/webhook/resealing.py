"""Seal everything with the newest key, while the service runs, so that an older key can be dropped."""

import asyncio
from dataclasses import replace
from typing import Final

import structlog

from timer_service.adapters.callback_headers import HeaderVault
from timer_service.adapters.sealing import NotOpened
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.domain.errors import TransientError
from timer_service.domain.messages import TimerKey
from timer_service.ports.sealed_headers import SealedHeaders, StoredHeaders

RESEAL_BATCH: Final = 200
RESEAL_PAUSE_S: Final = 0.02
"""Between two batches, so that nothing else waits for long."""
RETRY_PAUSE_S: Final = 5.0

log = structlog.get_logger(__name__)


async def reseal_everything(keyring: Keyring, vault: HeaderVault, stored: SealedHeaders) -> None:
    """Seal secrets and headers again, and say when it is done; a store that is busy is tried again."""
    while True:
        try:
            secrets = await keyring.rewrap()
            callbacks, lost = await reseal_headers(vault, stored)
        except TransientError:
            await asyncio.sleep(RETRY_PAUSE_S)
        except NotOpened as error:
            log.error("secrets.not_opened", detail=str(error))
            return
        else:
            log.info("secrets.resealed", secrets=secrets, callbacks=callbacks, not_opened=lost)
            return


async def reseal_headers(
    vault: HeaderVault, stored: SealedHeaders, pause_s: float = RESEAL_PAUSE_S
) -> tuple[int, int]:
    """Seal the headers of all callbacks; return how many were changed, and how many no key opens."""
    changed = lost = 0
    after: TimerKey | None = None
    while batch := await stored.headers_after(after, RESEAL_BATCH):
        changes = []
        for each in batch:
            try:
                changes += _resealed(vault, each)
            except NotOpened:
                lost += 1
        if changes:
            changed += await stored.replace_headers(changes)
        after = batch[-1].key
        await asyncio.sleep(pause_s)
    return changed, lost


def _resealed(vault: HeaderVault, each: StoredHeaders) -> list[tuple[StoredHeaders, StoredHeaders]]:
    headers = vault.rewrapped(each.key, each.headers)
    return [] if headers is None else [(each, replace(each, headers=headers))]
