"""What callbacks and timers on the bus notice of each other's trouble, and of a greedy tenant."""

import asyncio
import itertools
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tests.support.ports import free_port

from bench import rest_load, rows
from bench.callbacks import settings
from bench.harness import (
    Arrival,
    CallbackReceiver,
    Listener,
    NotMeasured,
    Rig,
    check_in_time,
    now_ms,
    rig,
    spawn,
)
from bench.receiver import Receiving
from bench.report import Figure, Goal, median, middle, percentile
from bench.rest import KEY
from bench.rest_load import Done, RestLoad
from bench.workloads import BIG, BURST_LEAD_S, DRAIN_TIMEOUT_S, SMALL, Bench
from timer_service.adapters.sqlite.api_keys import SqliteApiKeys
from timer_service.adapters.sqlite.opening import open_sqlite_store
from timer_service.domain.api_keys import ALL_SCOPES, ApiKey, digest_of
from timer_service.domain.messages import TenantId

PART: Final = "isolation"
RATE: Final = 100
TENANTS: Final = 50
KNOWN_BEFORE_MS: Final = 1_000
"""So long before the first timer each tenant has a callback that arrives."""
NOBODY: Final = "http://127.0.0.1:9"
"""Nobody listens there."""
BESIDE: Final = Goal(1.2, 1.1, of="ratio")
NEIGHBOUR: Final = Goal(3, 1.5, of="ratio")
MEMORY: Final = Goal(200, 150)
LOOKS: Final = 50
ASK_EVERY_S: Final = 0.02
REQUEST_LIMIT: Final = {"TIMER_REQUEST_RATE": "100", "TIMER_REQUEST_BURST": "100"}
"""So little that a flood exceeds it on any machine, and twice what the other tenant asks for."""


def measure_isolation(bench: Bench) -> Iterator[Figure]:
    """Measure each kind of trouble against the same minute without it."""
    yield from _hanging(bench)
    yield from _broker_away(bench)
    yield from _receivers_away(bench)
    yield from _many_lanes(bench)
    yield from _greedy(bench)


Round = tuple[list[Arrival], int]
"""What arrived, and when the trouble began."""


def _against(what: str, rounds: list[Round], goal: Goal = BESIDE) -> Iterator[Figure]:
    """Compare what was due before the trouble began with what was due after."""
    before = [
        [each.lateness_ms for each in arrivals if each.due_ms < trouble_ms] for arrivals, trouble_ms in rounds
    ]
    beside = [
        [each.lateness_ms for each in arrivals if each.due_ms >= trouble_ms]
        for arrivals, trouble_ms in rounds
    ]
    yield from _compared(what, beside, before, goal)


def _compared(
    what: str, beside: Sequence[Sequence[float]], without: Sequence[Sequence[float]], goal: Goal
) -> Iterator[Figure]:
    """Compare percentiles round by round, because the machine's speed changes from one to the next.

    The round with the median ratio counts: one in which the machine stalls does not.
    """
    for label, share in {"p50": 0.5, "p99": 0.99}.items():
        pairs = zip(beside, without, strict=True)
        rounds = [(percentile(in_trouble, share), percentile(alone, share)) for in_trouble, alone in pairs]
        value, limit = middle(rounds, key=lambda each: each[0] / each[1])
        yield Figure(PART, f"{what}: {label}", value, "ms", "without", limit, goal)


def _hanging(bench: Bench) -> Iterator[Figure]:
    """Let one tenant's callbacks go to a receiver that never answers."""
    rounds = [_hanging_once(bench) for _ in range(bench.plan.isolation_rounds)]
    name = f"beside {bench.plan.hanging:,} due callbacks of another tenant to a receiver that hangs"
    yield from _against(f"callbacks {name}", [called for called, _ in rounds])
    yield from _against(f"timers on the bus {name}", [fired for _, fired in rounds])


