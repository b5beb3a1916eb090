"""The one tree of errors; the class decides what happens to the work in hand.

TimerServiceError
├── TransientError        retry with backoff, lose nothing
│   ├── StoreBusy         another connection holds the database
│   ├── StoreFull         no space left; recovers when space returns
│   ├── TimerFiring       a request came while the timer's event is on its way
│   ├── TimerOvertaken    newer commands came in while a request was carried out, again and again
│   ├── BusUnavailable    the broker is away
│   └── GivenUp           the service stops before the store took a change
├── RightMissing          the broker forbids a look that only an explanation needs: said, nothing else
├── PermanentError        dead letter, then terminate; never retried
│   ├── CommandRefused    carries the reason and what is allowed
│   ├── RequestRefused    a request with a value that the store cannot hold: answered, no letter
│   └── TimerNotFound     a request for a timer that does not exist: answered, no letter
└── CriticalError         one clear line, exit code not 0
    ├── InvalidConfiguration
    ├── BrokerRefused     the broker does not accept our credentials
    ├── StoreInUse        another process owns the database
    ├── StoreTooNew       written by a newer version of the program
    └── StoreFailed       corrupt, unreadable, or the disk failed
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class TimerServiceError(Exception):
    """Anything the service raises on purpose.

    Its text is for the operator and may name hosts and paths; `public` is what a tenant is told.
    """

    public: str = "internal error; the service's log says more"


class TransientError(TimerServiceError):
    """It may work later: keep the work and try again."""

    public = "the service is busy"


class StoreBusy(TransientError):
    """Another connection holds the database."""

    public = "the store is busy"


class StoreFull(TransientError):
    """There is no space left for the database."""

    public = "the store is full"


class TimerFiring(TransientError):
    """The timer is due, and whether its event is out is not known yet."""

    public = "the timer is due and its firing is not confirmed yet"


class TimerOvertaken(TransientError):
    """Commands that are newer than the request keep coming in for its timer."""

    public = "newer commands for this timer are still coming in"


class BusUnavailable(TransientError):
    """The broker is away."""

    public = "the broker is away"


class GivenUp(TransientError):
    """The service stops while a change of the store fails again and again."""


class RightMissing(TimerServiceError):
    """The broker does not let us look; its text says what to grant."""

    public = "the service is not permitted to read this; its operator can grant it (docs/permissions.md)"


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
    """A message that is not a valid command."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class RequestRefused(PermanentError):
    """A request holds a value that the store cannot hold."""

    public = "a value of the request cannot be stored: no NUL, no lone surrogates"


class TimerNotFound(PermanentError):
    """A request is about a timer that does not exist."""

    def __init__(self, service_call_id: str) -> None:
        self.public = f"there is no timer {service_call_id!r}"
        super().__init__(self.public)


class CriticalError(TimerServiceError):
    """The process cannot go on; its text says what is wrong and what to do."""

    public = "the service cannot go on"


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


@contextmanager
def telling_of_failure(tell: Callable[[CriticalError], None]) -> Iterator[None]:
    """Report what must end the service: a failed question is only answered, and no loop would learn of it."""
    try:
        yield
    except CriticalError as error:
        tell(error)
        raise
