"""A service without a broker as its users see it: manual checks of the compact dialect, real callbacks."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import fetch_json
from tests.support.messages import iso
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import fresh_schema
from tests.support.process import TimerServiceProcess
from timer_service.secret_keys import new_secret_key

KEY = "dev-api-key-change-in-production"


class Receiver:
    """Takes callbacks, and answers 500 where the path says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str], bytes]] = []
        calls = self.calls

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                calls.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(500 if self.path == "/fail" else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    @contextmanager
    def serving(self) -> Iterator["Receiver"]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


class Api:
    """The REST API of a process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-API-Key": key, "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def until(self, path: str, status: str) -> Any:
        """Wait until a timer has a status."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            _, answer = self.ask("GET", path)
            if answer["data"]["status"] == status:
                return answer["data"]
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as found:
        yield found


@asynccontextmanager
async def store(kind: str, folder: Path) -> AsyncIterator[dict[str, object]]:
    """Yield the settings of an empty store."""
    if kind == "sqlite":
        yield {"db_path": folder / "timers.db"}
        return
    async with fresh_schema() as url:
        yield {"store_url": url, "secret_keys": new_secret_key()}


@pytest.fixture(params=["sqlite", "postgres"])
async def settings(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, object]]:
    async with store(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def api(tmp_path: Path, receiver: Receiver, settings: dict[str, object]) -> Iterator[Api]:
    port = free_port()
    process = TimerServiceProcess(
        tmp_path,
        broker_url="none",
        api_port=port,
        api_key=KEY,
        callback_allow="127.0.0.1",
        **settings,
    )
    try:
        process.start()
        process.wait_for_log("service.started")
        yield Api(port)
    finally:
        process.close()


def soon(seconds: float) -> str:
    return iso(datetime.now(UTC) + timedelta(seconds=seconds))


def test_the_nine_manual_checks(api: Api, receiver: Receiver) -> None:
    # 1: create
    payload = {"message": "Timer triggered!", "timestamp": "2025-10-26T16:00:00Z"}
    created = api.ask(
        "POST",
        "/timers",
        {
            "execute_at": soon(3_600),
            "callback_url": "https://webhook.site/your-unique-id",
            "callback_method": "POST",
            "callback_payload": payload,
        },
    )
    assert (created[0], created[1]["data"]["status"]) == (201, "pending")
    path = f"/timers/{created[1]['data']['id']}"

    # 2: get
    status, answer = api.ask("GET", path)
    assert (status, answer["data"]["callback_payload"]) == (200, payload)

    # 3: list
    status, answer = api.ask("GET", "/timers?status=pending&limit=10")
    assert (status, answer["data"]["total"], len(answer["data"]["timers"])) == (200, 1, 1)

    # 4: update
    later = soon(7_200)
    status, answer = api.ask("PUT", path, {"execute_at": later})
    assert status == 200, answer
    assert answer["data"]["execute_at"] == later

    # 5: cancel
    status, answer = api.ask("DELETE", path)
    assert (status, answer["data"]["status"]) == (200, "canceled")

    # 6: health
    status, answer = fetch_json(api.port, "/health")
    assert (status, answer["data"]["status"], answer["data"]["database"]) == (200, "up", "connected")

    # 7: authentication
    assert api.ask("GET", "/timers", key="wrong-key") == (
        401,
        {"code": 4, "message": "unauthorized", "data": None},
    )

    # 8: execution
    url = f"http://127.0.0.1:{receiver.port}/hook"
    body = {"execute_at": soon(1), "callback_url": url, "callback_payload": {"test": "execution"}}
    _, created_now = api.ask("POST", "/timers", body)
    done = api.until(f"/timers/{created_now['data']['id']}", "completed")
    [(called, headers, sent)] = receiver.calls
    assert (called, json.loads(sent), done["executed_at"] is not None) == (
        "/hook",
        {"test": "execution"},
        True,
    )
    assert headers["webhook-signature"].startswith("v1a,")

    # 9: failure, one attempt only
    body = {"execute_at": soon(1), "callback_url": f"http://127.0.0.1:{receiver.port}/fail"}
    _, created_now = api.ask("POST", "/timers", body)
    failed = api.until(f"/timers/{created_now['data']['id']}", "failed")
    assert "500" in failed["last_error"]
    assert [path for path, _, _ in receiver.calls] == ["/hook", "/fail"]


def test_a_timer_over_rest_fires_and_its_delivery_is_shown(api: Api, receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/hook"
    status, created = api.ask("PUT", "/v1/timers/order-1", {"delayMs": 500, "callback": {"url": url}})
    assert status == 201

    deadline = time.monotonic() + PATIENCE_S
    timer = created["timer"]
    while timer.get("delivery", {}).get("state") != "Delivered":
        assert time.monotonic() < deadline, timer
        time.sleep(0.02)
        timer = api.ask("GET", "/v1/timers/order-1")[1]["timer"]

    [(_, headers, body)] = receiver.calls
    assert headers["webhook-id"] == timer["delivery"]["id"]
    assert json.loads(body)["data"]["serviceCallId"] == "order-1"
    assert api.ask("DELETE", "/v1/timers/order-1")[0] == 409