def _hanging_once(bench: Bench) -> tuple[Round, Round]:
    """Return the callbacks of the other tenant, and the timers on the bus."""
    span_s, count = bench.plan.isolation_s, bench.plan.hanging
    each = int(2 * span_s * RATE)
    hanging = CallbackReceiver(Receiving(1, DRAIN_TIMEOUT_S, hang=True))
    receiver = CallbackReceiver(Receiving(each, DRAIN_TIMEOUT_S))
    try:
        with rig(bench.new_folder(), log_level=bench.log_level, settings=settings()) as parts:
            due_ms = _first_due(each + count)
            trouble_ms = due_ms + int(span_s * 1000)
            rows.create(parts.service.db_path, rows.due_evenly(each, due_ms, RATE, "bus"))
            rows.insert(parts.service.db_path, rows.due_together(count, trouble_ms, BIG), hanging.origin)
            rows.insert(parts.service.db_path, rows.due_evenly(each, due_ms, RATE, SMALL), receiver.origin)
            parts.service.start_ready()
            listener = Listener(parts.broker, each, DRAIN_TIMEOUT_S)
            check_in_time(due_ms)
            called, fired = receiver.arrivals(), listener.arrivals()
    finally:
        hanging.stop()
    return (called, trouble_ms), (fired, trouble_ms)


def _broker_away(bench: Bench) -> Iterator[Figure]:
    span_s, away_s = bench.plan.isolation_s, bench.plan.broker_away_s
    count = int((span_s + away_s) * RATE)
    receiver = CallbackReceiver(Receiving(count, DRAIN_TIMEOUT_S + away_s))
    with rig(bench.new_folder(), log_level="error", settings=settings()) as parts:
        due_ms = _first_due(count)
        trouble_ms = due_ms + int(span_s * 1000)
        rows.create(parts.service.db_path)
        rows.insert(parts.service.db_path, rows.due_evenly(count, due_ms, RATE, SMALL), receiver.origin)
        parts.service.start_ready()
        check_in_time(due_ms)
        time.sleep(max(0.0, (trouble_ms - now_ms()) / 1000))
        parts.broker.process.kill()
        called = receiver.arrivals()
    yield from _against(f"callbacks while the broker is away for {away_s:g} s", [(called, trouble_ms)])


def _receivers_away(bench: Bench) -> Iterator[Figure]:
    """Let all receivers go away; their tenants have had callbacks before, and so have their keys."""
    rounds = [_receivers_away_once(bench) for _ in range(bench.plan.isolation_rounds)]
    name = f"timers on the bus beside {bench.plan.hanging:,} due callbacks, all receivers away"
    yield from _against(name, rounds)


def _receivers_away_once(bench: Bench) -> Round:
    span_s, count = bench.plan.isolation_s, bench.plan.hanging
    each = int(2 * span_s * RATE)
    receiver = CallbackReceiver(Receiving(TENANTS, DRAIN_TIMEOUT_S))
    with rig(bench.new_folder(), log_level="error", settings=settings()) as parts:
        due_ms = _first_due(each + count)
        trouble_ms = due_ms + int(span_s * 1000)
        rows.create(parts.service.db_path, rows.due_evenly(each, due_ms, RATE, "bus"))
        known = rows.due_together(TENANTS, due_ms - KNOWN_BEFORE_MS, BIG, tenants=TENANTS)
        rows.insert(parts.service.db_path, known, receiver.origin)
        lost = rows.due_together(count, trouble_ms, BIG, tenants=TENANTS)
        rows.insert(parts.service.db_path, lost, NOBODY)
        parts.service.start_ready()
        listener = Listener(parts.broker, each, DRAIN_TIMEOUT_S)
        check_in_time(due_ms)
        receiver.arrivals()
        return listener.arrivals(), trouble_ms


def _first_due(rows_to_write: int) -> int:
    return now_ms() + int(BURST_LEAD_S * 1000) + rows_to_write // 5


def _many_lanes(bench: Bench) -> Iterator[Figure]:
    """Measure tenants and receivers with one callback each: what a look costs, and memory with all due."""
    count, few = bench.plan.lanes, 1_000
    took: dict[tuple[int, int], float] = {}
    for waiting, due in itertools.product((few, count), (0, 100)):
        database = bench.new_folder().with_suffix(".db")
        rows.create(database)
        rows.insert_deliveries(database, waiting, due)
        took[waiting, due] = asyncio.run(_look_us(database, due))
        rows.remove(database)
    for due in (0, 100):
        name = f"one look, {due} due, beside {count:,} tenants and receivers with one callback each"
        limit = f"beside {few:,}"
        yield Figure(PART, name, took[count, due], "µs", limit, took[few, due], Goal(2, 1.2, of="ratio"))
    with rig(bench.new_folder(), log_level="error", settings=settings()) as parts:
        rows.create(parts.service.db_path)
        rows.insert_deliveries(parts.service.db_path, 0, count)
        parts.service.start_ready()
        time.sleep(bench.plan.lanes_s)
        peak_mb = parts.service.memory().peak_mb
    yield Figure(PART, f"{count:,} of them due at once: peak RSS", peak_mb, "MB", goal=MEMORY)


