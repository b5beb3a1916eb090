"""One process per SQLite file."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timer_service.domain.errors import StoreFailed, StoreInUse


@contextmanager
def sole_owner(database: Path) -> Iterator[None]:
    """Hold the file's lock; raise StoreInUse where another process has it.

    The lock is the kernel's and ends with the process, however that ends. It is on a file of its own,
    because closing any descriptor of the database itself would drop SQLite's own locks.
    """
    lock_path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreFailed(f"cannot open {lock_path}: {error.strerror}; check TIMER_DB_PATH") from error
    try:
        _lock(descriptor, database)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, database: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise StoreInUse(
            f"{database} is in use by another timer-service (process {holder}): two would fire every timer "
            "twice; stop that one, or set TIMER_DB_PATH to another file"
        ) from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise StoreFailed(
            f"cannot write beside {database}: {error.strerror}; free space, or change TIMER_DB_PATH"
        ) from error
