"""Let the due timers of a tenant wait for the commands that it sent before they were due.

A look reads the clock first and then asks the broker which tenants have commands waiting. For a tenant that
has none, some instance has applied everything that was stored up to that moment: all that is due may fire.
The due timers of the others are blocked until what was stored by then is applied, or the limit has passed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from typing import NamedTuple

from timer_service.domain.cause import Cause
from timer_service.domain.due_timer import DueTimer
from timer_service.domain.messages import TenantId
from timer_service.ports.command_source import Backlog
from timer_service.ports.explanation import Obstacle
from timer_service.ports.timer_store import HeldBack
from timer_service.workflows.unanswered import Unanswered

FIRST_PAUSE = timedelta(milliseconds=2)
MAX_PAUSE = timedelta(milliseconds=500)
MAX_ASKED = 200
"""Tenants that a look asks about by name; the others take their turn."""
RECENT_FENCES = 16
"""Last looks that are remembered; of older ones one for each sixteenth of the limit."""
_SILENT = "the command stream does not answer: due timers fire once they have waited for TIMER_CATCH_UP"


@dataclass(frozen=True, slots=True)
class CatchUpChange:
    """What one look came to for those who wait."""

    waiting: int = 0
    """Tenants with due timers that wait for commands."""
    let_go: int = 0
    """Timers that fire although commands of their tenant still wait: they have waited long enough."""
    given_up: tuple[TenantId, ...] = ()
    """Their tenants, where this was not known before."""
    recovered: bool = False
    """Whether the last tenant that was given up no longer has anything waiting."""
    stream_given_up: bool = False
    """Whether timers fire since this look although the command stream does not answer."""
    stream_recovered: bool = False
    """Whether it answers again since this look."""


class _Fence(NamedTuple):
    """What was stored up to a moment is not newer than a sequence."""

    moment: datetime
    sequence: int
    looked_s: float


@dataclass(slots=True)
class _Blocked:
    """A tenant with due timers that wait."""

    up_to: datetime | None
    """Nothing that was due by then is left."""
    oldest: int
    """No command that waits is older."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Which due timers may fire and which wait, as one look has found it."""

    now: datetime
    backlog: Backlog | None = None
    """None if nobody has to wait for anything."""
    proven: Mapping[TenantId, datetime | None] = field(default_factory=dict)
    """Of the blocked tenants: all that was stored up to this moment is applied."""
    floor: datetime | None = None
    """The same of every tenant."""
    expired: datetime | None = None
    """What was due by then has waited long enough."""
    expired_sequence: int = 0
    """What was stored by then."""
    held: frozenset[TenantId] = frozenset()
    """Tenants of which nothing can fire now."""
    up_to: datetime | None = None
    """Where the command stream does not answer: only what was due by then has waited long enough."""
    stream_recovered: bool = False
    """Whether the command stream answers again."""

    @property
    def due_by(self) -> datetime:
        """The moment up to which timers are due for this look."""
        return self.now if self.up_to is None else self.up_to

    def passed_over(self, held_back: HeldBack) -> HeldBack:
        """Return what a claim passes over, together with what is held back for other reasons."""
        if not self.held:
            return held_back
        return HeldBack(tenants=held_back.tenants | self.held, timers=held_back.timers)

    def let(self, timers: Sequence[DueTimer]) -> Sequence[DueTimer]:
        """Return those of the due timers that may fire."""
        if not self.in_question(timers):
            return timers
        return [timer for timer in timers if self.lets(timer)]

    def in_question(self, timers: Sequence[DueTimer]) -> Sequence[DueTimer]:
        """Return those whose tenant may have commands waiting: the others may fire."""
        # Nearly always nobody has: then a batch is let go as a whole, without a look at each timer.
        if self.backlog is None or self.backlog.tenants == frozenset():
            return ()
        return [timer for timer in timers if self.backlog.concerns(timer.tenant_id)]

    def lets(self, timer: DueTimer) -> bool:
        """Return whether a due timer may fire."""
        return self.is_proven(timer) or (self.expired is not None and timer.due_at <= self.expired)

    def is_proven(self, timer: DueTimer) -> bool:
        """Return whether every command that was stored before the timer was due is applied."""
        if self.backlog is None or not self.backlog.concerns(timer.tenant_id):
            return True
        moment = self.proven.get(timer.tenant_id, self.floor)
        return moment is not None and timer.due_at <= moment

    def limit(self, tenant_id: TenantId) -> datetime | None:
        """Return up to which due time the timers of a tenant that waits may fire."""
        return _later(self.proven.get(tenant_id, self.floor), self.expired)


