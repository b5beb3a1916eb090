"""A worker of durable functions in a process of its own, which notes when each function went on."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import nats

from timer_client import Timers
from timer_client.flows import Flows, Run, SqliteJournal

NAME: Final = "bench"
TENANT: Final = "acme"
READY: Final = "ready"
NAP: Final = "nap"
SPAN: Final = "span"
HOLD: Final = "hold"
SPAN_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Working:
    """Where to work, and how."""

    url: str
    journal: str
    ack_wait_s: float = 30.0
    clock_off_s: int = 0
    """How far the wall clock of this process is off."""


def define(flows: Flows, noted: list[float]) -> None:
    """Define the functions that are measured; each notes milliseconds."""

    @flows.flow(NAP)
    async def nap(run: Run, due_ms: int) -> None:
        await run.sleep_until("nap", datetime.fromtimestamp(due_ms / 1000, UTC))
        noted.append(time.time_ns() / 1_000_000 - due_ms)

    @flows.flow(SPAN)
    async def span(run: Run, _: None) -> None:
        began_ms = await run.step("begin", monotonic_ms)
        await run.sleep("nap", timedelta(milliseconds=SPAN_MS))
        noted.append(time.monotonic() * 1000 - began_ms - SPAN_MS)

    @flows.flow(HOLD)
    async def hold(run: Run, _: None) -> None:
        await run.step("hold", held)


async def monotonic_ms() -> float:
    return time.monotonic() * 1000


async def held() -> None:
    print(os.getpid(), flush=True)
    await asyncio.sleep(3_600)


async def work(working: Working) -> None:
    """Work until told to end; then say what was noted."""
    stop, noted = asyncio.Event(), list[float]()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connection = await nats.connect(working.url, max_reconnect_attempts=-1)
    with closing(SqliteJournal(working.journal)) as journal:
        flows = Flows(Timers(connection, tenant=TENANT), journal, name=NAME)
        define(flows, noted)
        async with flows.worker(concurrency=50, ack_wait=timedelta(seconds=working.ack_wait_s)):
            print(READY, flush=True)
            await stop.wait()
    await connection.close()
    print(json.dumps(noted))


def arguments(working: Working) -> list[str]:
    """Return the command that works in a process of its own."""
    return [sys.executable, "-m", "bench.flow_worker", json.dumps(asdict(working))]


if __name__ == "__main__":
    wanted = Working(**json.loads(sys.argv[1]))
    real_time_ns = time.time_ns
    time.time_ns = lambda: real_time_ns() + wanted.clock_off_s * 1_000_000_000
    asyncio.run(work(wanted))
