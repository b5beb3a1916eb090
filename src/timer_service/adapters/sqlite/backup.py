"""Copy a database that is in use, as it was at one moment, and prove the copy."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timer_service.adapters.sqlite.api_keys import keys_path
from timer_service.adapters.sqlite.audit import audit_path
from timer_service.adapters.sqlite.secrets import secrets_path
from timer_service.domain.errors import CriticalError

Counts = tuple[int, int]
"""All timers, and those that are pending."""

BESIDE: Final = (keys_path, secrets_path, audit_path)
"""Where the small files of a database are: keys of the API, secrets of callbacks, actions on the page."""
_COUNT: Final = "SELECT count(*), count(*) FILTER (WHERE state = 'Scheduled') FROM timer_schedules"


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds."""

    timers: int
    pending: int
    size_bytes: int


def count_timers(link: sqlite3.Connection) -> Counts:
    """Return how many timers there are, and how many of them are pending."""
    timers, pending = link.execute(_COUNT).fetchone()
    return int(timers), int(pending)


def copy_database(
    database: Path,
    copy: Path,
    *,
    count: Callable[[sqlite3.Connection], Counts] = count_timers,
    mode: str = "ro",
) -> Counts:
    """Copy everything as it is at one moment, and return what was counted at that moment."""
    # Made here, so that nobody else may read it from the first byte on.
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with (
        closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode={mode}", uri=True)) as source,
        closing(sqlite3.connect(copy)) as destination,
    ):
        # One read transaction around count and copy: both see the same moment, and no writer waits for us.
        source.execute("BEGIN")
        expected = count(source)
        source.backup(destination)
        source.rollback()
        # A plain file of its own, without a log beside it.
        destination.execute("PRAGMA journal_mode = DELETE")
    return expected


def back_up(
    database: Path, target: Path, *, copy: Callable[[Path, Path], Counts] = copy_database
) -> BackupReport:
    """Copy the database; the service goes on reading and writing meanwhile.

    The copy appears under its name only once it is whole, verified and on disk.
    """
    if target.exists():
        raise CriticalError(f"{target} already exists: choose another name, or move it away")
    if not database.is_file():
        raise CriticalError(f"there is no database at {database}: check TIMER_DB_PATH")
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        _back_up_beside(database, target)
        unfinished.unlink(missing_ok=True)
        expected = copy(database, unfinished)
        _verify(unfinished, expected)
        _sync(unfinished)
        unfinished.rename(target)
        _sync(target.resolve().parent)
    except (sqlite3.Error, OSError) as error:
        raise CriticalError(f"backup of {database} to {target} failed: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    timers, pending = expected
    return BackupReport(timers, pending, target.stat().st_size)


def _back_up_beside(database: Path, target: Path) -> None:
    """Copy the small files that belong to the database; the key that opens secrets is not one of them."""
    for path_beside in BESIDE:
        source, copy = path_beside(database), path_beside(target)
        if source.exists():
            copy.unlink(missing_ok=True)
            # Not only to read: a change that was cut off in a file without a log has to be undone first.
            copy_database(source, copy, count=lambda _: (0, 0), mode="rw")
            _sync(copy)


def _verify(copy: Path, expected: Counts) -> None:
    with closing(sqlite3.connect(f"{copy.resolve().as_uri()}?mode=ro", uri=True)) as link:
        [problem] = link.execute("PRAGMA integrity_check(1)").fetchone()
        found = count_timers(link)
    if problem != "ok":
        raise CriticalError(f"the copy is damaged ({problem}): check the source with PRAGMA integrity_check")
    if found != expected:
        raise CriticalError(f"the copy holds {found[0]} timers, the source {expected[0]}: try again")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
