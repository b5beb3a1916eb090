"""What a tenant notices while another one floods the API."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench import flood, rows
from bench.harness import Arrival, Listener, NotMeasured, Rig, check_in_time, now_ms, rig
from bench.messages import uuid7
from bench.nats_socket import NatsSocket
from bench.report import Figure, Goal, percentile
from bench.workloads import BIG, DRAIN_TIMEOUT_S, SMALL, Bench

ASK_EVERY_S: Final = 0.02
PAUSE_S: Final = 0.5
"""Before each turn, so that the last one is not seen in it."""
TURNS: Final = 5
"""Alone and beside both floods, again and again: a slow minute of the machine shows in both."""
START_S: Final = 0.3
"""Until the flood has begun."""
LEAD_S: Final = 15.0
WITHIN: Final = Goal(3, 1.5, of="ratio")
RSS_GOAL: Final = Goal(150, 100)
LOG_GOAL: Final = Goal(10, 5)


@dataclass(slots=True)
class _Seen:
    """What the small tenant noticed, in all turns of one kind."""

    took: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    unanswered: int = 0

    def answers(self) -> list[float]:
        """Return how long each `get` took, in milliseconds."""
        return self.took

    def late(self, arrivals: Sequence[Arrival]) -> list[float]:
        """Return the lateness of the timers that were due in these turns."""
        return [a.lateness_ms for a in arrivals if any(start < a.due_ms < end for start, end in self.spans)]


def measure_neighbours(bench: Bench) -> Iterator[Figure]:
    """Measure a small tenant alone, beside a flood that nobody serves, and beside one of the API."""
    span_s, rate, flood_rate = (
        bench.plan.neighbour_s / TURNS,
        bench.plan.neighbour_rate,
        bench.plan.flood_rate,
    )
    count = int(3 * TURNS * (span_s + PAUSE_S + START_S) * rate)
    alone, unserved, beside = _Seen(), _Seen(), _Seen()
    with rig(bench.new_folder(), log_level="info") as parts:
        due_ms = now_ms() + int(LEAD_S * 1000)
        rows.create(parts.service.db_path, rows.due_evenly(count, due_ms, rate, SMALL))
        parts.service.start_ready()
        listener = Listener(parts.broker, count, DRAIN_TIMEOUT_S)
        check_in_time(due_ms)
        time.sleep(max(0.0, due_ms / 1000 - time.time()))
        for _ in range(TURNS):
            _turn(parts, alone, uuid7(due_ms, 0), span_s)
            for api, seen in ((flood.NOBODY, unserved), (flood.API, beside)):
                with _flooded(parts, api, flood_rate, span_s + START_S + PAUSE_S, seen):
                    _turn(parts, seen, uuid7(due_ms, 0), span_s)
        arrivals = listener.arrivals()
        lines, peak_mb = _log_lines(parts), parts.service.memory().peak_mb
    name = f"beside {flood_rate:,} requests/s of another tenant"
    for label, share in {"p50": 0.5, "p99": 0.99}.items():
        for what, of in (("timers", partial(_Seen.late, arrivals=arrivals)), ("get", _Seen.answers)):
            value = percentile(of(beside), share)
            for limit, before, goal in (("unserved flood", unserved, WITHIN), ("alone", alone, None)):
                figure = f"{what} {name}: {label}" + (" against alone" if before is alone else "")
                yield Figure("neighbours", figure, value, "ms", limit, percentile(of(before), share), goal)
    yield Figure("neighbours", "requests of the flood without an answer", beside.unanswered, "")
    yield Figure("neighbours", "peak RSS", peak_mb, "MB", goal=RSS_GOAL)
    yield Figure("neighbours", "log lines about one flood", lines / TURNS, "", goal=LOG_GOAL)


@contextmanager
def _flooded(parts: Rig, api: str, rate: int, seconds: float, seen: _Seen) -> Iterator[None]:
    process = subprocess.Popen(
        flood.arguments(parts.broker.port, api, BIG, rate, seconds), stdout=subprocess.PIPE
    )
    time.sleep(START_S)
    yield
    output, _ = process.communicate()
    done = json.loads(output)
    seen.unanswered += done["sent"] - done["answered"]


def _turn(parts: Rig, seen: _Seen, name: str, span_s: float) -> None:
    time.sleep(PAUSE_S)
    started_ms = now_ms()
    seen.took += _asked(parts, name, span_s)
    seen.spans.append((started_ms, now_ms()))


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
