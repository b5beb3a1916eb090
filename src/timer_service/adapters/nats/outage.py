"""Why the broker cannot be used: said once when an outage begins and once when it is over."""

from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from timer_service.addresses import without_credentials
from timer_service.domain.errors import BusUnavailable

log = structlog.get_logger(__name__)


class Outage:
    """The outage that lasts, if one does."""

    def __init__(self, servers: Sequence[str], now: Callable[[], datetime]) -> None:
        self._servers = servers
        self._now = now
        self._reason: str | None = None
        self.since: datetime | None = now()
        """When it began; None while we are connected."""

    @property
    def reason(self) -> str:
        """What is wrong; a word for it also before the first connection."""
        return self._reason or "not connected yet"

    def error(self) -> BusUnavailable:
        """Return what to raise when the broker is needed."""
        return BusUnavailable(self._reason or "not connected to the broker yet")

    def begin(self, reason: str) -> None:
        """Say it once per change of state, not per try."""
        if self._reason is None:
            servers = [without_credentials(url) for url in self._servers]
            log.warning("broker.unavailable", detail=reason, servers=servers)
        self._reason = reason
        self.since = self.since or self._now()

    def end(self, server: str | None) -> None:
        """Say where we are connected to."""
        self._reason = self.since = None
        log.info("broker.connected", server=server)
