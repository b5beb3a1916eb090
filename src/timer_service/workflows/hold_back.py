"""Remember what could not be published, so that it holds up nobody else."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timer_service.domain.messages import DueTimeReached, TenantId
from timer_service.ports.event_bus import Published, PublishResult
from timer_service.ports.timer_store import HeldBack, TimerKey

FIRST_PAUSE = timedelta(milliseconds=500)
LONGEST_PAUSE = timedelta(seconds=10)
MOST_ENTRIES = 5_000
TENANT_FAILURES = 10
"""So many failures in one batch, with no success beside them, are the tenant's and not the timers'."""

_Answer = tuple[DueTimeReached, Published]


@dataclass(frozen=True, slots=True)
class HoldBackChange:
    """How many timers and tenants began to fail with a batch, and how many work again."""

    held: int
    freed: int


@dataclass(frozen=True, slots=True)
class _Pause:
    attempts: int
    until: datetime


class HoldBack:
    """The timers and tenants that failed lately, each with the moment to try it again.

    Bounded: beyond MOST_ENTRIES the oldest entry is forgotten, which only means that it is tried sooner.
    """

    def __init__(self) -> None:
        self._pauses: dict[TimerKey | TenantId, _Pause] = {}
        self._held = self._freed = 0

    def at(self, now: datetime) -> HeldBack:
        """Return what to pass over at this moment."""
        held = [key for key, pause in self._pauses.items() if _holds(pause, now)]
        return HeldBack(
            tenants=frozenset(key for key in held if not isinstance(key, tuple)),
            timers=frozenset(key for key in held if isinstance(key, tuple)),
        )

    def ends_at(self, now: datetime) -> datetime | None:
        """Return the next moment at which something may be tried again."""
        return min((p.until for p in self._pauses.values() if _holds(p, now)), default=None)

    def record(
        self, events: Sequence[DueTimeReached], results: Sequence[PublishResult], now: datetime
    ) -> "HoldBackChange":
        """Learn from one batch: success frees a timer and its tenant, failure pauses them."""
        self._held = self._freed = 0
        answers = defaultdict[TenantId, list[_Answer]](list)
        for event, result in zip(events, results, strict=True):
            if result.outcome is not Published.DISCONNECTED:
                answers[event.tenant_id].append((event, result.outcome))
        for tenant_id, answered in answers.items():
            self._learn(tenant_id, answered, now)
        return HoldBackChange(held=self._held, freed=self._freed)

    def _learn(self, tenant_id: TenantId, answers: list[_Answer], now: datetime) -> None:
        failed = [event for event, outcome in answers if outcome is not Published.CONFIRMED]
        for event, outcome in answers:
            if outcome is Published.CONFIRMED:
                self._free((tenant_id, event.service_call_id))
        unanswered = any(outcome is Published.UNANSWERED for _, outcome in answers)
        if len(failed) < len(answers):
            self._free_tenant(tenant_id)
        elif unanswered or len(failed) >= TENANT_FAILURES:
            # Each unanswered event costs everybody a time-out, so its tenant is paused as a whole; its
            # timers for longer, so that the next tries go to others of them.
            pause = self._pause(tenant_id, now)
            self._pause_timers(failed, now, at_least=pause * 3)
            return
        self._pause_timers(failed, now)

    def _pause_timers(
        self, failed: list[DueTimeReached], now: datetime, at_least: timedelta = FIRST_PAUSE
    ) -> None:
        for event in failed:
            self._pause((event.tenant_id, event.service_call_id), now, at_least)

    def _pause(self, key: TimerKey | TenantId, now: datetime, at_least: timedelta = FIRST_PAUSE) -> timedelta:
        last = self._pauses.pop(key, None)
        self._held += last is None
        attempts = last.attempts + 1 if last else 1
        pause: timedelta = max(at_least, min(FIRST_PAUSE * 2 ** min(attempts - 1, 16), LONGEST_PAUSE))
        self._pauses[key] = _Pause(attempts, now + pause)
        if len(self._pauses) > MOST_ENTRIES:
            del self._pauses[next(iter(self._pauses))]
        return pause

    def _free(self, key: TimerKey | TenantId) -> None:
        self._freed += self._pauses.pop(key, None) is not None

    def _free_tenant(self, tenant_id: TenantId) -> None:
        """Let a tenant that works again have all its timers back."""
        if tenant_id in self._pauses:
            for key in [key for key in self._pauses if isinstance(key, tuple) and key[0] == tenant_id]:
                self._free(key)
            self._free(tenant_id)


def _holds(pause: _Pause, now: datetime) -> bool:
    # A pause that seems longer than the longest was set before the clock was stepped back.
    return now < pause.until <= now + 3 * LONGEST_PAUSE
