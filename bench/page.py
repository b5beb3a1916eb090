"""The page with many timers: how soon a screen answers, how heavy it is, and what its viewers cost."""

import contextlib
import http.client
import itertools
import json
import random
import re
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright
from tests.browser import chromium
from tests.support.ports import free_port

from bench import rows, viewers
from bench.harness import Listener, NotMeasured, TimerService, check_in_time, now_ms, rig
from bench.messages import iso, uuid7
from bench.postgres import cluster, fill, server
from bench.report import Figure, Goal, median, percentile
from bench.workloads import DRAIN_TIMEOUT_S, Bench

PART: Final = "page"
TENANTS: Final = 100
LARGE_TENANT: Final = "tenant-0"
DUE_AFTER_MS: Final = 15 * 60_000
"""Nothing is due while the screens are measured; soon after that it is."""
DUE_WITHIN_MS: Final = 3 * rows.DAY_MS
REACHED_SHARE: Final = 10
"""One timer that has fired for so many that are pending."""
GROWN_FROM: Final = 1_000_000
FIRST_BYTE_GOALS: Final = {1_000_000: Goal(25, 10), 10_000_000: Goal(40, 15)}
PAINT_GOAL: Final = Goal(150, 100)
PAINTS: Final = 5
BARE: Final = "bare"
"""A page of one word, which no service has to answer: what the browser takes by itself."""
WEIGHT_GOAL: Final = Goal(40, 20)
STREAM_GOAL: Final = Goal(1, 0.5)
FIRED_PER_S: Final = 500
VIEWERS: Final = 20
TURNS: Final = 4
"""Without and with viewers, again and again: a slow minute of the machine shows in both."""
SETTLE_S: Final = 1.5
LEAD_S: Final = 20.0
STOP_GOAL: Final = Goal(1, 0.5)
BESIDE_GOAL: Final = Goal(1.2, 1.05, of="ratio")
GZIP: Final = {"accept-encoding": "gzip"}


