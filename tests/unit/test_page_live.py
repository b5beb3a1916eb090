"""Streams over hours: what is silent is kept open, and what is measured does not pile up."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

from tests.simulation.loop import VirtualLoop
from tests.support.pages import Pages
from timer_service.adapters.http.pages.figures import FiguresDesk
from timer_service.adapters.http.pages.live import KEPT_SAMPLES, SAMPLE_S, TICK_S, Live
from timer_service.domain.errors import StoreBusy
from timer_service.right_of_way import RightOfWay

LONGEST_SILENCE_S = 15.0
"""Proxies close a connection after a minute without a byte, some of them after half of one."""
WATCHED_S = 300.0


def _for_hours(watch: Callable[[Live, VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a scene on a loop whose hours take no time."""
    loop = VirtualLoop()

    async def scene() -> None:
        parts = (await Pages().open()).parts
        clock = parts.clock
        desk = FiguresDesk(parts.timers, parts.opened.store.insight, parts.health, dict, clock.now, loop.time)
        live = Live(desk, lambda: 0.5, RightOfWay())
        async with live.running():
            await watch(live, loop)

    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()


def test_a_store_that_does_not_answer_ends_no_stream() -> None:
    said: dict[str, list[bytes]] = {"broken": [], "other": []}
    seconds = itertools.count()

    async def broken() -> dict[str, str]:
        second = next(seconds)
        if 3 <= second < 6:
            raise StoreBusy("the store is busy")
        return {"second": str(second)}

    async def other() -> dict[str, str]:
        return {"ticks": str(next(ticks))}

    async def watch(live: Live, _: VirtualLoop) -> None:
        def sends_to(name: str) -> Callable[[bytes], Coroutine[Any, Any, None]]:
            async def send(chunk: bytes) -> None:
                said[name].append(chunk)

            return send

        watching = [
            asyncio.ensure_future(live.follow(name, measure).run(sends_to(name)))
            for name, measure in (("broken", broken), ("other", other))
        ]
        await asyncio.sleep(10 * TICK_S)
        for each in watching:
            each.cancel()
        await asyncio.wait(watching)

    ticks = itertools.count()
    _for_hours(watch)

    assert said["broken"][-1] == b'data: {"second": "9"}\n\n'
    assert len(said["other"]) == 11  # And where to connect again.


def test_a_stream_without_news_says_something_every_quarter_of_a_minute() -> None:
    said: list[tuple[float, bytes]] = []

    async def measure() -> dict[str, str]:
        return {"pending": "7"}

    async def watch(live: Live, loop: VirtualLoop) -> None:
        async def send(chunk: bytes) -> None:
            said.append((loop.time(), chunk))

        watching = asyncio.ensure_future(live.follow("still", measure).run(send))
        await asyncio.sleep(WATCHED_S)
        watching.cancel()
        await asyncio.wait({watching})

    _for_hours(watch)

    begun, told, *comments = [chunk for _, chunk in said]
    moments = [moment for moment, _ in said]
    assert (begun, told) == (b"retry: 3000\n\n", b'data: {"pending": "7"}\n\n')
    assert set(comments) == {b":\n\n"}
    assert max(later - earlier for earlier, later in pairwise([*moments, WATCHED_S])) <= LONGEST_SILENCE_S


def test_the_history_is_that_of_the_last_hour_however_long_the_service_runs() -> None:
    kept: list[int] = []

    async def watch(live: Live, _: VirtualLoop) -> None:
        for _hour in range(3):
            await asyncio.sleep(KEPT_SAMPLES * SAMPLE_S)
            kept.append(len(live.history))

    _for_hours(watch)

    assert kept == [KEPT_SAMPLES] * 3


def test_many_viewers_are_measured_for_once_per_second_and_nobody_costs_nothing() -> None:
    measured: list[float] = []

    async def watch(live: Live, loop: VirtualLoop) -> None:
        async def measure() -> dict[str, str]:
            measured.append(loop.time())
            return {"pending": str(len(measured))}

        async def send(_chunk: bytes) -> None:
            return

        viewers = [asyncio.ensure_future(live.follow("same", measure).run(send)) for _ in range(20)]
        await asyncio.sleep(9.5)
        for viewer in viewers:
            viewer.cancel()
        await asyncio.wait(viewers)
        await asyncio.sleep(WATCHED_S)

    _for_hours(watch)

    assert len(measured) == 10
    assert max(measured) < 10
