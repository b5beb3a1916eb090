"""Remember what could not be published, so that it holds up no one else."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from timer_service.domain.cause import Cause
from timer_service.domain.messages import Event, TenantId, TimerKey
from timer_service.ports.event_sink import Published, PublishResult
from timer_service.ports.explanation import Obstacle
from timer_service.ports.timer_store import HeldBack

FIRST_PAUSE = timedelta(milliseconds=500)
MAX_PAUSE = timedelta(seconds=10)
FORGOTTEN_AFTER = timedelta(minutes=1)
"""What was not tried again for this long after its pause was cancelled, moved or fired by somebody else."""
MAX_ENTRIES = 5_000
TENANT_FAILURES = 10
"""This many failures in one batch, without a success, are the tenant's fault and not the timers'."""
MAX_OF_TENANT = 500
"""Timers of a tenant that waits as a whole: to keep more of them in mind would take the room of others."""
PROBE_TIMERS = 100
"""Timers that are tried at once while the stream accepts nothing."""

_Answer = tuple[Event, PublishResult]


@dataclass(frozen=True, slots=True)
class HoldBackChange:
    """How many timers and tenants began to fail with a batch, and how many work again."""

    held: int
    freed: int
    stopped: str | None = None
    """Why everything waits since this batch."""
    resumed: bool = False
    """Whether everything goes on since this batch."""


@dataclass(frozen=True, slots=True)
class _Pause:
    attempts: int
    until: datetime
    detail: str = ""
    """What the broker said last."""


class HoldBack:
    """The timers and tenants that failed lately, each with the moment to try it again.

    Bounded: beyond `max_entries` everything waits, as it does while the stream itself accepts nothing.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._pauses: dict[TimerKey | TenantId, _Pause] = {}
        self._everything: _Pause | None = None
        self._held = self._freed = 0
        self._has_room = True
        self._refusal: str | None = None

    @property
    def problem(self) -> str | None:
        """Why nothing is published, or only little of it."""
        if self._refusal is not None or self._has_room:
            return self._refusal
        return f"more than {self._max_entries} timers and tenants have events that cannot be published"

    def at(self, now: datetime) -> HeldBack:
        """Return what to pass over at this moment."""
        held = [key for key, pause in self._pauses.items() if _holds(pause, now)]
        return HeldBack(
            tenants=frozenset(key for key in held if not isinstance(key, tuple)),
            timers=frozenset(key for key in held if isinstance(key, tuple)),
        )

    def everything_until(self, now: datetime) -> datetime | None:
        """Return until when nothing at all is to be published; None if something is."""
        pause = self._everything
        return pause.until if pause is not None and _holds(pause, now) else None

    def obstacle(self, key: TimerKey, now: datetime) -> Obstacle | None:
        """Return what keeps a timer from being published; None if nothing does."""
        held = (
            (Cause.STREAM_REFUSES, self._everything),
            (Cause.TENANT_HELD_BACK, self._pauses.get(key[0])),
            (Cause.TIMER_HELD_BACK, self._pauses.get(key)),
        )
        for cause, pause in held:
            if pause is not None and _holds(pause, now):
                detail = pause.detail or self.problem or ""
                return Obstacle(cause, pause.until, pause.attempts, detail)
        return None

    def at_once(self, limit: int) -> int:
        """Return how many timers to try together."""
        return limit if self._refusal is None else min(limit, PROBE_TIMERS)

    def ends_at(self, now: datetime) -> datetime | None:
        """Return the next moment at which something may be tried again."""
        return self.everything_until(now) or min(
            (p.until for p in self._pauses.values() if _holds(p, now)), default=None
        )

    def record(
        self, events: Sequence[Event], results: Sequence[PublishResult], now: datetime
    ) -> "HoldBackChange":
        """Learn from one batch: success frees a timer and its tenant, failure pauses them."""
        self._held = self._freed = 0
        before = self.problem
        answers = list(zip(events, results, strict=True))
        # Nearly always all of it is confirmed and nobody was paused: there is nothing to free or to pause.
        if self._pauses or any(result.outcome is not Published.CONFIRMED for _, result in answers):
            for tenant_id, answered in _by_tenant(answers).items():
                self._learn(tenant_id, answered, now)
        self._learn_of_the_stream(results, now)
        self._has_room = self._has_room or self._make_room(now)
        problem = self.problem
        return HoldBackChange(
            held=self._held,
            freed=self._freed,
            stopped=problem if before is None else None,
            resumed=before is not None and problem is None,
        )

    def _learn_of_the_stream(self, results: Sequence[PublishResult], now: datetime) -> None:
        """Pause everything while the stream accepts nothing: no timer is to blame.

        If nothing is due anymore, there is nothing to wait for either.
        """
        refused = next((r.detail for r in results if r.outcome is Published.STREAM_REFUSED), None)
        if refused is not None:
            self._refusal = f"the event stream accepts nothing: {refused}"
            # Of the batches that were under way together only the first makes the pause longer.
            if self.everything_until(now) is None:
                attempts = self._everything.attempts + 1 if self._everything else 1
                self._everything = _Pause(attempts, now + _pause_after(attempts))
        elif not results or any(result.outcome is Published.CONFIRMED for result in results):
            self._refusal = None
            if self._has_room:
                self._everything = None

    def _learn(self, tenant_id: TenantId, answers: list[_Answer], now: datetime) -> None:
        failed = [answer for answer in answers if answer[1].outcome is not Published.CONFIRMED]
        for event, result in answers:
            if result.outcome is Published.CONFIRMED:
                self._free(event.key)
        unanswered = any(result.outcome is Published.UNANSWERED for _, result in failed)
        if len(failed) < len(answers):
            self._free_tenant(tenant_id)
        elif unanswered or len(failed) >= TENANT_FAILURES:
            # Each unanswered event costs everybody a time-out, so its tenant is paused as a whole; its
            # timers for longer, so that the next tries go to others of them.
            pause = self._pause(tenant_id, now, detail=failed[-1][1].detail)
            self._pause_timers(self._most_of(tenant_id, failed), now, at_least=pause * 3)
            return
        self._pause_timers(failed, now)

    def _most_of(self, tenant_id: TenantId, failed: list[_Answer]) -> list[_Answer]:
        """Return what is kept in mind of a tenant that waits as a whole."""
        known = [answer for answer in failed if answer[0].key in self._pauses]
        kept = sum(isinstance(key, tuple) and key[0] == tenant_id for key in self._pauses)
        new = [answer for answer in failed if answer[0].key not in self._pauses]
        return known + new[: max(0, MAX_OF_TENANT - kept)]

    def _pause_timers(self, failed: list[_Answer], now: datetime, at_least: timedelta = FIRST_PAUSE) -> None:
        for event, result in failed:
            self._pause(event.key, now, at_least, result.detail)

    def _pause(
        self,
        key: TimerKey | TenantId,
        now: datetime,
        at_least: timedelta = FIRST_PAUSE,
        detail: str = "",
    ) -> timedelta:
        last = self._pauses.pop(key, None)
        attempts = last.attempts + 1 if last else 1
        pause = max(at_least, _pause_after(attempts))
        if last is None and not self._make_room(now):
            # One that is not remembered would be tried again at once, so all have to wait.
            self._has_room = False
            self._everything = _Pause(1, now + MAX_PAUSE)
            return pause
        self._held += last is None
        self._pauses[key] = _Pause(attempts, now + pause, detail)
        return pause

    def _make_room(self, now: datetime) -> bool:
        """Forget what nobody has tried for long, the oldest first, and return whether there is room."""
        while len(self._pauses) >= self._max_entries:
            oldest, pause = next(iter(self._pauses.items()))
            if now < pause.until + FORGOTTEN_AFTER:
                return False
            del self._pauses[oldest]
        return True

    def _free(self, key: TimerKey | TenantId) -> None:
        self._freed += self._pauses.pop(key, None) is not None

    def _free_tenant(self, tenant_id: TenantId) -> None:
        """Let a tenant that works again have all its timers back."""
        if tenant_id in self._pauses:
            for key in [key for key in self._pauses if isinstance(key, tuple) and key[0] == tenant_id]:
                self._free(key)
            self._free(tenant_id)


def _by_tenant(answers: Iterable[_Answer]) -> dict[TenantId, list[_Answer]]:
    """Return what tells something about each tenant."""
    found = defaultdict[TenantId, list[_Answer]](list)
    for event, result in answers:
        if result.outcome not in (Published.DISCONNECTED, Published.STREAM_REFUSED):
            found[event.tenant_id].append((event, result))
    return found


def _pause_after(attempts: int) -> timedelta:
    pause: timedelta = min(FIRST_PAUSE * 2 ** min(attempts - 1, 16), MAX_PAUSE)
    return pause


def _holds(pause: _Pause, now: datetime) -> bool:
    # A pause that seems longer than the longest was set before the clock was stepped back.
    return now < pause.until <= now + 3 * MAX_PAUSE
