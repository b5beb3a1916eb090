"""What socket, client, store and machine can do at most, each measured alone; and NATS's own scheduler."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import nats
import uvloop

from bench import plain, schedules
from bench.harness import Broker, Generator, Listener, lone_broker, now_ms
from bench.load import Load
from bench.messages import due_time_reached, uuid7
from bench.plan import Plan
from bench.report import median, percentile
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.messages import (
    DueTimeReached,
    Position,
    ScheduleTimer,
    ServiceCallId,
    TenantId,
)

BATCH: Final = 1_000
"""As many as the service publishes at once under a backlog, with the default TIMER_BATCH_SIZE."""
LEAD_S: Final = 2.0
SETTLE_TIMEOUT_S: Final = 30.0
MAX_STEADY_S: Final = 8.0

PLAIN_READ: Final = "plain socket reads and acks"
PLAIN_PUBLISH: Final = "plain socket publishes"
READ: Final = "client reads and acks"
PUBLISH: Final = "client publishes"
UPSERT: Final = "store upserts"
MARK: Final = "store marks"
AT_TAKES: Final = "NATS @at takes"
AT_FIRES: Final = "NATS @at fires"
SYNCED_AT_TAKES: Final = "NATS @at, fsynced, takes"
SYNCED_AT_FIRES: Final = "NATS @at, fsynced, fires"
_SCHEDULER: Final = {AT_TAKES: False, AT_FIRES: False, SYNCED_AT_TAKES: True, SYNCED_AT_FIRES: True}
"""Rates of NATS's own scheduler, and whether it waits for the disk at every write."""


class Limits:
    """The limits of this run; each is measured when it is first asked for."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder / "limits"
        self._plan = plan
        self._count = plan.limit_count
        self._steady_s = min(plan.steady_s, MAX_STEADY_S)
        self._rates = defaultdict[str, list[float]](list)
        self._lateness: dict[float, list[float]] = {}

    def rate(self, name: str) -> float:
        """Return a rate in items per second: the median of all tries so far, at least a few."""
        while len(self._rates[name]) < self._plan.repeats:
            self.try_again(name)
        return median(self._rates[name])

    def try_again(self, name: str) -> None:
        """Measure a limit once more, right beside what is compared with it: the machine's speed changes."""
        if name in _SCHEDULER:
            self._try_scheduler(sync_always=_SCHEDULER[name])
        else:
            self._rates[name].append(self._measure(name))

    def lateness_ms(self, per_second: float, share: float) -> float:
        """Return a percentile of the lateness of the bare loop at a rate."""
        if per_second not in self._lateness:
            with lone_broker(self._folder) as broker:
                self._lateness[per_second] = bare_lateness(broker, per_second, self._steady_s)
        return percentile(self._lateness[per_second], share)

    def _measure(self, name: str) -> float:
        if name in (UPSERT, MARK):
            return self._store()[name == MARK]
        with lone_broker(self._folder) as broker:
            return _MEASURES[name](broker, self._count)

    def _try_scheduler(self, *, sync_always: bool) -> None:
        """Measure both rates at once."""
        count = self._plan.peer_synced_burst if sync_always else self._plan.peer_burst
        rates = schedules.taken_and_fired(self._folder, count, sync_always=sync_always)
        names = [name for name, waits in _SCHEDULER.items() if waits is sync_always]
        for name, rate in zip(names, rates, strict=True):
            self._rates[name].append(rate)

    def _store(self) -> tuple[float, float]:
        self._folder.mkdir()
        try:
            return uvloop.run(upsert_and_mark(self._folder / "timers.db", self._count))
        finally:
            shutil.rmtree(self._folder)


def _fill_commands(broker: Broker, count: int) -> None:
    broker.create_stream("TIMER_COMMANDS", ["timer.commands.>"], retention="workqueue", discard="new")
    Generator(Load(broker.port, count, now_ms() + 86_400_000, 1_000)).seconds()


