"""One process per SQLite file, by whatever name it goes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from timer_service.domain.errors import StoreFailed, StoreInUse


@dataclass(frozen=True, slots=True)
class Ownership:
    """The one file that is ours, and whether it was there before."""

    path: Path
    identity: tuple[int, int]
    created: bool

    def check(self) -> None:
        """Raise StoreFailed if the path no longer leads to our file: what is written would be lost."""
        try:
            found = _identity(self.path.stat())
        except OSError:
            found = None
        if found != self.identity:
            raise StoreFailed(
                f"{self.path} was removed or replaced while the service was using it: put it back, or "
                "restore it from a backup, then start again"
            )


@contextmanager
def sole_owner(database: Path) -> Iterator[Ownership]:
    """Hold the file's locks; raise StoreInUse if another process has one.

    The locks are the kernel's and end with the process, however that ends. One is on a file of its own that
    says who holds it. The other is on the database itself, so that neither another name for it nor the loss
    of the first file lets a second process in.
    """
    with _lock_file(database), _locked(database) as ownership:
        yield ownership


@contextmanager
def _lock_file(database: Path) -> Iterator[None]:
    lock_path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreFailed(f"cannot open {lock_path}: {error.strerror}; check TIMER_DB_PATH") from error
    try:
        if not _try_lock(descriptor):
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise _in_use(database, f" (process {holder})")
        _sign(descriptor, database)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked(database: Path) -> Iterator[Ownership]:
    """Lock the database file itself; make it if there is none, readable by nobody else."""
    created = not database.exists()
    try:
        # Open as long as SQLite is: closing any descriptor of the file drops all locks that SQLite has on it.
        descriptor = os.open(database, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreFailed(
            f"{database}: {error.strerror}: TIMER_DB_PATH must be a file this user may create and write"
        ) from error
    try:
        # flock, which SQLite does not use: its own locks are of another kind and are not affected.
        if not _try_lock(descriptor):
            raise _in_use(database, "")
        status = os.fstat(descriptor)
        if status.st_nlink > 1:
            raise StoreFailed(
                f"{database} has {status.st_nlink} names (hard links): changes made under one are not seen "
                "under another, because each name has a log of its own; remove the others"
            )
        yield Ownership(database, _identity(status), created)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sign(descriptor: int, database: Path) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise StoreFailed(
            f"cannot write beside {database}: {error.strerror}; free space, or change TIMER_DB_PATH"
        ) from error


def _in_use(database: Path, by_whom: str) -> StoreInUse:
    return StoreInUse(
        f"{database} is in use by another timer-service{by_whom}: two would fire every timer "
        "twice; stop that one, or set TIMER_DB_PATH to another file"
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
