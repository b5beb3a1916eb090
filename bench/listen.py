"""A process that subscribes to events, as a plain core NATS subscriber, and notes when each arrives."""

import json
import sys
import time
from dataclasses import asdict, dataclass

from bench.messages import milliseconds
from bench.nats_socket import Message, NatsSocket

READY = "ready"


@dataclass(frozen=True, slots=True)
class Listening:
    """What to listen for, and until when."""

    port: int
    subject: str
    count: int
    timeout_s: float


def listen(listening: Listening) -> list[Message]:
    """Say that all is ready, then collect this many messages, or those that come in time."""
    link = NatsSocket(listening.port)
    link.subscribe(listening.subject)
    print(READY, flush=True)
    deadline, arrived = time.monotonic() + listening.timeout_s, list[Message]()
    while len(arrived) < listening.count and (left := deadline - time.monotonic()) > 0:
        arrived += link.read(left)
    link.close()
    return arrived


def describe(message: Message) -> tuple[str, int, float]:
    """Return the tenant, the due time and the time of arrival, both in milliseconds since 1970."""
    envelope = json.loads(message.body)
    due_ms = milliseconds(envelope["payload"]["dueAt"])
    return envelope["tenantId"], due_ms, message.received_ns / 1_000_000


def arguments(listening: Listening) -> list[str]:
    """Return the command that listens in a process of its own."""
    return [sys.executable, "-m", "bench.listen", json.dumps(asdict(listening))]


if __name__ == "__main__":
    # Reading the bodies waits until the end, when nothing is measured any more.
    print(json.dumps([describe(message) for message in listen(Listening(**json.loads(sys.argv[1])))]))
