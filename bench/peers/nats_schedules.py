"""NATS's own message schedules: `Nats-Schedule: @at …`, since nats-server 2.12.

The fired messages are stored inside the stream and reach no plain subscription, so a push consumer without
acknowledgements hands them to the listener: the cheapest way there is.
"""

from collections.abc import Iterator
from typing import Final

from bench import limits
from bench.harness import Broker, Generator, Listener, check_in_time, lone_broker, now_ms
from bench.load import FIRED, SCHEDULES, Load
from bench.report import Figure, median
from bench.workloads import DRAIN_TIMEOUT_S, Bench, lateness_figures

STREAM: Final = "SCHEDULES"
DELIVER: Final = "deliver.fired"
LEAD_MS: Final = 2_000
PUBLISH_PER_S: Final = 8_000
SYNCED_PUBLISH_PER_S: Final = 500
"""Schedules per second that the server must at least take before the first is due."""


def measure(bench: Bench) -> Iterator[Figure]:
    """With the server's default of an fsync every two minutes, and with an fsync for every write."""
    plan = bench.plan
    for count in plan.peer_burst:
        yield from _burst(bench, count, sync_always=False)
    for rate in plan.rates:
        yield from _steady(bench, rate, sync_always=False)
    yield from _burst(bench, plan.peer_synced_burst, sync_always=True)
    yield from _steady(bench, plan.rates[0], sync_always=True)


def _burst(bench: Bench, count: int, *, sync_always: bool) -> Iterator[Figure]:
    repeats = 1 if count > 20_000 else bench.plan.repeats
    tries = [_burst_once(bench, count, sync_always=sync_always) for _ in range(repeats)]
    taken, fired = (median(list(rates)) for rates in zip(*tries, strict=True))
    name = f"NATS @at{', fsynced' if sync_always else ''}"
    read, publish = bench.limits.rate(limits.READ), bench.limits.rate(limits.PUBLISH)
    yield Figure("peers", f"{name}: ingest of {count:,}", taken, "/s", limits.READ, read)
    yield Figure("peers", f"{name}: burst of {count:,}", fired, "/s", limits.PUBLISH, publish)


def _burst_once(bench: Bench, count: int, *, sync_always: bool) -> tuple[float, float]:
    """Return how many schedules per second were taken, and fired."""
    with lone_broker(bench.new_folder(), sync_always=sync_always) as broker:
        listener = _prepare(broker, count)
        due_ms = now_ms() + _lead_ms(count, sync_always=sync_always)
        taken_s = Generator(Load(broker.port, count, due_ms, float("inf"), form="schedule")).seconds()
        check_in_time(due_ms)
        last_ms = max(arrival.received_ms for arrival in listener.arrivals())
    return count / taken_s, count / (last_ms - due_ms) * 1000


def _steady(bench: Bench, rate: int, *, sync_always: bool) -> Iterator[Figure]:
    count = int(rate * bench.plan.steady_s)
    with lone_broker(bench.new_folder(), sync_always=sync_always) as broker:
        listener = _prepare(broker, count)
        first_due_ms = now_ms() + _lead_ms(count, sync_always=sync_always)
        Generator(Load(broker.port, count, first_due_ms, rate, form="schedule")).seconds()
        check_in_time(first_due_ms)
        lateness = [arrival.lateness_ms for arrival in listener.arrivals()]
    name = f"NATS @at{', fsynced' if sync_always else ''}: {rate:,}/s"
    yield from lateness_figures(bench, "peers", name, rate, lateness, goals=False)


def _lead_ms(count: int, *, sync_always: bool) -> int:
    return LEAD_MS + count * 1000 // (SYNCED_PUBLISH_PER_S if sync_always else PUBLISH_PER_S)


def _prepare(broker: Broker, count: int) -> Listener:
    broker.create_stream(STREAM, [f"{SCHEDULES}.>", f"{FIRED}.>"], allow_msg_schedules=True)
    listener = Listener(broker, count, DRAIN_TIMEOUT_S, DELIVER)
    consumer = {"durable_name": "bench", "deliver_subject": DELIVER, "filter_subject": f"{FIRED}.>"}
    broker.request(
        f"CONSUMER.DURABLE.CREATE.{STREAM}.bench",
        {"stream_name": STREAM, "config": {**consumer, "ack_policy": "none", "deliver_policy": "all"}},
    )
    return listener