class CatchUp:
    """Who waits for commands, and since when.

    Time counts only while we look: a pause of the process, or an outage of the broker or the store, leaves
    those who wait the whole limit.
    """

    def __init__(self, limit: timedelta) -> None:
        self._limit = limit
        self._max_pause = min(MAX_PAUSE, limit / 8)
        self._stream: str | None = None
        self._blocked: dict[TenantId, _Blocked] = {}
        self._given_up: dict[TenantId, int] = {}
        """Up to which sequence each is no longer waited for."""
        self._fences: list[_Fence] = []
        self._looked_s = 0.0
        self._looked_at: datetime | None = None
        self._vain_looks = 0
        self._stream_silence = Unanswered(limit)

    @property
    def is_off(self) -> bool:
        """Whether nobody waits for commands at all."""
        return not self._limit

    @property
    def is_at_ease(self) -> bool:
        """Whether nobody has waited and the broker has answered so far, which is nearly always so."""
        return not (self.is_off or self._blocked or self._given_up or self._stream_silence.is_silent)

    @property
    def is_waiting(self) -> bool:
        """Whether due timers wait for commands."""
        return bool(self._blocked)

    def obstacle(self, tenant_id: TenantId) -> Obstacle | None:
        """Return what the due timers of a tenant wait for; None if for nothing."""
        if self._stream_silence.is_silent:
            return Obstacle(Cause.COMMANDS_SILENT)
        return Obstacle(Cause.WAITS_FOR_COMMANDS) if tenant_id in self._blocked else None

    def ends_at(self, now: datetime) -> datetime | None:
        """Return when to look again because of those who wait."""
        pause = min(FIRST_PAUSE * 2 ** min(self._vain_looks, 16), self._max_pause)
        if self._stream_silence.ask_beside:
            pause = self._max_pause
        return now + pause if self._blocked or self._stream_silence.ask_beside else None

    @property
    def asks_beside(self) -> bool:
        """Whether looks go on without asking the command stream, which somebody else has to ask."""
        return self._stream_silence.ask_beside

    @property
    def warning(self) -> str | None:
        """What an operator has to know while timers fire without an answer of the command stream."""
        return _SILENT if self._stream_silence.is_given_up else None

    def ask_again(self) -> None:
        """Let the next look ask by itself: the command stream has answered somebody else."""
        self._stream_silence.ask_beside = False

    def unanswered(self, now: datetime) -> Waits | None:
        """Return what may fire although the command stream does not answer; None if it is too early."""
        moment = self._stream_silence.note(now)
        return None if moment is None else Waits(now, up_to=moment)

    def asks(self) -> dict[TenantId, int]:
        """Return the tenants to ask about by name, each with the sequence beyond which commands count."""
        asked = list(islice(self._blocked, MAX_ASKED))
        for tenant_id in asked:
            self._blocked[tenant_id] = self._blocked.pop(tenant_id)
        return {tenant_id: self._given_up.get(tenant_id, 0) for tenant_id in asked}

    def judge(self, backlog: Backlog, now: datetime) -> Waits:
        """Say who waits, from what the broker answered after `now` was read."""
        recovered = self._stream_silence.answered()
        went_back = bool(self._fences) and self._fences[-1].sequence > backlog.last_sequence
        if backlog.stream != self._stream or went_back:
            # Created again, or without its newest commands: sequences mean something else.
            self._forget()
            self._stream = backlog.stream
        if not (backlog.tenants is None or backlog.tenants or self._blocked or self._given_up):
            # As nearly always: nobody waits for anything, and nobody did.
            return Waits(now, stream_recovered=recovered)
        self._set_back(now)
        over_s = self._looked_s + self._looked_since(now) - self._limit.total_seconds()
        old = next((fence for fence in reversed(self._fences) if fence.looked_s <= over_s), None)
        expired, expired_sequence = (old.moment, old.sequence) if old else (None, 0)
        proven, held = self._sort_out(backlog, now, expired)
        floor = self._passed(backlog.first_sequence)
        return Waits(now, backlog, proven, floor, expired, expired_sequence, held, stream_recovered=recovered)

    def _sort_out(
        self, backlog: Backlog, now: datetime, expired: datetime | None
    ) -> tuple[dict[TenantId, datetime | None], frozenset[TenantId]]:
        """Return up to which moment each waiting tenant is proven, and tenants of whom nothing may fire."""
        proven: dict[TenantId, datetime | None] = {}
        held = set()
        # Most of many who wait have the same oldest command: the oldest of all.
        passed = cache(self._passed)
        for tenant_id, blocked in self._blocked.items():
            if not backlog.concerns(tenant_id):
                continue
            oldest = backlog.oldest.get(tenant_id, blocked.oldest)
            if oldest is None:
                proven[tenant_id] = now
                continue
            blocked.oldest = max(blocked.oldest, oldest, backlog.first_sequence)
            proven[tenant_id] = passed(blocked.oldest)
            limit = _later(proven[tenant_id], expired)
            if limit is None or (blocked.up_to is not None and limit <= blocked.up_to):
                held.add(tenant_id)
        return proven, frozenset(held)

    def settle(self, waits: Waits, claimed: Sequence[DueTimer], *, more: bool) -> CatchUpChange:
        """Learn from a claim who has due timers that wait."""
        backlog = waits.backlog
        if waits.up_to is not None:
            newly = bool(claimed) and not self._stream_silence.is_given_up
            self._stream_silence.is_given_up |= bool(claimed)
            return CatchUpChange(let_go=len(claimed), stream_given_up=newly)
        if backlog is None:
            return CatchUpChange(stream_recovered=waits.stream_recovered)
        seen = {timer.tenant_id for timer in claimed}
        skipped = {timer.tenant_id for timer in waits.in_question(claimed) if not waits.lets(timer)}
        let_go = [t for t in waits.in_question(claimed) if waits.lets(t) and not waits.is_proven(t)]
        before = set(self._blocked)
        for tenant_id in before - skipped:
            # With more to come there may be more of this tenant's, which may fire too.
            has_none = tenant_id not in waits.held and not more
            if has_none or not backlog.concerns(tenant_id):
                del self._blocked[tenant_id]
        for tenant_id in skipped:
            known = self._blocked.get(tenant_id)
            oldest = max(backlog.first_sequence, known.oldest if known else 0)
            self._blocked[tenant_id] = _Blocked(waits.limit(tenant_id), oldest)
        moved = before & seen or before != set(self._blocked)
        self._vain_looks = 0 if moved else self._vain_looks + 1
        self._remember(waits.now, backlog)
        change = self._give_up(let_go, backlog, waits.expired_sequence)
        return replace(change, stream_recovered=waits.stream_recovered)

    def _give_up(self, let_go: Sequence[DueTimer], backlog: Backlog, expired_sequence: int) -> CatchUpChange:
        were_given_up = bool(self._given_up)
        for tenant_id in [t for t in self._given_up if not backlog.concerns(t)]:
            del self._given_up[tenant_id]
        tenants = sorted({timer.tenant_id for timer in let_go})
        newly = tuple(tenant_id for tenant_id in tenants if tenant_id not in self._given_up)
        # What stays although newer commands were handled since is stuck: it no longer holds anything up. What
        # nobody has come to yet is waited for again by each timer.
        stuck = min(expired_sequence, backlog.handled_sequence)
        for tenant_id in tenants:
            self._given_up[tenant_id] = max(stuck, self._given_up.get(tenant_id, 0))
        return CatchUpChange(
            waiting=len(self._blocked),
            let_go=len(let_go),
            given_up=newly,
            recovered=were_given_up and not self._given_up,
        )

    def _passed(self, oldest: int) -> datetime | None:
        """Return the latest moment up to which everything that was stored is older than a command."""
        return next((f.moment for f in reversed(self._fences) if f.sequence < oldest), None)

    def _remember(self, now: datetime, backlog: Backlog) -> None:
        """Keep what this look has found, as long as anybody waits."""
        if not self._blocked:
            self._fences.clear()
            self._looked_at = None
            return
        self._looked_s += self._looked_since(now)
        self._looked_at = max(now, self._looked_at or now)
        self._fences.append(_Fence(now, backlog.last_sequence, self._looked_s))
        self._fences.sort()
        self._thin_out()

    def _thin_out(self) -> None:
        limit_s = self._limit.total_seconds()
        old = len(self._fences) - RECENT_FENCES - 1
        if old > 0 and self._fences[old].looked_s - self._fences[old - 1].looked_s < limit_s / RECENT_FENCES:
            del self._fences[old]
        while len(self._fences) > 1 and self._fences[1].looked_s <= self._looked_s - limit_s:
            del self._fences[0]

    def _looked_since(self, now: datetime) -> float:
        """Return how much of the time since the last look counts."""
        if self._looked_at is None:
            return 0.0
        return max(0.0, min(now - self._looked_at, self._limit / 4).total_seconds())

    def _set_back(self, now: datetime) -> None:
        """Forget moments that lie in the future again, if the clock was set back."""
        if self._looked_at is None or now >= self._looked_at:
            return
        self._looked_at = now
        self._fences = [fence for fence in self._fences if fence.moment <= now]
        for blocked in self._blocked.values():
            blocked.up_to = None

    def _forget(self) -> None:
        self._blocked.clear()
        self._given_up = dict.fromkeys(self._given_up, 0)
        self._fences.clear()
        self._looked_at = None


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return max(one, other)
