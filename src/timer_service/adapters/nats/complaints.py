"""Errors that the client reports: each kind is said when it begins and when it is over, and counted."""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog
from nats.errors import SlowConsumerError

QUIET_S: Final = 10.0
"""What has not been reported for so long is over."""
MOST_KINDS: Final = 20
OTHERS: Final = "other errors of the connection"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Kind:
    times: int
    last_at: float


class Complaints:
    """What the client complains of at present; a flood of errors is not a flood of lines."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def note(self, error: Exception) -> None:
        """Count an error; say it where it is the first of its kind."""
        detail = _detail(error)
        if detail not in self._kinds and len(self._kinds) >= MOST_KINDS:
            detail = OTHERS
        now = asyncio.get_running_loop().time()
        kind = self._kinds.get(detail)
        if kind is None:
            self._kinds[detail] = _Kind(1, now)
            log.warning("broker.error", detail=detail)
        else:
            kind.times += 1
            kind.last_at = now

    def look(self) -> None:
        """Say what is over, and how often it was reported."""
        quiet_since = asyncio.get_running_loop().time() - QUIET_S
        for detail in [detail for detail, kind in self._kinds.items() if kind.last_at <= quiet_since]:
            times = self._kinds.pop(detail).times
            if times > 1:
                log.info("broker.error_passed", detail=detail, times=times)


def _detail(error: Exception) -> str:
    if isinstance(error, SlowConsumerError):
        # By subscription: the subject is the sender's to choose.
        return f"more messages come on {error.sub.subject} than are worked on: some are dropped"
    return str(error) or type(error).__name__
