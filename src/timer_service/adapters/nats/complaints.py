"""Words for errors. Those that the client reports are said when they begin and when they are over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from nats.errors import NoServersError, SlowConsumerError
from nats.js.errors import ServiceUnavailableError

QUIET_S: Final = 10.0
"""What has not been reported for this long is over."""
MAX_KINDS: Final = 20
OTHERS: Final = "other errors of the connection"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Kind:
    times: int
    last_at: float


class Complaints:
    """What the client complains of at present; a flood of errors is not a flood of lines."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._kinds: dict[str, _Kind] = {}

    def note(self, error: Exception) -> None:
        """Count an error; log it if it is the first of its kind."""
        detail = _detail(error)
        if detail not in self._kinds and len(self._kinds) >= MAX_KINDS:
            detail = OTHERS
        now = self._elapsed_s()
        kind = self._kinds.get(detail)
        if kind is None:
            self._kinds[detail] = _Kind(1, now)
            log.warning("broker.error", detail=detail)
        else:
            kind.times += 1
            kind.last_at = now

    def look(self) -> None:
        """Say what is over, and how often it was reported."""
        quiet_since = self._elapsed_s() - QUIET_S
        for detail in [detail for detail, kind in self._kinds.items() if kind.last_at <= quiet_since]:
            times = self._kinds.pop(detail).times
            if times > 1:
                log.info("broker.error_passed", detail=detail, times=times)


def reason(error: BaseException) -> str:
    """Return what an error says to a person."""
    if isinstance(error, NoServersError):
        return "no server answers"
    if isinstance(error, ServiceUnavailableError):
        return f"JetStream does not answer: is it enabled? ({error.description or 'no responders'})"
    return str(error) or type(error).__name__


def _detail(error: Exception) -> str:
    if isinstance(error, SlowConsumerError):
        # By subscription: the subject is the sender's to choose.
        return f"messages arrive on {error.sub.subject} faster than they are handled: some are dropped"
    return reason(error)
