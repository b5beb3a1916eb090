"""What the users' own tests cost: how soon the fixture is ready, and a year of virtual time."""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import structlog

from timer_client import Firing
from timer_service.adapters.nats.embedded import find_nats_server
from timer_service.testing import START
from timer_service.testing.kit import TimerServiceKit
from timer_service.testing.shared_broker import shared_broker

DAY = timedelta(days=1)


def start_times(broker_url: str, count: int) -> list[float]:
    """Return the milliseconds until the service was ready, one start after another, as tests have it."""
    times = []
    for number in range(count):
        started = time.perf_counter()
        with TimerServiceKit(broker_url, f"start-{number}"):
            times.append((time.perf_counter() - started) * 1000)
    return times


async def chain(kit: TimerServiceKit, days: int) -> float:
    """Fire a timer on each day, scheduled by the consumer of the one before; return the seconds it took."""
    reached = []
    async with kit.timers() as timers:

        async def again(firing: Firing) -> None:
            reached.append(firing.reached_at)
            if len(reached) < days:
                await timers.schedule(f"day-{len(reached) + 1}", firing.reached_at + DAY)

        async with timers.consume("billing", again):
            started = time.perf_counter()
            await timers.schedule("day-1", START + DAY)
            await kit.advance((days + 1) * DAY)
            took_s = time.perf_counter() - started
    if reached != [START + number * DAY for number in range(1, days + 1)]:
        raise AssertionError(f"not exact: {reached}")
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder, shared_broker(Path(folder), find_nats_server()) as url:
        first, *later = start_times(url, options.starts)
        print(f"the fixture's first start: {first:.0f} ms")
        print(f"those after it: median {statistics.median(later):.0f} ms, longest {max(later):.0f} ms")
        with TimerServiceKit(url, "chain") as kit:
            took_s = asyncio.run(chain(kit, options.days))
        print(f"{options.days} daily timers, each scheduled by the one before: {took_s:.2f} s, all exact")


if __name__ == "__main__":
    main()
