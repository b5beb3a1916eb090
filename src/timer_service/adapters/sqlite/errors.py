"""SQLite's errors as ours: the class decides what happens next."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timer_service.domain.errors import StoreBusy, StoreFailed, StoreFull, TimerServiceError


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except TimerServiceError:
        raise
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> TimerServiceError:
    """Return our error for one of SQLite's, with what to do about it."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    what = f"{path}: {error} ({name})"
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(what)  # The WAL's index could not grow.
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_INTERRUPT:
            return StoreBusy(what)
        case sqlite3.SQLITE_FULL:
            return StoreFull(what)
        case sqlite3.SQLITE_CORRUPT:
            return StoreFailed(f"{what}: the database is corrupt; restore it from a backup")
        case sqlite3.SQLITE_NOTADB:
            return StoreFailed(f"{what}: TIMER_DB_PATH must name a SQLite database or a new file")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreFailed(f"{what}: TIMER_DB_PATH must be a file this user may create and write")
    # After a failed fsync nobody knows what is on disk: never try the COMMIT again, start over from it.
    return StoreFailed(f"{what}: the store failed; restart once the disk works again")