def plain_read_and_ack(broker: Broker, count: int) -> float:
    """Return how many commands per second are read and acknowledged over a plain socket."""
    _fill_commands(broker, count)
    return plain.read_and_ack(broker, count)


def read_and_ack(broker: Broker, count: int) -> float:
    """Return how many commands per second the stock client fetches and acknowledges."""
    _fill_commands(broker, count)
    return count / uvloop.run(_read_and_ack(broker, count))


async def _read_and_ack(broker: Broker, count: int) -> float:
    client = await nats.connect(broker.url)
    subscription = await client.jetstream().pull_subscribe("timer.commands.>", durable="bench")
    started, read = time.perf_counter(), 0
    while read < count:
        for message in await subscription.fetch(BATCH, timeout=5):
            await message.ack()
            read += 1
    await client.flush()
    while broker.stored("TIMER_COMMANDS"):
        await asyncio.sleep(0.002)
    seconds = time.perf_counter() - started
    await client.close()
    return seconds


def publish(broker: Broker, count: int) -> float:
    """Return how many events per second the stock client publishes, pipelined and confirmed."""
    broker.create_stream("TIMER_EVENTS", ["timer.events.>"])
    return count / uvloop.run(_publish(broker, count))


async def _publish(broker: Broker, count: int) -> float:
    client = await nats.connect(broker.url)
    jetstream = client.jetstream()
    due_ms = now_ms()
    ids = [uuid7(due_ms, number) for number in range(count)]
    bodies = [due_time_reached("acme", call, due_ms, due_ms, call) for call in ids]
    started = time.perf_counter()
    for message_id, body in zip(ids, bodies, strict=True):
        await jetstream.publish_async(
            "timer.events.acme.DueTimeReached", body, headers={"Nats-Msg-Id": message_id}
        )
    await jetstream.publish_async_completed()
    seconds = time.perf_counter() - started
    await client.close()
    return seconds


_MEASURES: Final[dict[str, Callable[[Broker, int], float]]] = {
    PLAIN_READ: plain_read_and_ack,
    PLAIN_PUBLISH: plain.publish,
    READ: read_and_ack,
    PUBLISH: publish,
}


async def upsert_and_mark(path: Path, count: int) -> tuple[float, float]:
    """Return the rates of the store itself, in batches, each batch one durable transaction."""
    now = datetime.now(UTC)
    commands = [
        ScheduleTimer(
            TenantId("acme"),
            ServiceCallId(uuid7(now_ms(), number)),
            now - timedelta(milliseconds=number),
            None,
            Position(1, number),
        )
        for number in range(count)
    ]
    events = [
        DueTimeReached(c.tenant_id, c.service_call_id, c.due_at, now, 1, c.correlation_id) for c in commands
    ]
    async with open_sqlite_store(path, lambda: now) as store:
        started = time.perf_counter()
        for first in range(0, count, BATCH):
            await store.apply(commands[first : first + BATCH], now)
        upserted = time.perf_counter()
        for first in range(0, count, BATCH):
            await store.marks.mark(events[first : first + BATCH])
        marked = time.perf_counter()
    return count / (upserted - started), count / (marked - upserted)


def bare_lateness(broker: Broker, per_second: float, seconds: float) -> list[float]:
    """Return how late events are, in milliseconds, where a bare loop publishes them."""
    broker.create_stream("TIMER_EVENTS", ["timer.events.>"])
    count = int(per_second * seconds)
    listener = Listener(broker, count, LEAD_S + seconds + SETTLE_TIMEOUT_S)
    load = Load(broker.port, count, now_ms() + int(LEAD_S * 1000), per_second)
    loop = subprocess.Popen([sys.executable, "-m", "bench.bare", json.dumps(asdict(load))])
    try:
        return [arrival.lateness_ms for arrival in listener.arrivals()]
    finally:
        with suppress(subprocess.TimeoutExpired):
            loop.wait(5)
