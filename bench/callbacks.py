"""Callbacks: how many per second, and how late."""

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import trustme
from tests.support.ports import free_port

from bench import rows
from bench.harness import (
    Arrival,
    CallbackReceiver,
    NotMeasured,
    Rig,
    check_in_time,
    now_ms,
    rig,
)
from bench.receiver import Receiving
from bench.report import Figure, Goal, median, percentile
from bench.workloads import BURST_LEAD_S, DRAIN_TIMEOUT_S, SAMPLE_S, SHARES, Bench

PART: Final = "callbacks"
RATE: Final = 500
BURST_GOAL: Final = Goal(3_000, 6_000, at_least=True)
TLS_GOAL: Final = Goal(500, 800, at_least=True)
P99_GOAL: Final = Goal(15, 5)
FLAT: Final = Goal(1.2, 1.1, of="ratio")
_ENDED: Final = "SELECT count(*) FROM callback_deliveries WHERE state = 'Delivered'"


def settings(*, certificates: Path | None = None) -> dict[str, str]:
    """Return what the service needs to call receivers on this machine."""
    trusted = {} if certificates is None else {"TIMER_CALLBACK_TLS_CA": str(certificates)}
    return {"TIMER_API_PORT": str(free_port()), "TIMER_CALLBACK_ALLOW": "127.0.0.0/8", **trusted}


def measure_callbacks(bench: Bench) -> Iterator[Figure]:
    """Measure bursts until the last outcome is committed, and lateness with few and many pending."""
    count = bench.plan.callback_burst
    tries = [_burst(bench, count, tls=False) for _ in range(bench.plan.repeats)]
    name = f"{count:,} at one instant, delivered and committed"
    yield Figure(PART, name, median([rate for rate, _ in tries]), "/s", goal=BURST_GOAL)
    yield Figure(PART, f"{name}: peak RSS", max(peak for _, peak in tries), "MB")
    count = bench.plan.tls_burst
    rates = [_burst(bench, count, tls=True)[0] for _ in range(bench.plan.repeats)]
    name = f"{count:,} at one instant, each over a new TLS connection"
    yield Figure(PART, name, median(rates), "/s", goal=TLS_GOAL)
    yield from _steady(bench)


def _burst(bench: Bench, count: int, *, tls: bool) -> tuple[float, float]:
    """Return callbacks per second from the due time to the last commit, and the memory that it took."""
    certificate, trusted = _certificate(bench.new_folder()) if tls else (None, None)
    receiving = Receiving(count, DRAIN_TIMEOUT_S, close=tls, certificate=certificate)
    with rig(bench.new_folder(), log_level=bench.log_level, settings=settings(certificates=trusted)) as parts:
        receiver = CallbackReceiver(receiving)
        due_ms = now_ms() + int(BURST_LEAD_S * 1000) + count // 5
        rows.create(parts.service.db_path)
        rows.insert(parts.service.db_path, rows.due_together(count, due_ms), receiver.origin)
        parts.service.start_ready()
        check_in_time(due_ms)
        time.sleep(max(0.0, (due_ms - now_ms()) / 1000))
        committed_ms = _until_committed(parts.service.db_path, count)
        arrived = receiver.arrivals()
        if early := sum(each.lateness_ms < 0 for each in arrived):
            raise NotMeasured(f"{early} callbacks came before their due time")
        return count / (committed_ms - due_ms) * 1000, parts.service.memory().peak_mb


def _until_committed(database: Path, count: int) -> float:
    """Wait until another reader of the file sees every outcome; return when that was."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as link:
        while time.monotonic() < deadline:
            [(ended,)] = link.execute(_ENDED).fetchall()
            if ended == count:
                return time.time_ns() / 1_000_000
            time.sleep(SAMPLE_S if ended > count // 2 else 5 * SAMPLE_S)
    raise NotMeasured(f"only {ended} of {count} outcomes were committed in time")


def _certificate(folder: Path) -> tuple[str, Path]:
    """Return the files of a receiver's certificate and of the authority that issued it."""
    folder.mkdir(parents=True)
    authority = trustme.CA()
    own, trusted = folder / "receiver.pem", folder / "authority.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(own))
    authority.cert_pem.write_to_path(str(trusted))
    return str(own.resolve()), trusted.resolve()


def _steady(bench: Bench) -> Iterator[Figure]:
    """Measure in turns, because the machine's speed changes; the median of the turns counts."""
    few, many = bench.plan.callback_pending
    databases = {pending: _pending(bench, pending) for pending in (few, many)}
    turns = defaultdict[int, list[list[float]]](list)
    for _ in range(bench.plan.repeats):
        for pending, database in databases.items():
            with rig(
                bench.new_folder(), log_level=bench.log_level, database=database, settings=settings()
            ) as parts:
                turns[pending].append([each.lateness_ms for each in steady(bench, parts)])
    smallest: dict[str, float] = {}
    for pending, measured in turns.items():
        for label, share in SHARES.items():
            value = median([percentile(lateness, share) for lateness in measured])
            name = f"{RATE}/s beside {pending:,} pending: {label}"
            first = smallest.setdefault(label, value)
            if pending == few:
                yield Figure(PART, name, value, "ms", goal=P99_GOAL if label == "p99" else None)
            else:
                goal = FLAT if label in ("p50", "p99") else None
                yield Figure(PART, name, value, "ms", f"beside {few:,} pending", first, goal)
    for database in databases.values():
        rows.remove(database)


def _pending(bench: Bench, count: int) -> Path:
    """Make a file with this many timers that have callbacks and are not due for days."""
    path = bench.new_folder().with_suffix(".db")
    rows.create(path)
    rows.insert(path, rows.pending(count), "http://127.0.0.1:9")
    return path


def steady(bench: Bench, parts: Rig, tenant: str = "acme") -> list[Arrival]:
    """Let callbacks be due one after another, all known ahead; return when each arrived."""
    count = int(bench.plan.callback_s * RATE)
    receiver = CallbackReceiver(Receiving(count, DRAIN_TIMEOUT_S))
    due_ms = now_ms() + int(BURST_LEAD_S * 1000) + count // 5
    rows.insert(parts.service.db_path, rows.due_evenly(count, due_ms, RATE, tenant), receiver.origin)
    parts.service.start_ready()
    check_in_time(due_ms)
    return receiver.arrivals()
