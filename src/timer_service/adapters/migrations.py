"""The steps of a database's schema, which are files of the program, forward only."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import structlog

from timer_service.domain.errors import StoreFailed, StoreTooNew

_FILE_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")
_PACKAGE: Final = Path(__file__).parents[1]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str


@cache
def load_migrations(database: str, package: Path = _PACKAGE) -> Sequence[Migration]:
    """Read the migrations of a kind of database: in the installed package, or beside `src` in a checkout."""
    for folder in (package / "migrations" / database, package.parents[1] / "migrations" / database):
        files = sorted(path for path in folder.glob("*.sql") if _FILE_NAME.fullmatch(path.name))
        if files:
            return tuple(Migration(int(path.name[:4]), path.stem, path.read_text("utf-8")) for path in files)
    raise StoreFailed("the migrations of this program are missing: reinstall it")


def missing(migrations: Sequence[Migration], applied: int, where: str) -> list[Migration]:
    """Return what a database lacks that has come to a version; refuse one that a newer program has made."""
    newest = migrations[-1].version
    if applied > newest:
        raise StoreTooNew(
            f"{where} has schema version {applied}, but this program knows only {newest}: "
            "run the newer version of timer-service that wrote it"
        )
    return [migration for migration in migrations if migration.version > applied]


@contextmanager
def announced(migration: Migration, applied: int, where: str) -> Iterator[None]:
    """Say that a step of a database with timers is being taken: nothing fires until it is done."""
    if not applied:  # A new database: there is nothing to wait for.
        yield
        return
    log.info("store.migrating", migration=migration.name, store=where)
    started = time.monotonic()
    yield
    log.info("store.migrated", migration=migration.name, took_s=round(time.monotonic() - started, 1))
