"""One timer with a callback: what its tenant was told and what its receiver saw, which must agree."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tests.simulation.clock import START_MS
from tests.simulation.hooks import ABANDON, CANCEL, RETRY, SCHEDULE, Hook, Want, retry_after_s
from tests.simulation.loop import Lively
from timer_service.domain.delivery import Answered, CallbackRequest, CallResult, Delivery, DeliveryState
from timer_service.domain.messages import epoch_ms
from timer_service.domain.timer import Outcome

TAKEN = Answered(200)
FINAL_STATUSES = frozenset({TAKEN.status, 410, 413})
"""What a receiver answers that has the callback, or that wants no other attempt."""
_ACCEPTED = (Outcome.SCHEDULED, Outcome.RESCHEDULED, Outcome.UNCHANGED)
_CANCELLED = (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED)


@dataclass(slots=True)
class Watch:
    """What a story needs to know of time, and whom it tells."""

    now_s: Callable[[], float]
    wall_ms: Callable[[], int]
    violated: Callable[[str, str], None]
    note: Callable[[str], None]
    slack_s: float
    """How long what was under way when it was abandoned may take to begin."""
    punctual_s: float
    disturbed: Callable[[float, float], bool]


@dataclass(slots=True)
class Attempt:
    """One request that a receiver saw."""

    number: int
    life: Lively
    began_s: float
    result: CallResult | None = None
    """None as long as the service has no answer."""
    ended_ms: int = 0
    ended_s: float = 0.0


@dataclass(slots=True)
class Story:
    """All that is known of one timer with a callback."""

    hook: Hook
    watch: Watch
    is_well: bool
    """Whether its receiver takes whatever it is sent."""
    wants: deque[Want] = field(default_factory=deque)
    """What its tenant has not been told of yet; the first is being asked for."""
    dues_ms: set[int] = field(default_factory=set)
    """When it may be due: as it was told last, and as is being asked for."""
    sent_before: bool = False
    """Whether its receiver had seen it when its tenant last asked for something."""
    sent_due_ms: int = 0
    hoped_ms: int | None = None
    """The one of these that is only being asked for."""
    accepted_s: float | None = None
    """When a tenant was told that it is scheduled."""
    cancelled: bool = False
    asked_again: bool = False
    """Whether a schedule that takes back a cancel is on its way: it counts from its commit on."""
    in_doubt: bool = False
    """Whether a tenant gave up asking."""
    again_in_s: float = 0.0
    id: UUID | None = None
    attempts: list[Attempt] = field(default_factory=list)
    series_from: int = 0
    """How many attempts were made before it was last sent again on request."""
    retry_asked_s: float = -1.0
    is_retried: bool = False
    """Whether a tenant was told so, and no attempt has come since."""
    abandon_asked: bool = False
    abandoned_s: float | None = None

    # What its tenant does.

    def asked(self, want: Want) -> None:
        """Take note of a request that is on its way."""
        self.sent_before = bool(self.attempts)
        if want.kind == SCHEDULE:
            self.asked_again = not want.if_absent
            self.hoped_ms = None if _ms(want.due_s) in self.dues_ms else _ms(want.due_s)
            self.dues_ms.add(_ms(want.due_s))
        elif want.kind == RETRY:
            self.retry_asked_s = self.watch.now_s()
            self.abandoned_s = None
        elif want.kind == ABANDON:
            self.abandon_asked, self.is_retried = True, False

    def answered(self, want: Want, outcome: Outcome) -> None:
        """Check a definite answer to a request about the timer."""
        self.asked_again = False
        if want.kind == CANCEL:
            self.cancelled = outcome in _CANCELLED
            if self.cancelled and self.attempts:
                self._violated("I4", "`cancelled` was answered after a request was sent")
            return
        if want.if_absent and outcome is not Outcome.SCHEDULED:
            is_own = outcome is Outcome.UNCHANGED and self.accepted_s is None
            if not is_own:  # The repetition of what was accepted, but not heard of.
                self.dues_ms.discard(self.hoped_ms or 0)
        elif outcome in _ACCEPTED:
            self.dues_ms = {_ms(want.due_s)}
            self.cancelled = False
            # It may fire before the answer is heard, but not have fired before it was asked for.
            if self.sent_before or (self.attempts and self.sent_due_ms != _ms(want.due_s)):
                self._violated("I4", f"`{outcome}` was answered after a request was sent")
        if self.accepted_s is None or outcome in _ACCEPTED:
            self.accepted_s = self.watch.now_s()

    def told_of_delivery(self, want: Want, delivery: Delivery | None) -> None:
        """Take note of the answer to a request about what became of the callback."""
        if delivery is None:
            return
        if want.kind == ABANDON and delivery.state is DeliveryState.ABANDONED:
            self.abandoned_s = self.watch.now_s()
        made = self.attempts[-1].number if self.attempts else 0
        is_new = 0 < made == delivery.series_from
        if want.kind == RETRY and delivery.state is DeliveryState.WAITING and is_new:
            self.is_retried = True
            self.series_from = made

    # What its receiver sees.

    def requested(self, request: CallbackRequest, life: Lively) -> CallResult:
        """Judge a request, and return what becomes of it."""
        watch, now_ms, due_ms = self.watch, self.watch.wall_ms(), epoch_ms(request.due_at)
        if due_ms not in self.dues_ms:
            self._violated("I4", f"a request for {due_ms}, but it was asked for {self.dues_ms}")
        if now_ms < due_ms:
            self._violated("I2", "a request before the due time")
        if self.cancelled and not self.asked_again:
            self._violated("I4", "a request after `cancelled` was answered")
        if self.id not in (None, request.id):
            self._violated("I3", f"{request.id} is another id than {self.id}")
        if self._has_expired(now_ms, due_ms):
            self._violated("I2", "a request that comes too late to be of use")
        if self.abandoned_s is not None and watch.now_s() > self.abandoned_s + watch.slack_s:
            self._violated("I4", "a request long after `abandoned` was answered")
        if not self.attempts:
            self._check_punctual(due_ms)
        self.id, self.sent_due_ms = request.id, due_ms
        self._check_number(request.attempt, life, now_ms)
        self.is_retried = False
        made, script = len(self.attempts), self.hook.answers
        self.attempts.append(Attempt(request.attempt, life, watch.now_s()))
        return script[made] if made < len(script) else TAKEN

    def ended(self, attempt: Attempt, result: CallResult) -> None:
        """Take note that the service has the answer of the receiver."""
        attempt.result, attempt.ended_ms, attempt.ended_s = (
            result,
            self.watch.wall_ms(),
            self.watch.now_s(),
        )

    def _check_number(self, number: int, life: Lively, now_ms: int) -> None:
        last = self.attempts[-1] if self.attempts else None
        before = 0 if last is None else last.number
        lost = last is not None and life is not last.life and self._may_be_lost(last)
        if last is not None and number == before and (lost or self.abandon_asked):
            # Its outcome was lost with the process, or came when nobody waited for it any more.
            self.series_from = number - 1 if self.abandon_asked else self.series_from
            return
        if number != before + 1:
            self._violated("I3", f"attempt {number} after {before}")
        if last is None:
            return
        is_over = self._is_over(last)
        # A request that nobody was answered may have had its effect.
        was_retried = self.is_retried or self.retry_asked_s >= last.ended_s
        if last.result is None or (is_over and not was_retried):
            self._violated("I3", f"attempt {number} after {last.result}")
        elif was_retried and (is_over or self.abandon_asked or self.hook.expires_s is not None):
            self.series_from = before
        elif not self.is_retried and now_ms < last.ended_ms + self._pause_ms(last):
            self._violated("I2", f"attempt {number} comes too early")

    def _may_be_lost(self, last: Attempt) -> bool:
        """Return whether the outcome of an attempt may have been lost with its process, or its claim."""
        return last.life.dead or self.watch.disturbed(last.began_s, self.watch.now_s())

    def _check_punctual(self, due_ms: int) -> None:
        """Check that a callback to a receiver that is well waits for nobody else's."""
        watch, now_s = self.watch, self.watch.now_s()
        if self.accepted_s is None or not self.is_well or self.retry_asked_s >= 0:
            return
        since = max(self.accepted_s, now_s - (watch.wall_ms() - due_ms) / 1000)
        if now_s - since > watch.punctual_s and not watch.disturbed(since, now_s):
            self._violated("I7", f"{now_s - since:.3f} s late although nothing is wrong")

    # What must hold at the end.

    def is_owed(self) -> bool:
        """Return whether its callback still has to come."""
        if self.in_doubt or self.wants:
            return False
        if self.is_retried:
            return True
        now_ms, expires_s = self.watch.wall_ms(), self.hook.expires_s
        if expires_s is not None and now_ms > max(self.dues_ms, default=0) + expires_s * 1000:
            return False
        if self.abandon_asked:
            return False
        if not self.attempts:
            return self.accepted_s is not None and not self.cancelled
        return not self._is_over(self.attempts[-1])

    def _is_over(self, last: Attempt) -> bool:
        """Return whether nothing more is sent after an attempt unless somebody asks for it."""
        is_last = last.number - self.series_from >= len(self.hook.delays_s) + 1
        return last.result is not None and (is_final(last.result) or is_last)

    def _has_expired(self, now_ms: int, due_ms: int) -> bool:
        expires_s = self.hook.expires_s
        return expires_s is not None and self.retry_asked_s < 0 and now_ms > due_ms + expires_s * 1000

    def _pause_ms(self, last: Attempt) -> float:
        """Return what the schedule or the receiver asks for after an attempt that failed."""
        assert last.result is not None
        delay_s = self.hook.delays_s[last.number - self.series_from - 1]
        return 1000 * max(delay_s, retry_after_s(last.result))

    def _violated(self, invariant: str, text: str) -> None:
        self.watch.violated(invariant, f"{self.hook.tenant}/{self.hook.call}: {text}")


def is_final(result: CallResult) -> bool:
    """Return whether there is nothing to repeat."""
    return isinstance(result, Answered) and (result.status in FINAL_STATUSES or result.final)


def _ms(due_s: float) -> int:
    return START_MS + round(due_s * 1000)
