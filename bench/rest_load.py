"""A process that creates timers over REST, on several connections, as fast as they are answered."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, cycle, islice, takewhile

import uvloop

from bench.messages import iso, uuid7

BATCH = 1_000


@dataclass(frozen=True, slots=True)
class RestLoad:
    """What to ask for, and how."""

    port: int
    key: str
    requests: int
    connections: int
    batch: bool = False
    """Each request creates 1,000 timers."""
    path: str = "/v1/timers"
    pause_s: float = 0.0
    """Between an answer and the next request of a connection."""
    lasts_s: float = 0.0
    """Flood for so long, instead of sending each request once: create, list and send what is refused."""
    first: int = 0
    """Number of the first timer."""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    seconds: float
    statuses: dict[str, int]
    took_ms: list[float]


def _bodies(load: RestLoad) -> Iterator[bytes]:
    now_ms = time.time_ns() // 1_000_000
    due = iso(now_ms + 86_400_000)
    for number in count(load.first):
        calls = range(number * BATCH, (number + 1) * BATCH) if load.batch else (number,)
        timers = [
            f'{{"serviceCallId":"{uuid7(now_ms, call)}","dueAt":"{due}","callback":'
            '{"url":"https://receiver.example/orders","body":{"order":42}}}'
            for call in calls
        ]
        yield (f'{{"timers":[{",".join(timers)}]}}' if load.batch else timers[0]).encode()


def _creations(load: RestLoad) -> Iterator[bytes]:
    path = f"{load.path}:batch" if load.batch else load.path
    return (_written(load, "POST", path, body) for body in islice(_bodies(load), load.requests))


def _flood(load: RestLoad) -> list[bytes]:
    """Return one request of each kind that a greedy tenant may send again and again."""
    return [
        *(_written(load, "POST", load.path, body) for body in islice(_bodies(load), 1)),
        _written(load, "GET", f"{load.path}?limit=100"),
        _written(load, "POST", load.path, b'{"dueAt": "soon"}'),
    ]


def _written(load: RestLoad, method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: bench\r\nx-api-key: {load.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(load: RestLoad) -> Done:
    """Send all requests and wait for every answer."""
    # Made before: what the load takes to write its requests is not measured.
    made = _flood(load) if load.lasts_s else list(_creations(load))
    ends_s = time.monotonic() + load.lasts_s
    ready = takewhile(lambda _: time.monotonic() < ends_s, cycle(made)) if load.lasts_s else iter(made)
    statuses: dict[str, int] = {}
    took_ms: list[float] = []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", load.port, limit=2**22)
        for request in ready:
            asked = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            took_ms.append((time.perf_counter() - asked) * 1000)
            status = head[9:12].decode()
            if load.batch and status == "200":
                for result in json.loads(body)["results"]:
                    found = str(result["status"])
                    statuses[found] = statuses.get(found, 0) + 1
            else:
                statuses[status] = statuses.get(status, 0) + 1
            if b"connection: close" in head.lower():
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", load.port, limit=2**22)
            if load.pause_s:
                await asyncio.sleep(load.pause_s)
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(load.connections)))
    return Done(time.perf_counter() - started, statuses, took_ms)


def arguments(load: RestLoad) -> list[str]:
    """Return the command that sends the load from a process of its own."""
    return [sys.executable, "-m", "bench.rest_load", json.dumps(asdict(load))]


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(run(RestLoad(**json.loads(sys.argv[1])))))))