async def _look_us(database: Path, expected: int) -> float:
    now = datetime.now(UTC)
    took = []
    async with open_sqlite_store(database, lambda: now) as store:
        for _ in range(LOOKS):
            started = time.perf_counter()
            page = await store.deliveries.due(now, 1_000)
            took.append((time.perf_counter() - started) * 1_000_000)
            assert len(page.found) == expected
    return median(took)


def _greedy(bench: Bench) -> Iterator[Figure]:
    """Let one tenant flood the API, and see another's requests and callbacks."""
    rounds = [_greedy_once(bench) for _ in range(bench.plan.isolation_rounds)]
    beside, alone = [each.beside_ms for each in rounds], [each.alone_ms for each in rounds]
    yield from _compared("create beside another tenant's flood", beside, alone, NEIGHBOUR)
    yield from _against(
        "callbacks beside another tenant's flood", [each.called for each in rounds], NEIGHBOUR
    )
    yield Figure(
        PART, "requests of the flood that were refused (429)", sum(each.refused for each in rounds), ""
    )


@dataclass(frozen=True, slots=True)
class Flooded:
    """What the other tenant's requests took without a flood and beside it, and its callbacks."""

    alone_ms: list[float]
    beside_ms: list[float]
    called: Round
    refused: int


def _greedy_once(bench: Bench) -> Flooded:
    span_s, port = bench.plan.isolation_s, free_port()
    count = int(2 * span_s * RATE)
    receiver = CallbackReceiver(Receiving(count, DRAIN_TIMEOUT_S))
    key_of_big = {"TIMER_API_PORT": str(port), "TIMER_API_KEY": KEY, "TIMER_API_TENANT": BIG}
    chosen = {**settings(), **key_of_big, **REQUEST_LIMIT}
    with rig(bench.new_folder(), log_level="error", settings=chosen) as parts:
        due_ms = _first_due(count)
        trouble_ms = due_ms + int(span_s * 1000)
        rows.create(parts.service.db_path)
        rows.insert(parts.service.db_path, rows.due_evenly(count, due_ms, RATE, SMALL), receiver.origin)
        key = asyncio.run(_add_key(parts))
        parts.service.start_ready()
        check_in_time(due_ms)
        time.sleep(max(0.0, (due_ms - now_ms()) / 1000))
        asked = int(span_s / ASK_EVERY_S)
        asking = RestLoad(port, key, asked, 1, pause_s=ASK_EVERY_S)
        alone = _done(_started(asking))
        time.sleep(max(0.0, (trouble_ms - now_ms()) / 1000))
        with _flooding(RestLoad(port, KEY, 10_000_000, 8, lasts_s=span_s)) as flood:
            beside = _done(_started(RestLoad(port, key, asked, 1, pause_s=ASK_EVERY_S, first=asked)))
        called, refused = receiver.arrivals(), _done(flood).statuses.get("429", 0)
    if not refused:
        raise NotMeasured("the flood was never refused")
    return Flooded(alone.took_ms, beside.took_ms, (called, trouble_ms), refused)


async def _add_key(parts: Rig) -> str:
    """Give the small tenant a key of its own."""
    path, text = parts.service.db_path, "tmr_small_" + "s" * 43
    keys = SqliteApiKeys(path.with_name(path.name + ".keys"))
    now = datetime.now(UTC) - timedelta(minutes=1)
    await keys.add(ApiKey("small", TenantId(SMALL), ALL_SCOPES, digest_of(text), now))
    return text


@contextmanager
def _flooding(load: RestLoad) -> Iterator["subprocess.Popen[str]"]:
    flood = _started(load)
    time.sleep(0.5)
    yield flood


def _started(load: RestLoad) -> "subprocess.Popen[str]":
    return spawn(rest_load.arguments(load))


def _done(process: "subprocess.Popen[str]") -> Done:
    return Done(**json.loads(process.communicate()[0]))
