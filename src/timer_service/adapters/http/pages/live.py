"""Live numbers: one task measures for all who watch, and sleeps while nobody does."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from timer_service.adapters.http.pages.figures import Figures, FiguresDesk, Tenants
from timer_service.adapters.http.pages.visit import PageError, Stream
from timer_service.domain.errors import TransientError
from timer_service.right_of_way import GIVE_WAY_S, RightOfWay, in_turns
from timer_service.waiting import owned

TICK_S: Final = 1.0
SAMPLE_S: Final = 60.0
KEPT_SAMPLES: Final = 60
MAX_STREAMS: Final = 50
QUIET_TICKS: Final = 15
"""So many ticks without news before a comment is sent: proxies close what is silent."""
MIN_RETRY_MS: Final = 1_000
MAX_RETRY_MS: Final = 5_000

Measured = Mapping[str, str]
Measure = Callable[[], Awaitable[Measured]]


class Live:
    """Figures and text for the pages that are open, and the last hour of them."""

    def __init__(self, desk: FiguresDesk, chance: Callable[[], float], right_of_way: RightOfWay) -> None:
        self.desk = desk
        self._chance = chance
        self._right_of_way = right_of_way
        self.history: deque[Figures] = deque(maxlen=KEPT_SAMPLES)
        self._watching: dict[asyncio.Event, Hashable] = {}
        self._measures: dict[Hashable, Measure] = {}
        self._frames: dict[Hashable, Measured] = {}
        self._wanted = asyncio.Event()
        self._is_over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Measure for as long as the context lasts; then every stream ends at once."""
        async with owned(self._sample(), self._broadcast()):
            try:
                yield
            finally:
                self._is_over = True
                for ticked in self._watching:
                    ticked.set()

    def stream(self, tenants: Tenants) -> Stream:
        """Return the stream of those who see these tenants."""
        return self.follow(tenants, lambda: self._measure(tenants))

    def follow(self, name: Hashable, measure: Measure) -> Stream:
        """Return the stream of those who watch one thing, which is measured once for all of them."""
        if len(self._watching) >= MAX_STREAMS:
            raise PageError(
                503, "Too many live streams are open: reload the page instead.", {"retry-after": "5"}
            )
        return Stream(lambda send: self._send(name, measure, send))

    async def _send(self, name: Hashable, measure: Measure, send: Callable[[bytes], Awaitable[None]]) -> None:
        # Chance, so that after a restart not all come back in the same moment.
        retry_ms = MIN_RETRY_MS + round(self._chance() * (MAX_RETRY_MS - MIN_RETRY_MS))
        await send(f"retry: {retry_ms}\n\n".encode())
        ticked = asyncio.Event()
        self._watching[ticked] = name
        self._measures[name] = measure
        self._wanted.set()
        sent: Measured = {}
        quiet = 0
        try:
            while await ticked.wait() and not self._is_over:
                ticked.clear()
                frame = self._frames.get(name, {})
                news = {key: text for key, text in frame.items() if sent.get(key) != text}
                quiet = 0 if news else quiet + 1
                if news:
                    await send(f"data: {json.dumps(news, ensure_ascii=False)}\n\n".encode())
                elif quiet % QUIET_TICKS == 0:
                    await send(b":\n\n")
                sent = frame
        finally:
            del self._watching[ticked]
            if name not in self._watching.values():
                del self._measures[name]

    async def _broadcast(self) -> None:
        """Tick, one stream after the other: what is due does not wait until all of them are written to."""
        await in_turns(self._tick(), self._right_of_way, GIVE_WAY_S, one_of_many=True)

    async def _tick(self) -> None:
        while True:
            if not self._watching:
                self._wanted.clear()
                await self._wanted.wait()
            measures = list(self._measures.items())
            self._frames = {name: await self._frame(name, measure) for name, measure in measures}
            for ticked in list(self._watching):
                await asyncio.sleep(0)
                ticked.set()
            await asyncio.sleep(TICK_S)

    async def _frame(self, name: Hashable, measure: Measure) -> Measured:
        """Return what is new of a stream; while the store does not answer, what was there before."""
        try:
            return await measure()
        except TransientError:
            return self._frames.get(name, {})

    async def _measure(self, tenants: Tenants) -> Measured:
        try:
            return (await self.desk.figures(tenants)).texts()
        except TransientError as error:
            return {"sentence": f"The store does not answer: {error.public}.", "tone": "bad"}

    async def _sample(self) -> None:
        while True:
            try:
                self.history.append(await self.desk.figures(None))
            except TransientError:
                pass  # The line has a gap.
            await asyncio.sleep(SAMPLE_S)