def measure_page(bench: Bench) -> Iterator[Figure]:
    """Measure every screen on SQLite and on PostgreSQL, then what those who watch do to lateness."""
    first: Path | None = None
    for pending in bench.plan.pending[1:]:
        database = bench.new_folder().with_suffix(".db")
        if pending > GROWN_FROM and first is not None:
            rows.grow(database, first, pending // bench.plan.pending[1])
        else:
            rows.create(database, timers(pending))
            first = database
        yield from _on_sqlite(bench, pending, database)
    assert first is not None
    yield from _on_postgres(bench, bench.plan.pending[1])
    yield from _beside(bench)
    yield from _stops(bench)
    # The last one, because it needs a browser that may not be there.
    with _page_of(bench, first) as (_, port):
        yield from _paints(f"{bench.plan.pending[1]:,} timers", port)
    for left in bench.folder.glob("part*.db"):
        rows.remove(left)


def timers(count: int) -> Iterator[rows.Row]:
    """Yield timers of a hundred tenants, half of them of one; some that have fired among them."""
    chance, now = random.Random(rows.SEED), now_ms()
    for number in range(count):
        tenant = LARGE_TENANT if number % 2 else f"tenant-{number // 2 % TENANTS}"
        due = iso(now + DUE_AFTER_MS + chance.randrange(DUE_WITHIN_MS))
        yield tenant, uuid7(now, number), "Scheduled", due, iso(now), f"cart-{number // 4}", None, number
        if number % REACHED_SHARE == 0:
            fired = iso(now - chance.randrange(rows.DAY_MS))
            yield tenant, uuid7(now, number + count), "Reached", fired, fired, None, fired, number


# Screens


class Visitor:
    """Somebody with one connection to a page."""

    def __init__(self, port: int) -> None:
        self.took_ms = defaultdict[str, list[float]](list)
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(self, path: str, name: str = "", headers: dict[str, str] | None = None) -> bytes:
        """Return a body; note when its first byte was there."""
        asked = time.perf_counter()
        self._link.request("GET", f"/ui/{path}", headers=headers or {})
        answer = self._link.getresponse()
        if name:
            self.took_ms[name].append((time.perf_counter() - asked) * 1000)
        body = answer.read()
        if answer.status not in {200, 303}:
            raise NotMeasured(f"{path} was answered with {answer.status}: {body[:500]!r}")
        return body

    def screens(self) -> dict[str, str]:
        """Return the address of each screen, some of them deep in a list."""
        listed = json.loads(self.get("timers?format=json"))
        timer, after = listed["timers"][-1], listed["next"]
        query = f"tenant={timer['tenantId']}&id={timer['serviceCallId']}"
        later = iso(now_ms() + 40 * 3_600_000)
        return {
            "Now": "",
            "Timers": "timers",
            "Timers, next page": after,
            "Timers, 40 h ahead": f"timers?from={later}",
            "Timers of a tenant": f"timers?tenant={LARGE_TENANT}",
            "Timers that have fired": "timers?state=Reached",
            "Timers that were cancelled": "timers?state=Cancelled",
            "Timers of a request": "timers?correlation=cart-7",
            "Find": f"find?id={timer['serviceCallId']}",
            "Timer": f"timer?{query}",
            **{f"Load, {span}": f"load?span={span}" for span in ("hour", "2days", "month")},
            "Refused": "refused",
            "Activity": "activity",
            "Tenants": "tenants",
            "System": "system",
        }


@contextlib.contextmanager
def _page_of(bench: Bench, database: Path) -> Iterator[tuple[TimerService, int]]:
    port = free_port()
    settings = {"TIMER_PAGE_PORT": str(port)}
    with rig(bench.new_folder(), log_level=bench.log_level, database=database, settings=settings) as parts:
        yield parts.service.start_ready(), port


def _on_sqlite(bench: Bench, pending: int, database: Path) -> Iterator[Figure]:
    with _page_of(bench, database) as (service, port):
        yield from _first_bytes(bench, f"{pending:,} timers", pending, port, service)
        if pending == bench.plan.pending[1]:
            yield from _weights(port)


def _on_postgres(bench: Bench, pending: int) -> Iterator[Figure]:
    port = free_port()
    with (
        server() as database_server,
        cluster(bench, database_server, 1, {"TIMER_PAGE_PORT": str(port)}) as parts,
    ):
        fill(parts.url, timers(pending))
        [service] = parts.services
        service.start_ready()
        yield from _first_bytes(bench, f"PostgreSQL, {pending:,} timers", pending, port, service)


def _first_bytes(bench: Bench, name: str, pending: int, port: int, service: TimerService) -> Iterator[Figure]:
    """Visit all screens in turns, so far apart that what is remembered for a moment is forgotten."""
    visitor = Visitor(port)
    screens = visitor.screens()
    cpu_s = defaultdict[str, float](float)
    for path in screens.values():
        visitor.get(path)  # What a process does once, such as reading a template, is no visitor's.
    for _ in range(bench.plan.page_rounds):
        time.sleep(bench.plan.page_pause_s)
        for screen, path in screens.items():
            before = service.cpu_s()
            visitor.get(path, screen, GZIP)
            cpu_s[screen] += service.cpu_s() - before
    goal = FIRST_BYTE_GOALS.get(pending)
    for screen, took in visitor.took_ms.items():
        yield Figure(PART, f"{name}: {screen}: first byte p95", percentile(took, 0.95), "ms", goal=goal)
        yield Figure(PART, f"{name}: {screen}: CPU", cpu_s[screen] / len(took) * 1000, "ms")


def _weights(port: int) -> Iterator[Figure]:
    """Measure a first visit: the screen and all that it loads."""
    visitor = Visitor(port)
    for label, headers in (("compressed", GZIP), ("not compressed", {})):
        loaded = [visitor.get("", headers=headers)]
        plain = visitor.get("").decode()
        files = sorted(set(re.findall(r'(?:href|src)="(static/[^"]+)"', plain)))
        loaded += [visitor.get(path, headers=headers) for path in files]
        size = sum(map(len, loaded)) / 1000
        goal = WEIGHT_GOAL if headers else None
        yield Figure(PART, f"first visit, {label}, {len(loaded)} requests", size, "KB", goal=goal)


def _paints(name: str, port: int) -> Iterator[Figure]:
    """Measure the first paint of each screen in a browser that has never seen it."""
    try:
        executable = chromium.executable()
    except SystemExit as missing:
        raise NotMeasured(f"first paint: {missing}") from missing
    screens = {name: path for name, path in Visitor(port).screens().items() if "," not in name}
    painted = defaultdict[str, list[float]](list)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=executable, args=list(chromium.ARGUMENTS), env={**chromium.environment()}
        )
        for _, (screen, path) in itertools.product(range(PAINTS), [(BARE, BARE), *screens.items()]):
            with contextlib.closing(browser.new_context()) as context:
                painted[screen].append(_first_paint(context.new_page(), port, path))
        browser.close()
    bare_ms = median(painted.pop(BARE))
    for screen, took in painted.items():
        figure = f"{name}: {screen}: first paint"
        yield Figure(PART, figure, median(took), "ms", "a bare page", bare_ms, PAINT_GOAL)


