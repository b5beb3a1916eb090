"""A process that schedules timers: as fast as the broker takes them, or each a while before it is due."""

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from bench import messages
from bench.nats_socket import NatsError, NatsSocket

WINDOW: Final = 2_000
"""Messages on their way without an answer; JetStream drops what exceeds its queue."""
CHUNK: Final = 200
PACE_S: Final = 0.001
COMMANDS: Final = "timer.commands"
SCHEDULES: Final = "schedules"
FIRED: Final = "fired"


@dataclass(frozen=True, slots=True)
class Load:
    """Timers to schedule: the first due at a moment, the others evenly after it."""

    port: int
    count: int
    first_due_ms: int
    per_second: float
    lead_ms: int | None = None
    """How long before its due time each is sent; all at once where not set."""
    tenant: str = "acme"
    form: str = "command"
    """`command` for the timer service, `schedule` for NATS's own scheduler."""

    def due_ms(self, number: int) -> int:
        """Return when a timer is due; infinitely many per second are all due at once."""
        return self.first_due_ms + int(number * 1000 / self.per_second)


def send(load: Load) -> float:
    """Publish all and return how long it took until the last was acknowledged, in seconds."""
    link = NatsSocket(load.port)
    link.subscribe(f"{link.inbox}.*")
    started, sent, answered = time.perf_counter(), 0, 0
    while answered < load.count:
        ready = min(_ready(load, sent), sent + CHUNK, answered + WINDOW)
        if ready > sent:
            link.send(b"".join(_message(load, link.inbox, number) for number in range(sent, ready)))
            sent = ready
        may_send = sent < min(load.count, answered + WINDOW)
        for answer in link.read(PACE_S if may_send and load.lead_ms is not None else 0 if may_send else 10):
            if b'"error"' in answer.body or not answer.body:
                raise NatsError(f"not stored: {answer.body!r}")
            answered += 1
    link.close()
    return time.perf_counter() - started


def _ready(load: Load, sent: int) -> int:
    """Return how many may have been sent by now."""
    if load.lead_ms is None:
        return load.count
    until_ms = time.time_ns() // 1_000_000 + load.lead_ms
    ready = sent
    while ready < load.count and load.due_ms(ready) <= until_ms and ready < sent + CHUNK:
        ready += 1
    return ready


def _message(load: Load, inbox: str, number: int) -> bytes:
    now_ms, due_ms = time.time_ns() // 1_000_000, load.due_ms(number)
    call = messages.uuid7(now_ms, number)
    message_id = messages.uuid7(now_ms, number + load.count)
    if load.form == "schedule":
        # The body is the event as the timer service would send it: same size, same due time in it.
        body = messages.due_time_reached(load.tenant, call, due_ms, now_ms, message_id)
        headers = {
            "Nats-Schedule": f"@at {messages.iso(due_ms)}",
            "Nats-Schedule-Target": f"{FIRED}.{load.tenant}",
        }
        return messages.frame(f"{SCHEDULES}.{load.tenant}.{call}", f"{inbox}.{number}", headers, body)
    body = messages.schedule_timer(load.tenant, call, due_ms, now_ms, message_id)
    subject = f"{COMMANDS}.{load.tenant}.ScheduleTimer"
    return messages.frame(subject, f"{inbox}.{number}", {"Nats-Msg-Id": message_id}, body)


def arguments(load: Load) -> list[str]:
    """Return the command that runs this load in a process of its own."""
    return [sys.executable, "-m", "bench.load", json.dumps(asdict(load))]


if __name__ == "__main__":
    print(json.dumps({"seconds": send(Load(**json.loads(sys.argv[1])))}))
