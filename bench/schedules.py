"""NATS's own message schedules under load: `Nats-Schedule: @at …`, since nats-server 2.12.

The fired messages are stored inside the stream and reach no plain subscription, so a push consumer without
acknowledgements hands them to the listener: the cheapest way there is.
"""

from pathlib import Path
from typing import Final

from bench.harness import Broker, Generator, Listener, check_in_time, lone_broker, now_ms
from bench.load import FIRED, SCHEDULES, Load

STREAM: Final = "SCHEDULES"
DELIVER: Final = "deliver.fired"
LEAD_MS: Final = 2_000
PUBLISH_PER_S: Final = 8_000
SYNCED_PUBLISH_PER_S: Final = 500
"""Schedules per second that the server must at least take before the first is due."""
TIMEOUT_S: Final = 180.0


def taken_and_fired(folder: Path, count: int, *, sync_always: bool) -> tuple[float, float]:
    """Return how many schedules per second were taken, and fired, all due at one instant."""
    with lone_broker(folder, sync_always=sync_always) as broker:
        listener = _prepare(broker, count)
        due_ms = now_ms() + _lead_ms(count, sync_always=sync_always)
        taken_s = Generator(Load(broker.port, count, due_ms, float("inf"), form="schedule")).seconds()
        check_in_time(due_ms)
        last_ms = max(arrival.received_ms for arrival in listener.arrivals())
    return count / taken_s, count / (last_ms - due_ms) * 1000


def lateness(folder: Path, rate: int, seconds: float, *, sync_always: bool) -> list[float]:
    """Return how late each event was, in ms, where they are due one after the other."""
    count = int(rate * seconds)
    with lone_broker(folder, sync_always=sync_always) as broker:
        listener = _prepare(broker, count)
        first_due_ms = now_ms() + _lead_ms(count, sync_always=sync_always)
        Generator(Load(broker.port, count, first_due_ms, rate, form="schedule")).seconds()
        check_in_time(first_due_ms)
        return [arrival.lateness_ms for arrival in listener.arrivals()]


def _lead_ms(count: int, *, sync_always: bool) -> int:
    return LEAD_MS + count * 1000 // (SYNCED_PUBLISH_PER_S if sync_always else PUBLISH_PER_S)


def _prepare(broker: Broker, count: int) -> Listener:
    broker.create_stream(STREAM, [f"{SCHEDULES}.>", f"{FIRED}.>"], allow_msg_schedules=True)
    listener = Listener(broker, count, TIMEOUT_S, DELIVER)
    consumer = {"durable_name": "bench", "deliver_subject": DELIVER, "filter_subject": f"{FIRED}.>"}
    broker.request(
        f"CONSUMER.DURABLE.CREATE.{STREAM}.bench",
        {"stream_name": STREAM, "config": {**consumer, "ack_policy": "none", "deliver_policy": "all"}},
    )
    return listener
