"""A plain poller, the shape from which this project began: every five seconds, one row at a time.

It keeps the same promises as far as it can: a command is acknowledged after its row is committed, a timer
is published and confirmed before it is marked, all on SQLite with an fsync for each commit. It is kinder than
its model in one thing: it goes on while more than a hundred timers are due.
"""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import nats
import uvloop
from nats.aio.client import Client

from bench import limits
from bench.harness import (
    COMMANDS_STREAM,
    Generator,
    Listener,
    check_in_time,
    lone_broker,
    now_ms,
)
from bench.load import Load
from bench.messages import due_time_reached, iso, milliseconds
from bench.report import Figure
from bench.workloads import DRAIN_TIMEOUT_S, Bench, drain_rate, lateness_figures

INTERVAL_S: Final = 5.0
LIMIT: Final = 100
LEAD_MS: Final = 2_000
INGEST_PER_S: Final = 500
"""Commands per second that it must at least take before the first timer is due."""

_SCHEMA: Final = """
CREATE TABLE timer_schedules (
  tenant_id TEXT NOT NULL, service_call_id TEXT NOT NULL, state TEXT NOT NULL, due_at TEXT NOT NULL,
  PRIMARY KEY (tenant_id, service_call_id));
CREATE INDEX by_due ON timer_schedules (state, due_at);
"""
_UPSERT: Final = """
INSERT INTO timer_schedules VALUES (?, ?, 'Scheduled', ?)
ON CONFLICT (tenant_id, service_call_id) DO UPDATE SET due_at = excluded.due_at WHERE state = 'Scheduled'
"""
_DUE: Final = """
SELECT tenant_id, service_call_id, due_at FROM timer_schedules
WHERE state = 'Scheduled' AND due_at <= ? ORDER BY due_at LIMIT ?
"""
_MARK: Final = "UPDATE timer_schedules SET state = 'Reached' WHERE tenant_id = ? AND service_call_id = ?"


async def serve(port: int, db_path: Path) -> None:
    """Take commands and fire timers forever."""
    database = sqlite3.connect(db_path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.executescript(_SCHEMA)
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    async with asyncio.TaskGroup() as loops:
        loops.create_task(_take_commands(client, database))
        loops.create_task(_poll(client, database))


async def _take_commands(client: Client, database: sqlite3.Connection) -> None:
    subscription = await client.jetstream().pull_subscribe("timer.commands.>", durable="poller")
    while True:
        try:
            messages = await subscription.fetch(LIMIT, timeout=1)
        except TimeoutError:
            continue
        for message in messages:
            payload = json.loads(message.data)["payload"]
            database.execute(_UPSERT, (payload["tenantId"], payload["serviceCallId"], payload["dueAt"]))
            await message.ack()


async def _poll(client: Client, database: sqlite3.Connection) -> None:
    while True:
        due = database.execute(_DUE, (iso(now_ms()), LIMIT)).fetchall()
        for tenant, call, due_at in due:
            body = due_time_reached(tenant, call, milliseconds(due_at), now_ms(), call)
            subject = f"timer.events.{tenant}.DueTimeReached"
            await client.jetstream().publish(subject, body, headers={"Nats-Msg-Id": call})
            database.execute(_MARK, (tenant, call))
        if len(due) < LIMIT:
            await asyncio.sleep(INTERVAL_S)


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure a burst, and a steady load over two intervals."""
    plan, rate = bench.plan, bench.plan.poller_rate
    taken, fired = _burst(bench, plan.poller_burst)
    read, publish = bench.limits.rate(limits.PLAIN_READ), bench.limits.rate(limits.PLAIN_PUBLISH)
    yield Figure(
        "peers", f"plain poller: ingest of {plan.poller_burst:,}", taken, "/s", limits.PLAIN_READ, read
    )
    yield Figure(
        "peers", f"plain poller: burst of {plan.poller_burst:,}", fired, "/s", limits.PLAIN_PUBLISH, publish
    )
    lateness = _run(bench, int(rate * plan.poller_s), rate)[1]
    yield from lateness_figures(bench, "peers", f"plain poller: {rate:,}/s", rate, lateness, goals=False)


def _burst(bench: Bench, count: int) -> tuple[float, float]:
    """Return how many commands per second it takes and how many timers it fires once its poll has begun."""
    taken, lateness = _run(bench, count, float("inf"))
    return taken, count / (max(lateness) - min(lateness)) * 1000


def _run(bench: Bench, count: int, per_second: float) -> tuple[float, list[float]]:
    folder = bench.new_folder()
    with lone_broker(folder) as broker:
        broker.create_stream(COMMANDS_STREAM, ["timer.commands.>"], retention="workqueue", discard="new")
        broker.create_stream("TIMER_EVENTS", ["timer.events.>"])
        first_due_ms = now_ms() + LEAD_MS + count * 1000 // INGEST_PER_S
        Generator(Load(broker.port, count, first_due_ms, per_second)).seconds()
        arguments = [str(broker.port), str(folder / "poller.db")]
        poller = subprocess.Popen([sys.executable, "-m", "bench.peers.plain_poller", *arguments])
        try:
            listener = Listener(broker, count, DRAIN_TIMEOUT_S)
            taken = drain_rate(broker, count)
            check_in_time(first_due_ms)
            return taken, [arrival.lateness_ms for arrival in listener.arrivals()]
        finally:
            poller.kill()
            poller.wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
