"""What can go wrong for a caller: one small tree."""

from datetime import timedelta


class TimerError(Exception):
    """Anything that this client raises, other than TypeError and ValueError for wrong arguments."""


class RequestRefused(TimerError):
    """The service answered a request with an error."""

    def __init__(self, code: str, description: str, retry_after_s: int | None = None) -> None:
        super().__init__(f"{code}: {description}")
        self.code = code
        self.description = description
        self.retry_after_s = retry_after_s
        """How long to wait before asking again, if the service says so."""


class TimerNotFound(RequestRefused):
    """The tenant has no such timer."""


class ServiceAway(TimerError):
    """Nobody answered: what was asked for may have been done, or not."""


class NotPermitted(TimerError):
    """The broker does not let this user do that."""


class TimerCancelled(TimerError):
    """Somebody cancelled the timer of a sleep."""


class ConsumerConflict(TimerError):
    """The name of a consumer is taken: by a running one, or by one that serves another purpose."""


class Reject(TimerError):
    """Raised by a handler: this firing can never be handled, so it must not come again."""


class Later(TimerError):
    """Raised by a handler: this firing cannot be handled now, it is to come again after a while."""

    def __init__(self, after: timedelta, why: str = "") -> None:
        super().__init__(why or f"again in {after}")
        self.after = after


class Fenced(TimerError):
    """Raised by a handler: another worker has taken over, so the broker must not be answered for it."""


class AlreadyHandled(TimerError):
    """Raised by `firing.once`: this firing was handled before, and the transaction has nothing to do.

    A consumer counts it as done.
    """
