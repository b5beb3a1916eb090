"""Find callbacks whose next attempt may begin, choose whose turn it is, and make the attempts."""

from collections.abc import Callable, Sequence, Set
from datetime import datetime
from typing import Final

from timer_service.domain.attempts import next_request
from timer_service.domain.delivery import (
    Answered,
    Attempt,
    CallResult,
    after_attempt,
    expire,
    is_postponed,
    is_success,
)
from timer_service.domain.lanes import MAX_LANE_QUEUE, Lane, Lanes
from timer_service.domain.messages import Event, ServiceCallId, TenantId, TimerKey
from timer_service.domain.values import value
from timer_service.ports.callback_sender import CallbackSender
from timer_service.ports.clock import Clock
from timer_service.ports.delivery_store import ClaimedDelivery, DeliveryQueue, Finished, Place

MAX_FOUND: Final = 250
"""What a look takes in at once; if there is more, the next one goes on. Meanwhile others may begin."""
MAX_FOUND_AGAIN: Final = 20
"""What is looked at again at once where nobody else can have left anything behind."""


@value(frozen=True, slots=True)
class Attempted:
    """An attempt that has ended."""

    finished: Finished
    result: CallResult | None
    """None if no attempt was made: it would have come too late, or could not be prepared."""
    started_at: datetime
    ended_at: datetime


