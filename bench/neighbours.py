"""What a tenant notices while another one floods the API."""

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from bench import flood, rows
from bench.harness import Listener, NotMeasured, Rig, check_in_time, now_ms, rig
from bench.messages import uuid7
from bench.nats_socket import NatsSocket
from bench.report import Figure, Goal, percentile
from bench.workloads import BIG, DRAIN_TIMEOUT_S, SMALL, Bench

ASK_EVERY_S: Final = 0.02
PAUSE_S: Final = 1.0
"""Between the two halves, so that neither is seen in the other."""
LEAD_S: Final = 15.0
WITHIN: Final = Goal(3, 1.5, of="ratio")
RSS_GOAL: Final = Goal(150, 100)
LOG_GOAL: Final = Goal(10, 5)


def measure_neighbours(bench: Bench) -> Iterator[Figure]:
    """Measure a small tenant alone, then beside a flood of another tenant's requests."""
    span_s, rate, flood_rate = bench.plan.neighbour_s, bench.plan.neighbour_rate, bench.plan.flood_rate
    count = int((2 * span_s + PAUSE_S) * rate)
    with rig(bench.new_folder(), log_level="info") as parts:
        due_ms = now_ms() + int(LEAD_S * 1000)
        rows.create(parts.service.db_path, rows.due_evenly(count, due_ms, rate, SMALL))
        parts.service.start_ready()
        listener = Listener(parts.broker, count, DRAIN_TIMEOUT_S)
        check_in_time(due_ms)
        time.sleep(max(0.0, due_ms / 1000 - time.time()))
        alone = _asked(parts, uuid7(due_ms, 0), span_s)
        time.sleep(PAUSE_S)
        turn_ms, lines = now_ms(), _log_lines(parts)
        process = subprocess.Popen(
            flood.arguments(parts.broker.port, BIG, flood_rate, span_s), stdout=subprocess.PIPE
        )
        beside = _asked(parts, uuid7(due_ms, 0), span_s)
        output, _ = process.communicate()
        arrivals = listener.arrivals()
        lines, peak_mb = _log_lines(parts) - lines, parts.service.memory().peak_mb
    done = json.loads(output)
    late = [a.lateness_ms for a in arrivals if a.due_ms < turn_ms - PAUSE_S * 1000]
    late_beside = [a.lateness_ms for a in arrivals if turn_ms < a.due_ms < turn_ms + span_s * 1000]
    name = f"beside {flood_rate:,} requests/s of another tenant"
    for label, share in {"p50": 0.5, "p99": 0.99}.items():
        for what, before, after in (("timers", late, late_beside), ("get", alone, beside)):
            yield Figure(
                "neighbours",
                f"{what} {name}: {label}",
                percentile(after, share),
                "ms",
                limit="alone",
                limit_value=percentile(before, share),
                goal=WITHIN,
            )
    yield Figure("neighbours", "requests of the flood without an answer", done["sent"] - done["answered"], "")
    yield Figure("neighbours", "peak RSS", peak_mb, "MB", goal=RSS_GOAL)
    yield Figure("neighbours", "log lines about the flood", lines, "", goal=LOG_GOAL)


def _asked(parts: Rig, name: str, seconds: float) -> list[float]:
    """Ask for one timer every now and then; return how long each answer took, in milliseconds."""
    link = NatsSocket(parts.broker.port)
    took: list[float] = []
    ends = time.monotonic() + seconds
    try:
        while time.monotonic() < ends:
            started = time.monotonic()
            link.request(f"timer.api.{SMALL}.get", {"serviceCallId": name})
            took.append((time.monotonic() - started) * 1000)
            time.sleep(ASK_EVERY_S)
    finally:
        link.close()
    if not took:
        raise NotMeasured("no request was answered")
    return took


def _log_lines(parts: Rig) -> int:
    """Count the lines about requests."""
    return sum("request" in line or "broker.error" in line for line in parts.service.log().splitlines())
