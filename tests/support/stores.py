"""Every kind of store, empty, with all that is kept beside the timers."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.postgres import open_postgres_in_step
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.config import Settings
from timer_service.testing import START, MemoryApiKeys, MemoryTimerStore
from timer_service.testing.audit import MemoryAudit
from timer_service.testing.secrets import MemorySecretStore
from timer_service.wiring.stores import OpenedStore, open_store

KINDS = ("memory", "sqlite", "postgres")
_SETTINGS = Settings()
_files: list[bytes] = []


async def _migrated() -> bytes:
    """Return an empty database with all migrations, which take longer than most tests."""
    if not _files:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "timers.db")
            async with open_sqlite_store(path, lambda: START):
                pass
            _files.append(path.read_bytes())
    return _files[0]


@asynccontextmanager
async def open_kind(kind: str, folder: Path) -> AsyncIterator[OpenedStore]:
    """Open a store of a kind: a new one is one more case here."""
    match kind:
        case "memory":
            yield OpenedStore(MemoryTimerStore(), MemorySecretStore(), MemoryApiKeys(), MemoryAudit())
        case "sqlite":
            path = folder / "timers.db"
            path.write_bytes(await _migrated())
            settings = _SETTINGS.model_copy(update={"db_path": path})
            async with open_store(settings, lambda: START, open_sqlite=open_sqlite_store) as opened:
                yield opened
        case _:
            async with open_postgres_in_step(START) as store:
                yield OpenedStore(store, store.secrets, store.api_keys, store.audit)