class WaitingList:
    """What waits, as far as it is in memory: who is next, and where the next look goes on."""

    def __init__(self, store: DeliveryQueue, lanes: Lanes[TimerKey]) -> None:
        self._store = store
        self.lanes = lanes
        self._place: Place | None = None
        self._seen_all = False
        self._seen_again: Place | None = None
        """Up to where everything was looked at again, while that goes on."""
        self._fresh: list[Event] = []
        """Whose deliveries were just opened: they need not be looked for among all that waits."""
        self.next_attempt_at: datetime | None = None
        self.is_outdated = False
        """Whether somebody else had some of what was last to be claimed: others may begin in its place."""

    @property
    def is_behind(self) -> bool:
        """Whether to look again at once: more may begin than was taken in."""
        return bool(self._fresh) or (not self._seen_all and not self.lanes.seats.is_full)

    def look_again(self, since: datetime | None = None) -> None:
        """Let the next look begin again, or at attempts from a moment on: something was added there."""
        self._seen_all = False
        if since is None:
            self._place = None
        elif self._place is not None and since <= self._place[0]:
            # No id is empty: this is before all of that moment.
            self._place = (since, TenantId(""), ServiceCallId(""))

    def look_on(self) -> None:
        """Let the next look ask the store, even if nothing new is known of."""
        self._seen_all = False

    def comes_at(self, moment: datetime) -> None:
        """Note when an attempt may begin that is yet to come."""
        known = self.next_attempt_at
        self.next_attempt_at = moment if known is None else min(known, moment)

    def handed_over(self, events: Sequence[Event]) -> None:
        """Let the next look take in the deliveries that these firings have opened."""
        self._fresh += events

    async def look(self, now: datetime, now_s: float) -> None:
        """Take in what is fresh, one page of what may begin, and more of the lanes that have run low."""
        await self._take_in_fresh(now, now_s)
        await self._refill(now, now_s)
        # Also if that was noted only now: it may be behind the place at which the look goes on.
        if self.next_attempt_at is not None and self.next_attempt_at <= now:
            self.look_again(self.next_attempt_at)
            self.next_attempt_at = None
        if self._seen_all and self.lanes.seats.wants_more():
            self.look_again()
        if self._seen_all or self.lanes.seats.is_full:
            return
        # From here on: what is added while the store answers, which may not be in the answer, is said again.
        self._seen_all, self.next_attempt_at = True, None
        try:
            page = await self._store.due(now, MAX_FOUND, after=self._place)
        except BaseException:
            self._seen_all = False
            raise
        for each in page.found:
            self.lanes.offer(each.key, each.lane, now_s)
        if page.next_attempt_at is not None:
            self.comes_at(page.next_attempt_at)
        if self._seen_all:
            self._place = page.found[-1].place if page.found else self._place
            self._seen_all = len(page.found) < MAX_FOUND

    async def _refill(self, now: datetime, now_s: float) -> None:
        for lane in self.lanes.hungry():
            page = await self._store.due(now, 2 * MAX_LANE_QUEUE, lane=lane)
            if len(page.found) < 2 * MAX_LANE_QUEUE:
                self.lanes.has_no_more(lane)
            for each in page.found:
                self.lanes.offer(each.key, each.lane, now_s)

    async def look_at_known(self, now: datetime, now_s: float) -> bool:
        """Take in what was missed in one page of all that waits; return whether that was the last for now."""
        if self.lanes.seats.is_full:
            return True
        limit = MAX_FOUND if self._store.is_shared else MAX_FOUND_AGAIN
        page = await self._store.due(now, limit, after=self._seen_again)
        for each in page.found:
            self.lanes.offer(each.key, each.lane, now_s)
        is_last = len(page.found) < limit
        self._seen_again = None if is_last else page.found[-1].place
        return is_last

    async def _take_in_fresh(self, now: datetime, now_s: float) -> None:
        if taken := self._fresh[:MAX_FOUND]:
            fresh = {event.key: event.at for event in taken}
            found = () if self.lanes.seats.is_full else await self._store.due_among(list(fresh), now)
            del self._fresh[: len(taken)]  # More may have come meanwhile.
            for each in found:
                self.lanes.offer(each.key, each.lane, now_s)
                del fresh[each.key]
            if fresh:  # Not due by the clock of the database, changed meanwhile, or too many for now.
                self.look_again(min(fresh.values()))

    async def take(self, now: datetime, now_s: float) -> Sequence[ClaimedDelivery]:
        """Claim what may begin; what somebody else has claimed or ended meanwhile is forgotten."""
        keys = self.lanes.take(now_s)
        claimed: Sequence[ClaimedDelivery] = ()
        try:
            claimed = await self._store.claim(keys, now) if keys else ()
        except BaseException:
            self.look_again()  # They are found again.
            raise
        finally:
            self._lose({each.delivery.key for each in claimed}, keys, now_s)
        return claimed

    def _lose(self, ours: Set[TimerKey], keys: Sequence[TimerKey], now_s: float) -> None:
        """Forget what is not ours; if nothing of a lane is, doubt everything of it that waits here."""
        lost, held = set[Lane](), set[Lane]()
        for key in keys:
            (held if key in ours else lost).add(self.lanes.seats.lane_of(key))
            if key not in ours:
                self.lanes.done(key, None, now_s)
                self.lanes.forget(key)
        for lane in lost - held:
            self.lanes.outdate(lane)
        self.is_outdated = bool(lost)


async def attempt(
    claimed: ClaimedDelivery, *, sender: CallbackSender, clock: Clock, chance: Callable[[], float]
) -> Attempted:
    """Make one attempt and return what it came to; nothing of the store is held meanwhile."""
    before = claimed.delivery
    started_at = clock.now()
    if (expired := expire(before, started_at)) is not None:
        return Attempted(Finished(before, expired), None, started_at, started_at)
    request = next_request(before, claimed.callback, claimed.correlation_id, claimed.trace, started_at)
    result = await sender.send(request)
    ended_at = max(clock.now(), started_at)
    after = after_attempt(before, claimed.callback.retry, result, started_at, ended_at, chance)
    if is_postponed(result):
        return Attempted(Finished(before, after), None, started_at, ended_at)
    failure = None
    if not is_success(result):
        duration = ended_at - started_at
        said = result.said if isinstance(result, Answered) else None
        failure = Attempt(after.attempts, started_at, duration, after.status, after.error or "", said)
    return Attempted(Finished(before, after, failure), result, started_at, ended_at)
