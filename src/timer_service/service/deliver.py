"""The loop that delivers callbacks: a bounded number at once, their outcomes kept together."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from timer_service.domain.errors import TransientError
from timer_service.domain.lanes import MAX_SLOTS, Lane, Lanes
from timer_service.domain.messages import Event, TimerKey
from timer_service.ports.callback_sender import CallbackSender
from timer_service.ports.delivery_store import ClaimedDelivery, DeliveryQueue
from timer_service.right_of_way import TasksInTurns
from timer_service.service.surroundings import Surroundings
from timer_service.waiting import Backoff
from timer_service.workflows.deliver_callbacks import Attempted, WaitingList, attempt

MAX_LOOK_INTERVAL_S: Final = 5.0
"""However quiet it is: this finds whatever was missed."""
SHARED_LOOK_INTERVAL_S: Final = 2.0
"""With other instances: this finds what one of them left behind, and tells them that we are still there."""
RESCAN_REST: Final = 4.0
"""How much longer the pause after a page of what is known already is than the look at it."""
MAX_UNKEPT: Final = 512
"""Outcomes that are not in the store yet; beyond it no further attempt begins."""
MAX_KEPT: Final = 64
"""Outcomes that are kept together: what comes of them is worked off in one go."""
STOP_GRACE_S: Final = 5.0
"""For attempts that are under way when the service stops; then they are left to the next start."""


class Rescan:
    """When to look again at all that waits: a fifth of the time while that goes on, a tenth in all."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._began_s: float | None = None
        self.at_s = now_s + interval_s
        """When the next page is looked at."""

    def is_due(self, now_s: float, *, is_busy: bool) -> bool:
        """Return whether to look: at once if nothing else was to be done, and a while later all the same."""
        return now_s >= self.at_s + (self._interval_s if is_busy else 0.0)

    def looked(self, from_s: float, to_s: float, *, is_last: bool) -> None:
        """Rest after a page."""
        began_s = from_s if self._began_s is None else self._began_s
        rest_s = max(self._interval_s, to_s - began_s) if is_last else RESCAN_REST * (to_s - from_s)
        self.at_s, self._began_s = to_s + rest_s, None if is_last else began_s


