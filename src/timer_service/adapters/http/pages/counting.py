"""What is going to be due, counted beside the visits: nobody waits for a count of millions."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from timer_service.domain.errors import TransientError
from timer_service.domain.forecast import Span, edges
from timer_service.domain.messages import TenantId
from timer_service.ports.timer_insight import Shares, TenantInsight
from timer_service.waiting import owned

WAIT_S: Final = 0.01
"""For so long a visit waits for a new count; then it shows the last one, or none."""
FIRST_WAITS: Final = 3
"""So many times as long where there is nothing to show yet: an hour of a million timers takes 15 ms."""
FRESH_S: Final = 5.0
"""For so long all viewers share what was counted."""
MAX_STALE: Final = timedelta(minutes=1)
"""A count that is no longer fresh is shown for so long while another one is made."""
MAX_SHARE: Final = 20
"""To count takes at most one part in so many of the time: what took long is kept for longer."""
MAX_PIECE: Final = timedelta(hours=6)
"""The longest span of one question, so that none takes long."""
MAX_NAMED: Final = 20
"""Tenants that are counted by name."""
MAX_KEPT: Final = 64

Tenants = frozenset[TenantId] | None


@dataclass(frozen=True, slots=True)
class Due:
    """What is due, step by step, as it was at a moment."""

    at: datetime
    edges: Sequence[datetime]
    steps: Sequence[Shares]

    @property
    def totals(self) -> list[int]:
        """How many are due in each step."""
        return [step.total for step in self.steps]

    def largest(self, count: int) -> dict[str, Sequence[int]]:
        """Return the counts of those who have the most, the largest first."""
        of = Counter[TenantId]()
        for step in self.steps:
            of.update(step.of)
        names = sorted(of, key=lambda name: (-of[name], name))[:count]
        return {name: [step.of.get(name, 0) for step in self.steps] for name in names if of[name]}


@dataclass(frozen=True, slots=True)
class _Kept:
    due: Due
    counted_s: float
    lasts_s: float


class DueDesk:
    """Counts what somebody has asked for, one after the other, and remembers it for all."""

    def __init__(
        self, insight: TenantInsight, elapsed_s: Callable[[], float], wait_s: float = WAIT_S
    ) -> None:
        self._insight = insight
        self._elapsed_s = elapsed_s
        self._wait_s = wait_s
        self._kept: dict[tuple[Span, Tenants], _Kept] = {}
        self._wanted: dict[tuple[Span, Tenants], datetime] = {}
        self._asked = asyncio.Event()
        self._counted = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count for as long as the context lasts."""
        async with owned(self._count_wanted()):
            yield

    async def due(self, now: datetime, span: Span, tenants: Tenants) -> Due | None:
        """Return what was counted last; None if that is not done yet."""
        key = (span, tenants)
        kept = self._kept.get(key)
        if kept is None or not self._is_fresh(kept, now):
            self._wanted.setdefault(key, now)
            self._asked.set()
            try:
                has_one = kept is not None and _is_of_use(kept, now)
                async with asyncio.timeout(self._wait_s * (1 if has_one else FIRST_WAITS)):
                    while key in self._wanted:
                        await self._counted.wait()
            except TimeoutError:
                pass  # It is shown to the next visit.
            kept = self._kept.get(key)
        return None if kept is None or not _is_of_use(kept, now) else kept.due

    def _is_fresh(self, kept: _Kept, now: datetime) -> bool:
        """By the service's clock as well, which somebody may have moved."""
        age = now - kept.due.at
        return self._elapsed_s() - kept.counted_s < kept.lasts_s and (
            timedelta() <= age <= timedelta(seconds=kept.lasts_s)
        )

    async def _count_wanted(self) -> None:
        while True:
            if not self._wanted:
                self._asked.clear()
                await self._asked.wait()
            key, now = next(iter(self._wanted.items()))
            try:
                await self._count(*key, now)
            except TransientError:
                pass  # What was counted before is shown, with its time.
            del self._wanted[key]
            self._counted.set()
            self._counted = asyncio.Event()

    async def _count(self, span: Span, tenants: Tenants, now: datetime) -> None:
        began_s, moments = self._elapsed_s(), edges(now, span)
        totals, of = [0] * (len(moments) - 1), [Counter[TenantId]() for _ in moments[1:]]
        for asked in _questions(moments):
            found = await self._shares([moment for moment, _ in asked], tenants)
            for (_, step), shares in zip(asked, found, strict=False):  # The last moment only ends them.
                totals[step] += shares.total
                of[step].update(shares.of)
        steps = [*map(Shares, totals, of)]
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        now_s = self._elapsed_s()
        lasts_s = max(FRESH_S, MAX_SHARE * (now_s - began_s))
        self._kept[span, tenants] = _Kept(Due(now, moments, steps), now_s, lasts_s)

    async def _shares(self, moments: Sequence[datetime], tenants: Tenants) -> Sequence[Shares]:
        if tenants is None:
            return await self._insight.shares(moments, MAX_NAMED)
        of = {each: await self._insight.load(moments, frozenset({each})) for each in sorted(tenants)}
        return [
            Shares(sum(counts), dict(zip(of, counts, strict=True)))
            for counts in zip(*of.values(), strict=True)
        ]


def _is_of_use(kept: _Kept, now: datetime) -> bool:
    """Return whether an older count may still be shown; one of another hour would mislead."""
    return timedelta() <= now - kept.due.at <= timedelta(seconds=kept.lasts_s) + MAX_STALE


def _questions(moments: Sequence[datetime]) -> Iterator[list[tuple[datetime, int]]]:
    """Yield the moments of each question, with the step that begins or goes on there; the last ends it."""
    asked: list[tuple[datetime, int]] = []
    for step, span in enumerate(itertools.pairwise(moments)):
        for start, end in _pieces(*span):
            if asked and end - asked[0][0] > MAX_PIECE:
                yield [*asked, (start, step)]
                asked = []
            asked.append((start, step))
    yield [*asked, (moments[-1], len(moments))]


def _pieces(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    while since < until:
        end = min(until, since + MAX_PIECE)
        yield since, end
        since = end
