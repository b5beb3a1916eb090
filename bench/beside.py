"""What else the service does while timers fire: requests that it answers, rows that it purges."""

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from bench import rows
from bench.harness import Listener, NotMeasured, Rig, check_in_time, now_ms, rig
from bench.messages import iso
from bench.nats_socket import NatsSocket
from bench.report import Figure, Goal, percentile
from bench.workloads import BURST_LEAD_S, DRAIN_TIMEOUT_S, Bench

FIRED_PER_S: Final = 1_000
HOUR_MS: Final = 3_600_000
PAGE: Final = 50
LOOK_S: Final = 0.2
FLAT: Final = Goal(2.0, 1.2, of="ratio")
"""Nearly the same with many timers as with few."""
HARDLY_LATER: Final = Goal(5.0, 2.0, of="ratio")


def measure_answers(bench: Bench) -> Iterator[Figure]:
    """Measure requests while timers fire, with few and with many timers of the tenant that asks."""
    few = bench.plan.pending[0]
    smallest: dict[str, float] = {}
    for pending in bench.plan.pending[:2]:
        for name, latencies in _answers(bench, pending).items():
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                value = percentile(latencies, share)
                first = smallest.setdefault(f"{name} {label}", value)
                limit = (f"with {few:,} pending", first, FLAT) if pending != few else ("", None, None)
                yield Figure("answers", f"{pending:,} pending: {name} {label}", value, "ms", *limit)


def _answers(bench: Bench, pending: int) -> dict[str, list[float]]:
    """Return how long each request took, in ms, while 1,000 timers per second fired."""
    seconds = min(bench.plan.steady_s, 6.0)
    count = int(seconds * FIRED_PER_S)
    with rig(bench.new_folder(), log_level=bench.log_level) as parts:
        first_due_ms = now_ms() + int(BURST_LEAD_S * 1000) + pending // 20
        firing = rows.due_evenly(count, first_due_ms, FIRED_PER_S, "acme")
        rows.create(parts.service.db_path, itertools.chain(rows.pending(pending), firing))
        known = _some(parts.service.db_path)
        parts.service.start_ready()
        listener = Listener(parts.broker, count, DRAIN_TIMEOUT_S)
        check_in_time(first_due_ms)
        time.sleep(max(0.0, (first_due_ms - now_ms()) / 1000))
        measured = _asked(parts, known, until_ms=first_due_ms + int(seconds * 1000))
        listener.arrivals()
    return measured


def _some(database: Path) -> list[tuple[str, str]]:
    """Return tenants and service calls of pending timers from all over the file."""
    with closing(sqlite3.connect(database)) as link:
        found = link.execute(
            "SELECT tenant_id, service_call_id FROM timer_schedules "
            "WHERE tenant_id <> 'acme' AND stream_sequence % 97 = 0 LIMIT 1000"
        )
        return list(found)


def _asked(parts: Rig, known: list[tuple[str, str]], until_ms: int) -> dict[str, list[float]]:
    link = NatsSocket(parts.broker.port)
    measured: dict[str, list[float]] = {"get": [], "list": []}
    for tenant, call in itertools.cycle(known):
        if now_ms() >= until_ms:
            break
        measured["get"].append(_request_ms(link, f"timer.api.{tenant}.get", {"serviceCallId": call}))
        measured["list"].append(_request_ms(link, f"timer.api.{tenant}.list", {"limit": PAGE}))
    link.close()
    return measured


def _request_ms(link: NatsSocket, subject: str, request: dict[str, object]) -> float:
    started = time.perf_counter()
    link.request(subject, request)
    return (time.perf_counter() - started) * 1000


def measure_purge(bench: Bench) -> Iterator[Figure]:
    """Measure lateness while retention deletes many rows, beside what it is once they are gone."""
    rate, old = bench.plan.rates[0], bench.plan.reached
    seconds = 4.0 + old / 40_000
    count = int(seconds * rate)
    with rig(bench.new_folder(), log_level=bench.log_level, settings={"TIMER_RETENTION": "1h"}) as parts:
        first_due_ms = now_ms() + int(BURST_LEAD_S * 1000) + old // 20
        firing = rows.due_evenly(count, first_due_ms, rate, "acme")
        rows.create(parts.service.db_path, itertools.chain(rows.reached(old), firing))
        listener = Listener(parts.broker, count, seconds + DRAIN_TIMEOUT_S)
        time.sleep(max(0.0, (first_due_ms - now_ms()) / 1000 - 1.0))
        parts.service.start_ready()
        purged_ms = _until_purged(parts.service.db_path)
        arrivals = listener.arrivals()
    # What was due before the service was ready says nothing of purging.
    ready_ms = first_due_ms + 1_000
    beside = [a.lateness_ms for a in arrivals if ready_ms <= a.due_ms <= purged_ms]
    after = [a.lateness_ms for a in arrivals if a.due_ms > purged_ms]
    if min(len(beside), len(after)) < rate // 2:
        raise NotMeasured(f"{len(beside)} timers beside the purge and {len(after)} after it are too few")
    name = f"{rate:,}/s beside a purge of {old:,} rows"
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        calm = percentile(after, share)
        yield Figure(
            "purge", f"{name}: {label}", percentile(beside, share), "ms", "after it", calm, HARDLY_LATER
        )
    yield Figure("purge", f"{name}: samples", len(beside), "")


def _until_purged(database: Path) -> int:
    """Wait until nothing is left that ended more than an hour ago; return when that was."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as link:
        while time.monotonic() < deadline:
            before = iso(now_ms() - HOUR_MS)
            found = link.execute(
                "SELECT 1 FROM timer_schedules WHERE state = 'Reached' AND reached_at < ? LIMIT 1", (before,)
            ).fetchone()
            if found is None:
                return now_ms()
            time.sleep(LOOK_S)
    raise NotMeasured("the purge did not end in time")
