"""Decide requests whose senders wait for an answer, in groups."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from timer_service.domain.errors import (
    BusUnavailable,
    CriticalError,
    TimerFiring,
    TimerOvertaken,
    TransientError,
)
from timer_service.domain.messages import Command, Position, TimerKey
from timer_service.domain.outcomes import in_groups
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.clock import Clock
from timer_service.ports.command_source import CommandSource
from timer_service.ports.timer_store import Decided, TimerStore

TRIES: Final = 50
PAUSE_S: Final = 0.04
"""Together two seconds: the longest that a request waits for a timer that is being fired."""
MAX_GROUP: Final = 128


@dataclass(frozen=True, slots=True)
class Settled:
    """What a request did, and the timer as it is now."""

    outcome: Outcome
    timer: Timer
    is_ordered: bool = True
    """Whether it is newer than every command that the broker has; not known while the broker is away."""


@dataclass(frozen=True, slots=True)
class SettledTogether:
    """What requests of one transaction did, in their order."""

    decided: Sequence[Decided]
    is_ordered: bool = True
    """As of each of them alone."""


@dataclass(slots=True, eq=False)
class _Waiting:
    request: Command
    without_broker: bool = False
    result: Decided | Exception | None = None
    is_ordered: bool = True

    @property
    def key(self) -> TimerKey:
        return self.request.key


class RequestDesk:
    """Answers requests; while one group is in the store, the next one gathers."""

    def __init__(self, *, store: TimerStore, source: CommandSource, clock: Clock) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._turn = asyncio.Lock()

    async def decide(self, request: Command, *, without_broker: bool = False) -> Settled:
        """Apply one request as if it were the newest command in the stream, and say what it did.

        While the broker is away that is not known. A request that is carried out all the same is newer than
        every command that was seen, and says so.

        A timer that is due belongs to the worker: its event may be out already, confirmed or not. The request
        waits until that is known, so that `cancelled` is never said of a timer that fired.
        """
        outcome = Outcome.DUE
        for attempt in range(TRIES):
            waiting = _Waiting(request, without_broker)
            decided = await self._join(waiting)
            outcome = decided.outcome
            if decided.timer is not None and outcome is not Outcome.SUPERSEDED:
                return Settled(outcome, decided.timer, waiting.is_ordered)
            # Superseded by a command that came in since: that one was first, so the next try is newer.
            if outcome is Outcome.DUE or attempt:
                await self._clock.wait(PAUSE_S, asyncio.Event())
        unsettled = TimerFiring if outcome is Outcome.DUE else TimerOvertaken
        raise unsettled(unsettled.public)

    async def decide_all(self, requests: Sequence[Command]) -> SettledTogether:
        """Decide requests for different timers in one transaction, without waiting for any that is due.

        An outcome of DUE or SUPERSEDED means that nothing was changed and that it may work again soon.
        """
        if not requests:
            return SettledTogether(())
        waiting = [_Waiting(request, without_broker=True) for request in requests]
        async with self._turn:
            _, position = await self._placed(waiting)
            placed: list[Command] = []
            for some in in_groups(requests):
                placed += [replace(request, position=position) for request in some]
                await asyncio.sleep(0)
            decided = await self._store.decide(placed, self._clock.now())
        return SettledTogether(decided, is_ordered=waiting[0].is_ordered)

    async def _join(self, mine: _Waiting) -> Decided:
        """Wait for the group before, then work on the next one, unless somebody has done so."""
        self._waiting.append(mine)
        try:
            async with self._turn:
                if mine.result is None:
                    await self._work(self._next_group())
        except asyncio.CancelledError:
            self._waiting = [waiting for waiting in self._waiting if waiting is not mine]
            raise
        assert mine.result is not None
        if isinstance(mine.result, Exception):
            raise mine.result
        return mine.result

    def _next_group(self) -> list[_Waiting]:
        """Return the waiting requests, oldest first, one per timer: each answer shows a committed state."""
        group: dict[TimerKey, _Waiting] = {}
        for waiting in self._waiting:
            if len(group) == MAX_GROUP:
                break
            group.setdefault(waiting.key, waiting)
        return list(group.values())

    async def _work(self, group: Sequence[_Waiting]) -> None:
        results: Sequence[Decided | Exception]
        try:
            group, position = await self._placed(group)
            requests = [replace(waiting.request, position=position) for waiting in group]
            results = await self._store.decide(requests, self._clock.now())
        except (TransientError, CriticalError) as error:
            results = [error] * len(group)
        except Exception as error:
            if len(group) > 1:
                # One of them is at fault: the others have nothing to do with it.
                for waiting in group:
                    await self._work([waiting])
                return
            results = [error]
        self._settle(group, results)

    async def _placed(self, group: Sequence[_Waiting]) -> tuple[Sequence[_Waiting], Position]:
        """Return which of a group can be answered now, and their position among all commands."""
        try:
            return group, await self._source.last_position()
        except BusUnavailable as error:
            able = [waiting for waiting in group if waiting.without_broker]
            if not able:
                raise
            unable = [waiting for waiting in group if not waiting.without_broker]
            self._settle(unable, [error] * len(unable))
            for waiting in able:
                waiting.is_ordered = False
            return able, await self._source.last_seen_position()

    def _settle(self, group: Sequence[_Waiting], results: Sequence[Decided | Exception]) -> None:
        for waiting, result in zip(group, results, strict=True):
            waiting.result = result
        self._waiting = [waiting for waiting in self._waiting if waiting.result is None]
