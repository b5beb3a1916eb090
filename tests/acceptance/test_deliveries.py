"""Callbacks of a real service: killed while it delivers, and sent again by hand."""

import asyncio
import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess, run_cli

KEY = "k" * 40
COUNT = 120


class Receiver(ThreadingHTTPServer):
    """Keeps the id of every request; the paths below /fail are refused."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ids: list[tuple[str, str]] = []
        self.answer = 410
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.ids.append((self.headers["timer-id"], self.headers["webhook-id"]))
        body = b"nobody is here"
        self.send_response(self.server.answer if self.path.startswith("/fail") else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


class Site:
    """A service without a broker, its API and a receiver."""

    def __init__(self, folder: Path, receiver: Receiver, **settings: object) -> None:
        self.port = free_port()
        self.folder = folder
        self.settings: dict[str, Any] = {
            "broker_url": "none",
            "http_port": 0,
            "api_port": self.port,
            "api_key": KEY,
            "callback_allow": receiver.url.removeprefix("http://"),
            **settings,
        }
        self.service = TimerServiceProcess(folder, **self.settings)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"X-API-Key": KEY, "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)

    def schedule(self, names: list[str], path: str, url: str, delay_ms: int) -> None:
        for name in names:
            self.ask("PUT", f"/v1/timers/{name}", {"delayMs": delay_ms, "callback": {"url": f"{url}{path}"}})

    async def until(self, state: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await asyncio.to_thread(self.ask, "GET", f"/v1/deliveries?state={state}&limit=500")
                if len(found["deliveries"]) >= count:
                    return
                await asyncio.sleep(0.05)


async def test_a_service_killed_while_it_delivers_loses_no_callback_and_repeats_ids(tmp_path: Path) -> None:
    names = [f"order-{n}" for n in range(COUNT)]
    with receiving() as receiver:
        site = Site(tmp_path, receiver)
        try:
            site.service.start().wait_for_log("service.started")
            await asyncio.to_thread(site.schedule, names, "/ok", receiver.url, 1)
            for _ in range(3):
                before = len(receiver.ids)
                deadline = time.monotonic() + PATIENCE_S
                while len(receiver.ids) == before < COUNT and time.monotonic() < deadline:
                    await asyncio.sleep(0.005)
                site.service.kill()
                site.service = TimerServiceProcess(tmp_path, **site.settings)
                site.service.start().wait_for_log("service.started")
            await site.until("delivered", COUNT)
        finally:
            site.service.close()

        ids = dict(receiver.ids)
        assert set(ids) == set(names)
        assert Counter(len({i for n, i in receiver.ids if n == name}) for name in names) == {1: COUNT}


async def test_what_has_failed_is_listed_shown_and_sent_again_by_the_command_line(tmp_path: Path) -> None:
    with receiving() as receiver:
        site = Site(tmp_path, receiver, callback_keep_answers=True)
        try:
            site.service.start().wait_for_log("service.started")
            await asyncio.to_thread(site.schedule, ["order-1", "order-2"], "/fail", receiver.url, 1)
            await site.until("failed", 2)

            def cli(*arguments: str) -> list[dict[str, Any]]:
                done = run_cli("deliveries", *arguments, "--json", cwd=tmp_path, **site.settings)
                assert done.returncode == 0, done.stderr
                return [json.loads(line) for line in done.stdout.splitlines()]

            listed = await asyncio.to_thread(cli, "list", "--state", "failed")
            [shown] = await asyncio.to_thread(cli, "show", "order-1")
            receiver.answer = 200
            [one] = await asyncio.to_thread(cli, "retry", "order-1")
            [rest] = await asyncio.to_thread(cli, "retry")
            await site.until("delivered", 2)
        finally:
            site.service.close()

        assert {each["serviceCallId"] for each in listed} == {"order-1", "order-2"}
        assert (shown["attempts"][0]["status"], shown["attempts"][0]["answer"]) == (410, "nobody is here")
        assert one["state"] in ("Waiting", "Delivered")
        assert rest == {"retried": 1}
        assert set(Counter(receiver.ids).values()) == {2}
