"""The figures of the first screen, measured once for all who see the same tenants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from timer_service.adapters.http.pages.render import late, number, span
from timer_service.domain.messages import TenantId
from timer_service.domain.spoken import count_text, outage_text
from timer_service.domain.timer import Timer, TimerState
from timer_service.ports.health import Health, Recent
from timer_service.ports.timer_insight import TimerFilter, TimerInsight
from timer_service.timers import Timers

FRESH_S: Final = 0.9
"""Figures that were measured so lately are shown again, however many look."""
MAX_COUNTED: Final = 10_000
MAX_CACHED: Final = 100
LISTED: Final = 10
OVERDUE_S: Final = 10.0
"""What is due for longer than this is worth a look, although every part works."""
_WAITING: Final = {
    "publish": "events cannot be published",
    "deliveries": "callbacks cannot be kept",
    "clock": "the machine's clock leapt forward, and a person has to confirm that",
    "disk": "the disk is nearly full",
}
"""Part to what it means for timers; details are for those who see every tenant."""

_UNKNOWN: Final = Recent(0.0, 0.0, None, None)

Tenants = frozenset[TenantId] | None


@dataclass(frozen=True, slots=True)
class Figures:
    """How much there is, and how fast and how late it goes."""

    sentence: str
    is_well: bool
    pending: int
    overdue: int
    oldest_overdue_s: float
    recent: Recent | None
    """Of the whole service; None for those who do not see all of it."""
    is_capped: bool = False
    trouble: str = ""
    """The parts that a person should look at; empty for those who see only some tenants."""

    @property
    def tone(self) -> str:
        """How the sentence sounds: good, warn or bad."""
        if not self.is_well:
            return "bad"
        return "warn" if self.trouble or self.oldest_overdue_s > OVERDUE_S else "good"

    def texts(self) -> dict[str, str]:
        """Return each figure as it is shown."""
        recent = self.recent or _UNKNOWN
        return {
            "sentence": self.sentence,
            "tone": self.tone,
            "trouble": self.trouble,
            "pending": self._count(self.pending),
            "overdue": self._count(self.overdue),
            "oldestOverdue": span(self.oldest_overdue_s) if self.oldest_overdue_s else "–",
            "commandsPerS": number(recent.commands_per_s, 1),
            "firedPerS": number(recent.fired_per_s, 1),
            "lateP50": late(recent.lateness_p50_s),
            "lateP99": late(recent.lateness_p99_s),
        }

    def _count(self, count: int) -> str:
        return f"≥ {number(count)}" if self.is_capped and count == MAX_COUNTED else number(count)


@dataclass(frozen=True, slots=True)
class Lists:
    """What comes next, and what came last."""

    next_due: Sequence[Timer]
    last_fired: Sequence[Timer]
    is_cut: bool
    """Whether more may have fired than were found among those that were looked at."""


class FiguresDesk:
    """Measures, and remembers for a moment."""

    def __init__(
        self,
        timers: Timers,
        insight: TimerInsight,
        health: Callable[[], Health],
        since: Callable[[], Mapping[str, datetime]],
        now: Callable[[], datetime],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._timers = timers
        self._insight = insight
        self._health = health
        self._since = since
        self._now = now
        self._elapsed_s = elapsed_s
        self._figures: dict[Tenants, tuple[float, Figures]] = {}
        self._lists: dict[Tenants, tuple[float, datetime, Lists]] = {}

    async def figures(self, tenants: Tenants) -> Figures:
        """Return the figures of some tenants. Raises TransientError."""
        known = self._figures.get(tenants)
        if known is not None and self._elapsed_s() - known[0] < FRESH_S:
            return known[1]
        figures = await (self._of_all() if tenants is None else self._of_some(tenants))
        _keep(self._figures, tenants, (self._elapsed_s(), figures))
        return figures

    async def lists(self, tenants: Tenants) -> Lists:
        """Return what is listed for some tenants. Raises TransientError."""
        now, known = self._now(), self._lists.get(tenants)
        # By the service's clock as well, which somebody may have moved.
        if known is not None and self._elapsed_s() - known[0] < FRESH_S and known[1] == now:
            return known[2]
        due = await self._insight.page(TimerFilter(tenants), LISTED)
        fired = await self._insight.page(TimerFilter(tenants, TimerState.REACHED), LISTED)
        lists = Lists(due.timers, fired.timers, fired.after is not None)
        _keep(self._lists, tenants, (self._elapsed_s(), now, lists))
        return lists

    async def _of_all(self) -> Figures:
        status, health = await self._timers.status(), self._health()
        trouble = ", ".join(health.trouble)
        return Figures(
            sentence=self._sentence(health, status.overdue, status.oldest_overdue_s, trouble),
            is_well=not health.problems and health.stuck is None,
            pending=status.pending,
            overdue=status.overdue,
            oldest_overdue_s=status.oldest_overdue_s,
            recent=status.recent,
            trouble=trouble,
        )

    async def _of_some(self, tenants: frozenset[TenantId]) -> Figures:
        now, health = self._now(), self._health()
        overdue = await self._insight.count(TimerFilter(tenants, until=now), MAX_COUNTED)
        oldest = (await self._insight.page(TimerFilter(tenants, until=now), 1)).timers
        since = oldest[0].due_at if oldest else None
        oldest_s = 0.0 if since is None else (now - since).total_seconds()
        return Figures(
            sentence=self._sentence(health, overdue, oldest_s),
            is_well=not health.problems and health.stuck is None,
            pending=await self._insight.count(TimerFilter(tenants), MAX_COUNTED),
            overdue=overdue,
            oldest_overdue_s=oldest_s,
            recent=None,
            is_capped=True,
        )

    def _sentence(self, health: Health, overdue: int, oldest_s: float, trouble: str = "") -> str:
        """Return how the service is, in one sentence."""
        if health.stuck is not None:
            return f"The worker is stuck: it {health.stuck}. Restart the service."
        if health.problems:
            return "Timers wait: " + "; ".join(map(self._waiting, health.problems)) + "."
        told = "nothing is overdue"
        if overdue:
            are, their = ("is", "its") if overdue == 1 else ("are", "their")
            told = f"{count_text(overdue, 'timer')} {are} due and on {their} way"
        if oldest_s > OVERDUE_S:
            told += f", the oldest for {span(oldest_s)}"
        if trouble:
            return f"Timers fire; {told}. Worth a look: {trouble}."
        return f"All parts work; {told}." if overdue else f"All is well: {told}."

    def _waiting(self, part: str) -> str:
        if part in {"broker", "store"}:
            return outage_text(part, self._since().get(part), self._now())
        return _WAITING.get(part, f"{part} is in trouble")


def _keep(cache: dict[Tenants, Any], key: Tenants, value: Any) -> None:
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = value
