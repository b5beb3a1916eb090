"""`timer-service deliveries retry`: all that has failed, once."""

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from timer_service.cli.deliveries import RETRIED_AT_ONCE, retry_deliveries


@contextmanager
def answering(*answers: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Answer requests one by one; yield the address, and what was asked."""
    asked: list[Any] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answers[len(asked) - 1]).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_each_page_begins_where_the_one_before_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("tmr_a_b")
    full = {"retried": RETRIED_AT_ONCE, "more": True, "cursor": "there"}

    with answering(full, {"retried": 7, "more": False}) as (url, asked):
        retry_deliveries(Namespace(id=None, url=url, key_file=key, json=False))

    assert asked == [{"limit": RETRIED_AT_ONCE}, {"limit": RETRIED_AT_ONCE, "cursor": "there"}]
    assert capsys.readouterr().out == "1007 callbacks are sent again\n"
