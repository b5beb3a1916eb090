"""Rates and lateness of the last minute: a sliding window, second by second."""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from timer_service.ports.health import LatenessHistory, LatenessMinute, Recent

WINDOW_S: Final = 60.0
MAX_MINUTES: Final = 24 * 60
"""How far back lateness is remembered; a minute takes a few hundred bytes."""


class RecentWork:
    """Counts commands and fired timers by the second, and forgets what is older than WINDOW_S."""

    def __init__(
        self, lateness_buckets_s: Sequence[float], elapsed_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._buckets_s = lateness_buckets_s
        self._elapsed_s = elapsed_s
        self._seconds: deque[tuple[float, int, Counter[int]]] = deque()
        """For each second: when, how many commands, how many timers in each bucket of lateness."""
        self._minutes: deque[tuple[int, Counter[int]]] = deque(maxlen=MAX_MINUTES)
        self._peak = 0

    def scheduled(self, commands: int) -> None:
        """Count commands."""
        self._add(commands, Counter())

    def fired(self, lateness_s: Iterable[float]) -> Mapping[int, int]:
        """Count timers by their lateness; return how many of these are in each bucket."""
        tally = Counter(map(partial(bisect_left, self._buckets_s), lateness_s))
        self._add(0, tally)
        minute = int(self._elapsed_s() // 60)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append((minute, Counter()))
        self._minutes[-1][1].update(tally)
        return tally

    def history(self) -> LatenessHistory:
        """Return how late timers were in the minutes of the last day."""
        minute = int(self._elapsed_s() // 60)
        buckets = range(len(self._buckets_s) + 1)
        return LatenessHistory(
            tuple(self._buckets_s),
            tuple(
                LatenessMinute(minute - each, tuple(tally[bucket] for bucket in buckets))
                for each, tally in self._minutes
                if minute - each < MAX_MINUTES
            ),
        )

    def summary(self) -> Recent:
        """Return what the last minute was like."""
        self._forget()
        lateness: Counter[int] = Counter()
        for _, _, tally in self._seconds:
            lateness += tally
        return Recent(
            commands_per_s=round(sum(commands for _, commands, _ in self._seconds) / WINDOW_S, 2),
            fired_per_s=round(lateness.total() / WINDOW_S, 2),
            lateness_p50_s=self._quantile(lateness, 0.5),
            lateness_p99_s=self._quantile(lateness, 0.99),
            peak_per_s=self._peak,
        )

    def _add(self, commands: int, lateness: Counter[int]) -> None:
        second = float(int(self._elapsed_s()))
        if self._seconds and self._seconds[-1][0] == second:
            _, before, tally = self._seconds.pop()
            commands, lateness = before + commands, tally + lateness
        self._seconds.append((second, commands, lateness))
        self._peak = max(self._peak, lateness.total())
        self._forget()

    def _forget(self) -> None:
        oldest = self._elapsed_s() - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest:
            self._seconds.popleft()

    def _quantile(self, tally: Counter[int], share: float) -> float | None:
        """Return the upper bound of the bucket that holds the quantile."""
        rank, seen = share * tally.total(), 0
        for bucket in sorted(tally):
            seen += tally[bucket]
            if seen >= rank:
                return self._buckets_s[min(bucket, len(self._buckets_s) - 1)]
        return None