def _first_paint(page: Page, port: int, path: str) -> float:
    if path == BARE:
        # Here alone: with a route every request goes by way of the driver, which takes longer than it does.
        page.route(f"**/{BARE}", lambda route: route.fulfill(body="<p>bare", content_type="text/html"))
    page.goto(f"http://127.0.0.1:{port}/ui/{path}")
    return float(page.evaluate(_PAINT))


_PAINT: Final = """
() => new Promise(done => new PerformanceObserver(list => {
  for (const each of list.getEntries()) if (each.name === "first-contentful-paint") done(each.startTime);
}).observe({type: "paint", buffered: true}))
"""


# Those who watch


def _beside(bench: Bench) -> Iterator[Figure]:
    """Measure lateness with nobody there, and with twenty who watch while a job moves timers."""
    port, span_s = free_port(), bench.plan.page_watched_s / TURNS
    settings = {"TIMER_PAGE_PORT": str(port)}
    count = int(2 * TURNS * (span_s + 2 * SETTLE_S) * FIRED_PER_S)
    pending = bench.plan.pending[0]
    alone, watched = list[tuple[int, int]](), list[tuple[int, int]]()
    streams: list[viewers.Seen] = []
    with rig(bench.new_folder(), log_level=bench.log_level, settings=settings) as parts:
        due_ms = now_ms() + int(LEAD_S * 1000)
        firing = rows.due_evenly(count, due_ms, FIRED_PER_S, "acme")
        rows.create(parts.service.db_path, itertools.chain(timers(pending), firing))
        parts.service.start_ready()
        listener = Listener(parts.broker, count, DRAIN_TIMEOUT_S)
        check_in_time(due_ms)
        time.sleep(max(0.0, due_ms / 1000 - time.time()))
        for _ in range(TURNS):
            alone.append(_turn(span_s))
            with _watching(port, span_s, streams):
                watched.append(_turn(span_s))
        arrivals = listener.arrivals()
    late = [
        [a.lateness_ms for a in arrivals if any(start < a.due_ms < end for start, end in spans)]
        for spans in (alone, watched)
    ]
    name = f"{FIRED_PER_S}/s with {VIEWERS} viewers and a bulk job"
    for label, share in {"p50": 0.5, "p99": 0.99}.items():
        without, beside = (percentile(each, share) for each in late)
        goal = BESIDE_GOAL if label == "p99" else None
        yield Figure(PART, f"{name}: {label}", beside, "ms", "nobody there", without, goal)
    size = median([seen.stream_bytes_per_s / 1000 for seen in streams])
    yield Figure(PART, "event stream of one viewer", size, "KB/s", goal=STREAM_GOAL)
    yield Figure(PART, "the bulk job", median([seen.moved_per_s for seen in streams]), "/s")


def _stops(bench: Bench) -> Iterator[Figure]:
    """Measure how long the service takes to stop while viewers watch, beside nobody there, in turns."""
    took_s = defaultdict[int, list[float]](list)
    for _, count in itertools.product(range(bench.plan.repeats), (0, VIEWERS)):
        port = free_port()
        settings = {"TIMER_PAGE_PORT": str(port)}
        with rig(bench.new_folder(), log_level=bench.log_level, settings=settings) as parts:
            parts.service.start_ready()
            with contextlib.ExitStack() as open_streams:
                for _ in range(count):
                    open_streams.enter_context(_stream(port))
                asked_s = time.perf_counter()
                parts.service.stop()
                took_s[count].append(time.perf_counter() - asked_s)
    name, alone_s = f"stopping with {VIEWERS} open streams", median(took_s[0])
    yield Figure(PART, name, max(took_s[VIEWERS]), "s", "nobody there", alone_s, STOP_GOAL)


def _stream(port: int) -> socket.socket:
    """Return a stream that has begun."""
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    link.sendall(b"GET /ui/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    heard = b""
    while b"data:" not in heard:
        heard += link.recv(4_096)
    return link


def _turn(span_s: float) -> tuple[int, int]:
    time.sleep(SETTLE_S)
    started_ms = now_ms()
    time.sleep(span_s)
    return started_ms, now_ms()


@contextlib.contextmanager
def _watching(port: int, span_s: float, streams: list[viewers.Seen]) -> Iterator[None]:
    wanted = viewers.Watching(port, VIEWERS, span_s + SETTLE_S, LARGE_TENANT)
    process = subprocess.Popen(viewers.arguments(wanted), stdout=subprocess.PIPE, text=True)
    yield
    output, _ = process.communicate()
    streams.append(viewers.Seen(**json.loads(output)))
