"""A process with viewers of the page: each has a stream open and looks around; one has a job run."""

import asyncio
import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlencode

LOOK_EVERY_S: Final = 5.0
SCREENS: Final = ("", "timers", "load", "tenants")
POLL_S: Final = 0.5
LIMIT: Final = 2**20


@dataclass(frozen=True, slots=True)
class Watching:
    """Who watches what, and for how long."""

    port: int
    viewers: int
    lasts_s: float
    tenant: str
    """Whose timers a job moves meanwhile."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of it."""

    stream_bytes_per_s: float
    """Of one viewer."""
    moved_per_s: float


async def run(wanted: Watching) -> Seen:
    """Watch until the time is over."""
    ends_s = time.monotonic() + wanted.lasts_s
    lookers = [_look_around(wanted, number, ends_s) for number in range(wanted.viewers)]
    streams = [_watch(wanted.port, ends_s) for _ in range(wanted.viewers)]
    moved, *read = await asyncio.gather(_move(wanted, ends_s), *streams, *lookers)
    sizes = read[: wanted.viewers]
    return Seen(sum(sizes) / len(sizes) / wanted.lasts_s, moved / wanted.lasts_s)


async def _watch(port: int, ends_s: float) -> int:
    """Return how many bytes a stream had."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ui/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    size = 0
    try:
        async with asyncio.timeout(ends_s - time.monotonic()):
            while chunk := await reader.read(LIMIT):
                size += len(chunk)
    except TimeoutError:
        pass
    writer.close()
    return size


async def _look_around(wanted: Watching, number: int, ends_s: float) -> int:
    """Open a screen every now and then, not all at the same moment."""
    await asyncio.sleep(LOOK_EVERY_S * number / wanted.viewers)
    while time.monotonic() < ends_s:
        await _ask(wanted.port, "GET", SCREENS[number % len(SCREENS)])
        await asyncio.sleep(min(LOOK_EVERY_S, max(0.0, ends_s - time.monotonic())))
    return 0


async def _move(wanted: Watching, ends_s: float) -> int:
    """Run job after job, each of which moves what the tenant has; return how many timers were moved."""
    done, by = 0, itertools.cycle(("1s", "-1s"))
    while time.monotonic() < ends_s:
        form = {"action": "move", "by": next(by), "tenant": wanted.tenant, "format": "json"}
        shown = json.loads(await _ask(wanted.port, "GET", f"bulk?{urlencode(form)}"))
        agreed = {"count": shown["count"], "confirm": shown["count"], "reason": "bench"}
        await _ask(wanted.port, "POST", "bulk-start", urlencode({**form, **agreed, "as_of": shown["asOf"]}))
        done += await _end_of_job(wanted, ends_s)
    return done


async def _end_of_job(wanted: Watching, ends_s: float) -> int:
    """Wait for the end of the job that runs, which is stopped when the time is over."""
    query = urlencode({"tenant": wanted.tenant, "format": "json"})
    [job, *_] = json.loads(await _ask(wanted.port, "GET", f"timers?{query}"))["jobs"]
    while True:
        shown = json.loads(await _ask(wanted.port, "GET", f"job?n={job['number']}&format=json"))["job"]
        if not shown["isRunning"]:
            return sum(each["count"] for each in shown["outcomes"])
        if time.monotonic() >= ends_s:
            await _ask(wanted.port, "POST", "job-stop", urlencode({"n": job["number"]}))
        await asyncio.sleep(POLL_S)


async def _ask(port: int, method: str, path: str, body: str = "") -> bytes:
    """Return what is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    writer.write(
        f"{method} /ui/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\nsec-fetch-site: same-origin\r\n"
        "content-type: application/x-www-form-urlencoded\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    answer = await reader.readexactly(length)
    writer.close()
    if head[9:12] not in {b"200", b"303"}:
        raise SystemExit(f"{method} {path} was answered with {head[9:12]!r}: {answer[:500]!r}")
    return answer


def arguments(wanted: Watching) -> list[str]:
    """Return the command that watches from a process of its own."""
    return [sys.executable, "-m", "bench.viewers", json.dumps(asdict(wanted))]


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(run(Watching(**json.loads(sys.argv[1])))))))
