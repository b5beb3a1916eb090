"""The one tree of errors; the class decides what happens to the work in hand.

TimerServiceError
├── TransientError        retry with backoff, lose nothing
│   ├── StoreBusy         another connection holds the database
│   ├── StoreFull         no space left; recovers when space returns
│   └── BusUnavailable    the broker is away
├── PermanentError        dead letter, then terminate; never retried
│   └── CommandRefused    carries the reason and what is allowed
└── CriticalError         one clear line, exit code not 0
    ├── InvalidConfiguration
    ├── BrokerRefused     the broker does not accept our credentials
    ├── StoreInUse        another process owns the database
    ├── StoreTooNew       written by a newer version of the program
    └── StoreFailed       corrupt, unreadable, or the disk failed
"""

from enum import StrEnum


class TimerServiceError(Exception):
    """Anything the service raises on purpose."""


class TransientError(TimerServiceError):
    """It may work later: keep the work and try again."""


class StoreBusy(TransientError):
    """Another connection holds the database."""


class StoreFull(TransientError):
    """There is no space left for the database."""


class BusUnavailable(TransientError):
    """The broker is away."""


class PermanentError(TimerServiceError):
    """It will never work: set the work aside where a person can see it."""


class RefusalReason(StrEnum):
    """Why a message is refused; the word stands in the dead letter."""

    NOT_JSON = "not_json"
    INVALID = "invalid"
    UNKNOWN_TYPE = "unknown_type"
    TENANT_MISMATCH = "tenant_mismatch"
    TOO_LARGE = "too_large"


class CommandRefused(PermanentError):
    """A message that is no valid command."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class CriticalError(TimerServiceError):
    """The process cannot go on; its text says what is wrong and what to do."""


class InvalidConfiguration(CriticalError):
    """A setting has a value that is not allowed."""


class BrokerRefused(CriticalError):
    """The broker does not accept our credentials."""


class StoreInUse(CriticalError):
    """Another process owns the database."""


class StoreTooNew(CriticalError):
    """The database was written by a newer version of this program."""


class StoreFailed(CriticalError):
    """The database is corrupt or unreadable, or its disk failed."""