class Delivering:
    """Delivers what was handed over, each attempt at its time."""

    def __init__(
        self,
        around: Surroundings,
        store: DeliveryQueue,
        sender: CallbackSender,
        *,
        slots: int = MAX_SLOTS,
        stop_grace_s: float = STOP_GRACE_S,
    ) -> None:
        self._store = store
        self._sender = sender
        self._clock = around.clock
        self._chance = around.chance
        self._elapsed_s = around.elapsed_s
        self._metrics = around.metrics
        self._work_log = around.work_log
        self._in_turns = around.in_turns
        self._spares_receivers = around.spares_receivers
        self._waiting = WaitingList(store, Lanes[TimerKey](slots, around.max_queued))
        self._backoff = Backoff(around.chance)
        self._keep_backoff = Backoff(around.chance)
        self._stop_grace_s = stop_grace_s
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._unkept: list[Attempted] = []
        self._ended = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._outdated_backoff = Backoff(around.chance)
        self._look_interval_s = SHARED_LOOK_INTERVAL_S if store.is_shared else MAX_LOOK_INTERVAL_S
        self._looked_s = float("-inf")
        self._rescan = Rescan(self._look_interval_s, around.elapsed_s())
        self._take_again_s = float("inf")
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Why nothing can be delivered or kept; None if all is well."""
        return next(iter(self._problems.values()), None)

    def receiver_back_at(self, lane: Lane) -> datetime | None:
        """Return when a receiver that counts as gone is tried again; None if it counts as there."""
        open_until_s = self._waiting.lanes.open_until_s(lane)
        if open_until_s is None:
            return None
        return self._clock.now() + timedelta(seconds=max(0.0, open_until_s - self._elapsed_s()))

    def handed_over(self, events: Sequence[Event]) -> None:
        """Begin at once with the deliveries that these firings have opened."""
        self._waiting.handed_over(events)
        self._wake.set()

    def wait_again(self, since: datetime) -> None:
        """Look at once for deliveries that were made to wait again at a moment."""
        self._waiting.look_again(since)
        self._wake.set()

    async def observe(self) -> None:
        """Bring the gauges up to date before they are read."""
        lanes = self._waiting.lanes
        self._metrics.delivering(under_way=lanes.under_way, open_breakers=lanes.open_breakers)
        with suppress(TransientError):
            self._metrics.deliveries_counted(await self._store.count(self._clock.now()), self._clock.now())

    async def run(self) -> None:
        """Deliver until stopped; what is under way then has a while to end."""
        async with asyncio.TaskGroup() as group:
            tasks = self._in_turns(group)
            keeping = tasks.create_task(self._keep_outcomes(), name="keep")
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    await self._step(tasks)
                except TransientError as error:
                    self._problems["look"] = str(error)
                    await self._clock.wait(self._backoff.next_s(), self._stopping)
                    continue
                self._problems.pop("look", None)
                self._backoff.reset()
                if self._waiting.is_behind:
                    await asyncio.sleep(0)  # A store in memory answers without a wait: let others go on.
                else:
                    await self._clock.wait(self._sleep_s(), self._wake)
            await self._end_calls()
            self._ended.set()
            await keeping

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()
        self._wake.set()

    async def _step(self, tasks: TasksInTurns) -> None:
        """Look where there may be something new, and begin what may begin."""
        await self._store.stay()  # A look may have nothing to ask: all places in memory may be taken.
        now, now_s = self._clock.now(), self._elapsed_s()
        if now_s - self._looked_s >= self._look_interval_s:
            self._waiting.look_on()
        await self._waiting.look(now, now_s)
        self._looked_s = now_s
        begun = 0 if len(self._unkept) >= MAX_UNKEPT else await self._begin(tasks, now, now_s)
        if not self._waiting.is_behind and self._rescan.is_due(now_s, is_busy=begun > 0):
            from_s = self._elapsed_s()
            is_last = await self._waiting.look_at_known(now, from_s)
            self._rescan.looked(from_s, self._elapsed_s(), is_last=is_last)
            self._wake.set()  # What was missed begins with the next step.

    async def _begin(self, tasks: TasksInTurns, now: datetime, now_s: float) -> int:
        """Begin the attempts whose turn it is; return how many."""
        claims = await self._waiting.take(now, now_s)
        if self._stopping.is_set():
            return 0  # Who keeps the outcomes may have ended. What was claimed still waits in the store.
        for claimed in claims:
            call = tasks.create_task(self._call(claimed), name="callback", one_of_many=True)
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        self._take_again_s = float("inf")
        if self._waiting.is_outdated:
            self._take_again_s = now_s + self._outdated_backoff.next_s()
        else:
            self._outdated_backoff.reset()
        return len(claims)

    async def _call(self, claimed: ClaimedDelivery) -> None:
        key = claimed.delivery.key
        result = None
        try:
            made = await attempt(claimed, sender=self._sender, clock=self._clock, chance=self._chance)
            # Without a result, nothing is learned of the receiver.
            result = made.result if self._spares_receivers else None
            self._unkept.append(made)
            self._ended.set()
        finally:
            self._waiting.lanes.done(key, result, self._elapsed_s())
            self._wake.set()

    async def _keep_outcomes(self) -> None:
        """Keep outcomes, all that have come in meanwhile together, until all attempts have ended."""
        while not (self._stopping.is_set() and not self._calls and not self._unkept):
            await self._ended.wait()
            if self._store.gathers_s and not self._stopping.is_set():
                await asyncio.sleep(self._store.gathers_s)
            self._ended.clear()
            while self._unkept:
                group = self._unkept[:MAX_KEPT]
                try:
                    await self._store.finish([made.finished for made in group])
                except TransientError as error:
                    self._problems["keep"] = str(error)
                    if self._stopping.is_set():
                        return  # What is not kept is delivered again, under the same id.
                    await self._clock.wait(self._keep_backoff.next_s(), self._stopping)
                    continue
                self._problems.pop("keep", None)
                self._keep_backoff.reset()
                del self._unkept[: len(group)]
                self._kept(group)

    def _kept(self, group: list[Attempted]) -> None:
        self._work_log.delivered(group)
        self._metrics.delivered(group)
        for made in group:
            self._waiting.lanes.forget(made.finished.after.key)
            next_at = made.finished.after.next_attempt_at
            if next_at is not None:
                self._waiting.comes_at(next_at)
        self._wake.set()

    async def _end_calls(self) -> None:
        """Wait for what is under way, and cut off what takes too long: it still waits in the store."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._stop_grace_s
        while (calls := [*self._calls]) and (left_s := until_s - loop.time()) > 0:  # They may end meanwhile.
            with suppress(TransientError, TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._store.stay()
            await asyncio.wait(calls, timeout=min(left_s, SHARED_LOOK_INTERVAL_S))
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _sleep_s(self) -> float:
        """Return how long nothing has to be done."""
        next_look_s = self._looked_s + self._look_interval_s
        seconds = min(next_look_s, self._rescan.at_s, self._begin_again_s()) - self._elapsed_s()
        if (next_at := self._waiting.next_attempt_at) is not None:
            seconds = min(seconds, (next_at - self._clock.now()).total_seconds())
        return max(0.0, seconds)

    def _begin_again_s(self) -> float:
        """Return when something may begin that may not begin now."""
        if len(self._unkept) >= MAX_UNKEPT:
            return float("inf")  # Whoever keeps outcomes wakes the loop.
        again_s = self._waiting.lanes.next_at_s()
        return self._take_again_s if again_s is None else min(again_s, self._take_again_s)
