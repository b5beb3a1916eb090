"""What is remembered of requests: counts for `$SRV.STATS`, and one log line per change of state."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog
from nats.micro.service import EndpointStats

from timer_service.domain.errors import TimerFiring, TimerOvertaken, TransientError
from timer_service.domain.messages import TenantId

QUIET_S: Final = 5.0
"""After this long without another one, a spell is over."""
MAX_SPELLS: Final = 1_000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Tally:
    """What `$SRV.STATS` says of one endpoint."""

    errors: int = 0
    last_error: str = ""
    nanoseconds: int = 0


class Spells:
    """Tells once when something begins to go wrong, and once when it is over; never for each time."""

    def __init__(self) -> None:
        self._spells: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def begins(self, key: str, now_s: float) -> bool:
        """Count one more; return whether it is the first of a spell."""
        last = self._spells.pop(key, None)
        self._spells[key] = (now_s, 1 if last is None else last[1] + 1)
        if len(self._spells) > MAX_SPELLS:
            self._spells.popitem(last=False)
        return last is None

    def ends(self, key: str, now_s: float) -> int:
        """Return how many a spell had, if it is over now; otherwise 0."""
        if key not in self._spells or now_s - self._spells[key][0] < QUIET_S:
            return 0
        return self._spells.pop(key)[1]


class RequestNotes:
    """Counts every request, and logs only what changes."""

    def __init__(self, answered: Callable[[str, str, float], None]) -> None:
        self._answered = answered
        self._spells = Spells()
        self._tallies: dict[str, _Tally] = {}

    def begin(self, endpoints: Iterable[str]) -> None:
        """Count from zero, as a new connection does."""
        self._tallies = {name: _Tally() for name in endpoints}

    def complete(self, stats: EndpointStats) -> None:
        """Put in what nats-py cannot see, because requests are worked on beside its handlers."""
        tally = self._tallies[stats.name]
        stats.num_errors = tally.errors
        stats.last_error = tally.last_error
        stats.processing_time = tally.nanoseconds
        stats.average_processing_time = tally.nanoseconds // max(1, stats.num_requests)

    def answered(self, endpoint: str, outcome: str, took_ns: int, error: str) -> None:
        """Count one answer."""
        self._answered(endpoint, outcome, took_ns / 1e9)
        tally = self._tallies[endpoint]
        tally.nanoseconds += took_ns
        if error:
            tally.errors += 1
            tally.last_error = f"{outcome}: {error}"

    def limited(self, now_s: float, tenant_id: TenantId, endpoint: str) -> None:
        """Record that a tenant asks too often."""
        if self._spells.begins(f"tenant {tenant_id}", now_s):
            log.warning("requests.limited", tenant_id=tenant_id, endpoint=endpoint)

    def allowed(self, now_s: float, tenant_id: TenantId) -> None:
        """Record that a tenant's request is taken."""
        if refused := self._spells.ends(f"tenant {tenant_id}", now_s):
            log.info("requests.unlimited", tenant_id=tenant_id, refused=refused)

    def failing(self, now_s: float, failure: TransientError) -> None:
        """Record why a request got no answer; that its timer is being fired is nobody's fault."""
        own_fault = not isinstance(failure, TimerFiring | TimerOvertaken)
        if own_fault and self._spells.begins("failing", now_s):
            log.warning("requests.failing", kind=type(failure).__name__, detail=str(failure))

    def works(self, now_s: float) -> None:
        """Record that a request got its answer."""
        if refused := self._spells.ends("failing", now_s):
            log.info("requests.recovered", refused=refused)

    def ignored(self, now_s: float, endpoint: str, reply: str, subject: str) -> None:
        """Record a request whose answer would go where it must not."""
        if self._is_news("ignored", now_s):
            log.warning("request.ignored", endpoint=endpoint, reply=reply, subject=subject)

    def crashed(self, now_s: float, endpoint: str) -> None:
        """Record an error that nobody has thought of, with its traceback."""
        if self._is_news(f"crashed {endpoint}", now_s):
            log.exception("request.failed", endpoint=endpoint)  # noqa: LOG004 - inside the caller's handler

    def _is_news(self, key: str, now_s: float) -> bool:
        """Count one more; return whether it is the first, or the first after a quiet time."""
        self._spells.ends(key, now_s)
        return self._spells.begins(key, now_s)
