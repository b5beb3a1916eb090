"""PostgreSQL's errors as ours: the class decides what happens next."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from timer_service.domain.errors import (
    InvalidConfiguration,
    RequestRefused,
    StoreBusy,
    StoreFailed,
    StoreFull,
    TimerServiceError,
)

_DISK_FULL: Final = "53100"
_BUSY: Final = frozenset({
    "25006",  # read-only: a replica, or a failover in progress
    "25P03",  # held a transaction too long, so the server ended it
    "25P04",
    "40001",  # serialization failure
    "40P01",  # deadlock
    "53200",  # out of memory
    "53300",  # too many connections
    "53400",
    "55P03",  # a lock was not to be had in time
    "57014",  # a statement took too long
    "57P01",  # shutting down
    "57P02",
    "57P03",  # starting up
    "57P05",
})  # fmt: skip
_CONNECTION: Final = "08"
_DATA: Final = "22"
_DAMAGE: Final = frozenset({
    "58030",  # the disk failed
    "58P01",  # a file is gone
    "58P02",
    "XX001",
    "XX002",
})  # fmt: skip
"""Any of these ends the process, even in a question: nothing must be built on such data."""
_ADVICE: Final = {
    "28000": "the server does not let this user in; check TIMER_STORE_URL and pg_hba.conf",
    "28P01": "the password is wrong; check TIMER_STORE_URL",
    "3D000": "create the database, or check TIMER_STORE_URL",
    "42501": "grant this user what docs/postgresql.md lists",
    "42P01": "the table is gone; restore the database from a backup",
    "XX001": "the database is corrupt; restore it from a backup",
    "XX002": "an index is corrupt; run REINDEX",
}


@contextmanager
def translated(where: str, *, asked: bool = False) -> Iterator[None]:
    """Turn the errors of the server, the connection and the driver into ours.

    Where a stranger `asked`, what is wrong may be the request: only damage to the data is critical then.
    """
    try:
        yield
    except TimerServiceError:
        raise
    except asyncpg.PostgresError as error:
        raise _by_code(error, where, asked=asked) from error
    except asyncpg.ClientConfigurationError as error:
        raise InvalidConfiguration(f"TIMER_STORE_URL: {error}") from error
    except ssl.SSLCertVerificationError as error:
        raise StoreFailed(f"{where}: {error}; check the certificates in TIMER_STORE_URL") from error
    except TimeoutError as error:
        raise StoreBusy(f"{where}: no answer in time") from error
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise StoreBusy(f"{where}: {error}") from error


def _by_code(error: asyncpg.PostgresError, where: str, *, asked: bool) -> TimerServiceError:
    code = error.sqlstate or ""
    what = f"{where}: {error} ({code})"
    if code == _DISK_FULL:
        return StoreFull(what)
    if asked and code.startswith(_DATA):  # The driver's own complaints about a value have this class, too.
        return RequestRefused(what)
    # A statement prepared before another instance's migration is prepared again at the next try.
    outdated = isinstance(error, asyncpg.InvalidCachedStatementError)
    if code in _BUSY or code.startswith(_CONNECTION) or outdated or (asked and code not in _DAMAGE):
        return StoreBusy(what)
    return StoreFailed(f"{what}: {_ADVICE.get(code, 'the store failed; see the log of the server')}")
