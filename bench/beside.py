"""What else the service does while timers fire: requests that it answers."""

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from bench import rows
from bench.harness import Listener, Rig, check_in_time, now_ms, rig
from bench.nats_socket import NatsSocket
from bench.report import Figure, Goal, percentile
from bench.workloads import BURST_LEAD_S, DRAIN_TIMEOUT_S, Bench

FIRED_PER_S: Final = 1_000
PAGE: Final = 50
FLAT: Final = Goal(2.0, 1.2, of="ratio")
"""Nearly the same with many timers as with few."""


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
    # Without the limit per tenant: one tenant asks as fast as it is answered.
    unlimited = {"TIMER_REQUEST_RATE": "0"}
    with rig(bench.new_folder(), log_level=bench.log_level, settings=unlimited) as parts:
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
