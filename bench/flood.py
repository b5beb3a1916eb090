"""`python -m bench.flood`: one tenant that sends requests at a rate, whatever it is answered."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Final

from bench.messages import iso
from bench.nats_socket import NatsSocket

FAR_MS: Final = 4_102_444_800_000
TICK_S: Final = 0.005
LAST_ANSWERS_S: Final = 5.0
API: Final = "timer.api"
NOBODY: Final = "nobody.api"
"""Nobody serves this: the broker says so to each request, so that load and broker have the same to do."""


def flood(port: int, api: str, tenant: str, rate: int, seconds: float) -> dict[str, int]:
    """Send `schedule`, `get` and `list` in turns; return how many were sent and answered."""
    link = NatsSocket(port)
    link.subscribe(f"{link.inbox}.*")
    messages = _messages(f"{api}.{tenant}", f"{link.inbox}.a")
    started, sent, answered = time.monotonic(), 0, 0
    while (passed := time.monotonic() - started) < seconds:
        wanted = int(passed * rate) - sent
        if wanted > 0:
            link.send(b"".join(next(messages) for _ in range(wanted)))
            sent += wanted
        answered += len(link.read(TICK_S))
    while answered < sent and (more := len(link.read(LAST_ANSWERS_S))):
        answered += more
    link.close()
    return {"sent": sent, "answered": answered}


def _messages(subject: str, reply: str) -> Iterator[bytes]:
    for number in count():
        name = f"flood-{number % 1000}"
        requests: tuple[tuple[str, dict[str, object]], ...] = (
            ("schedule", {"serviceCallId": name, "dueAt": iso(FAR_MS + number)}),
            ("get", {"serviceCallId": name}),
            ("list", {"limit": 500}),
        )
        endpoint, request = requests[number % 3]
        body = json.dumps(request).encode()
        yield f"PUB {subject}.{endpoint} {reply} {len(body)}\r\n".encode() + body + b"\r\n"


def arguments(port: int, api: str, tenant: str, rate: int, seconds: float) -> list[str]:
    """Return the command that does this in a process of its own."""
    return [sys.executable, "-m", "bench.flood", str(port), api, tenant, str(rate), str(seconds)]


if __name__ == "__main__":
    port, api, tenant, rate, seconds = sys.argv[1:]
    print(json.dumps(flood(int(port), api, tenant, int(rate), float(seconds))))
