"""Which store it is: a SQLite file or a PostgreSQL database, to work on or to copy."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol

from timer_service.adapters.sqlite.api_keys import SqliteApiKeys, keys_path
from timer_service.adapters.sqlite.archive import open_sqlite_archive
from timer_service.adapters.sqlite.audit import SqliteAudit, audit_path
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.adapters.sqlite.secrets import SqliteSecretStore, secrets_path
from timer_service.adapters.sqlite.store import SqliteTimerStore
from timer_service.adapters.system import local_now
from timer_service.config import Settings
from timer_service.domain.errors import InvalidConfiguration
from timer_service.ports.api_keys import ApiKeyStore
from timer_service.ports.audit import Audit
from timer_service.ports.callback_list import CallbackList
from timer_service.ports.delivery_store import DeliveryStore
from timer_service.ports.sealed_headers import SealedHeaders
from timer_service.ports.secret_store import SecretStore
from timer_service.ports.stream_epochs import StreamEpochs
from timer_service.ports.timer_archive import TimerArchive, WritableArchive
from timer_service.ports.timer_insight import Insight
from timer_service.ports.timer_store import TimerStore

MeetHistory = Callable[[int], Awaitable[None]]
"""Tell the store how many commands the broker has ever had acknowledged; a store that lost them refuses."""


class Store(TimerStore, StreamEpochs, Protocol):
    """What the service keeps: timers, their callbacks, and what it must remember of the command streams."""

    @property
    def deliveries(self) -> DeliveryStore:
        """The callbacks and what became of them."""
        ...

    @property
    def callback_list(self) -> CallbackList:
        """The timers with callbacks, in the order of their owner."""
        ...

    @property
    def insight(self) -> Insight:
        """Questions over tenants."""
        ...

    @property
    def sealed_headers(self) -> SealedHeaders:
        """The headers of callbacks, as they are kept."""
        ...


Listen = Callable[[Callable[[datetime], None]], AbstractAsyncContextManager[None]]
"""Call back whenever another instance accepts a nearer timer."""


async def _any_history(_: int) -> None:
    """Ask nothing: a database on a server is not made by our start."""


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that is open, and what it has to do with the world beside it."""

    store: Store
    secrets: SecretStore
    api_keys: ApiKeyStore
    audit: Audit
    listen: Listen = lambda _: nullcontext()
    meet_history: MeetHistory = _any_history
    clock_skew_s: Callable[[], float] = lambda: 0.0
    """How far our clock is ahead of the store's own."""


@asynccontextmanager
async def open_store(
    settings: Settings,
    now: Callable[[], datetime],
    *,
    open_sqlite: Callable[..., AbstractAsyncContextManager[SqliteTimerStore]] = open_sqlite_store,
) -> AsyncIterator[OpenedStore]:
    """Open the store that the settings ask for."""
    if settings.postgres_url is None:
        async with open_sqlite(settings.sqlite_path, now) as file:
            meet_history = partial(file.meet_history, allow_new=settings.allow_new_store)
            keys = SqliteApiKeys(keys_path(settings.sqlite_path))
            audit = SqliteAudit(audit_path(settings.sqlite_path))
            yield OpenedStore(file, _secrets_beside(settings), keys, audit, meet_history=meet_history)
        return
    _need_postgres("TIMER_STORE_URL")
    from timer_service.adapters.postgres.opening import open_postgres_store  # noqa: PLC0415

    async with open_postgres_store(
        settings.postgres_url, now, statement_cache_size=settings.store_statement_cache
    ) as store:
        yield OpenedStore(
            store, store.secrets, store.api_keys, store.audit, store.listen, clock_skew_s=lambda: store.skew_s
        )


@asynccontextmanager
async def open_secrets(settings: Settings) -> AsyncIterator[SecretStore]:
    """Open the secrets of tenants, also while a service is at work."""
    if settings.postgres_url is None:
        yield _secrets_beside(settings)
        return
    async with open_store(settings, local_now) as opened:
        yield opened.secrets


def _secrets_beside(settings: Settings) -> SecretStore:
    return SqliteSecretStore(secrets_path(settings.sqlite_path))


@asynccontextmanager
async def open_secrets_and_keys(url: str) -> AsyncIterator[tuple[SecretStore, ApiKeyStore]]:
    """Open the secrets and the API keys of a store that was opened to be copied."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        yield SqliteSecretStore(secrets_path(path)), SqliteApiKeys(keys_path(path))
        return
    from timer_service.adapters.postgres.archive import open_archived_tables  # noqa: PLC0415

    async with open_archived_tables(url) as tables:
        yield tables


@asynccontextmanager
async def open_api_keys(settings: Settings) -> AsyncIterator[ApiKeyStore]:
    """Open the keys of the REST API, also while a service is at work."""
    if settings.postgres_url is None:
        yield SqliteApiKeys(keys_path(settings.sqlite_path))
        return
    async with open_store(settings, local_now) as opened:
        yield opened.api_keys


@asynccontextmanager
async def open_archives(source: str, target: str) -> AsyncIterator[tuple[TimerArchive, WritableArchive]]:
    """Open two stores that no service is using, one to be copied into the other."""
    if source == target:
        raise InvalidConfiguration("--from and --to name the same store")
    async with open_archive(source, as_source=True) as one, open_archive(target, as_source=False) as other:
        yield one, other


def open_archive(url: str, *, as_source: bool) -> AbstractAsyncContextManager[WritableArchive]:
    """Open one store that no service is using."""
    option = "--from" if as_source else "--to"
    if url.startswith("sqlite:///") and url != "sqlite:///":
        return open_sqlite_archive(Path(url.removeprefix("sqlite:///")), local_now, must_exist=as_source)
    if url.startswith(("postgresql://", "postgres://")):
        _need_postgres(option)
        from timer_service.adapters.postgres.archive import open_postgres_archive  # noqa: PLC0415

        return open_postgres_archive(url, as_source=as_source)
    raise InvalidConfiguration(
        f"{option} must be sqlite:///path or postgresql://user:password@host:port/database"
    )


def _need_postgres(named_by: str) -> None:
    # The driver is an extra: it is loaded only if it is asked for.
    try:
        import_module("asyncpg")
    except ModuleNotFoundError as error:
        text = f"{named_by} names a PostgreSQL database: install timer-service[postgres]"
        raise InvalidConfiguration(text) from error
