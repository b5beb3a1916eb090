"""`timer-service deliveries`: all pages of a list, all that has failed once, and what is said of each."""

import json
import threading
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from timer_service.cli.deliveries import RETRIED_AT_ONCE, list_deliveries, retry_deliveries
from timer_service.cli.exits import EXIT_FAILED, EXIT_USAGE, CommandFailed

NOON = "2026-01-01T12:00:00.000Z"


@contextmanager
def answering(*answers: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Answer requests one by one; yield the address, and what was asked."""
    asked: list[Any] = []

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append(json.loads(body) if body else self.path)
            self.answer()

        def answer(self) -> None:
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


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("tmr_a_b")
    return file


def test_each_page_begins_where_the_one_before_ended(key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = {"retried": RETRIED_AT_ONCE, "more": True, "cursor": "there"}

    with answering(full, {"retried": 7, "more": False}) as (url, asked):
        retry_deliveries(Namespace(id=None, url=url, key_file=key, json=False))

    assert asked == [{"limit": RETRIED_AT_ONCE}, {"limit": RETRIED_AT_ONCE, "cursor": "there"}]
    assert capsys.readouterr().out == "1007 callbacks are sent again\n"


def test_a_list_goes_on_over_pages_and_says_that_there_are_more(
    key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def page(count: int) -> dict[str, Any]:
        return {"deliveries": [{"serviceCallId": f"order-{n}"} for n in range(count)], "cursor": "there"}

    with answering(page(500), page(100)) as (url, asked):
        list_deliveries(Namespace(state="failed", limit=600, url=url, key_file=key, json=True))

    shown = capsys.readouterr()
    assert asked == [
        "/v1/deliveries?limit=500&state=failed",
        "/v1/deliveries?limit=100&cursor=there&state=failed",
    ]
    assert (len(shown.out.splitlines()), shown.err) == (600, "the first 600; see more with --limit\n")


@pytest.mark.parametrize(
    ("delivery", "retried", "said"),
    [
        ({"state": "Delivered"}, 0, "was delivered, so it is not sent again"),
        ({"state": "Delivered"}, 1, "is sent again"),
        ({"state": "Waiting", "nextAttemptAt": NOON}, 1, f"is sent again at {NOON}"),
        (
            {"state": "Waiting", "nextAttemptAt": NOON},
            0,
            f"is waiting for its next attempt at {NOON}: nothing was changed",
        ),
        ({"state": "Failed"}, 1, "is sent again"),
        ({"state": "Failed"}, 0, "has just been changed by somebody else, so it is not sent again"),
    ],
)
def test_a_retry_says_what_it_has_done_about_a_callback(
    key: Path, capsys: pytest.CaptureFixture[str], delivery: dict[str, str], retried: int, said: str
) -> None:
    with answering({"delivery": delivery, "retried": retried}) as (url, _):
        retry_deliveries(Namespace(id="order-1", url=url, key_file=key, json=False))

    assert capsys.readouterr().out == f"order-1 {said}\n"


@pytest.mark.parametrize(
    ("url", "code"),
    [("nonsense", EXIT_USAGE), ("file:///etc/hostname", EXIT_USAGE), ("http://127.0.0.1:x", EXIT_FAILED)],
)
def test_an_address_that_is_none_ends_the_command_in_one_line(key: Path, url: str, code: int) -> None:
    with pytest.raises(CommandFailed) as refused:
        list_deliveries(Namespace(state=None, limit=1, url=url, key_file=key, json=False))

    assert (refused.value.code, url in str(refused.value)) == (code, True)


def test_no_proxy_of_the_environment_gets_the_key_of_our_own_service(
    key: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering({"deliveries": []}) as (url, asked):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TIMER_API_PORT", url.rpartition(":")[2])
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "receiver.example")
        list_deliveries(Namespace(state=None, limit=1, url=None, key_file=key, json=True))

    assert (asked, capsys.readouterr().err) == (["/v1/deliveries?limit=1"], "")


@pytest.mark.parametrize("columns", [None, "80"], ids=["into a file", "on a narrow terminal"])
def test_a_list_cuts_nothing_off(
    columns: str | None, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    told = {
        "serviceCallId": "01890a5d-ac96-774b-bcce-b302099a8057",
        "state": "Waiting",
        "attempts": 1,
        "origin": "https://receiver.of-the-shop.example:8443",
        "dueAt": "2026-01-01T12:00:00.000Z",
        "error": "unreachable (connect): connection refused",
    }

    with answering({"deliveries": [told]}) as (url, _):
        list_deliveries(Namespace(state=None, limit=10, url=url, key_file=key, json=False))

    shown = capsys.readouterr().out
    headings = ("id", "state", "attempts", "receiver", "due", "error")
    # A cell that is folded goes on below, between the others: all its characters are there.
    assert Counter("".join(shown.split())) == Counter(
        "".join("".join(map(str, (*headings, *told.values()))).split())
    )
    assert columns is not None or all(str(each) in shown for each in told.values())


def test_an_api_that_does_not_answer_is_told_of_in_words(key: Path) -> None:
    with pytest.raises(CommandFailed) as failed:
        list_deliveries(Namespace(state=None, limit=10, url="http://127.0.0.1:1", key_file=key, json=False))

    assert str(failed.value) == "the REST API at http://127.0.0.1:1 does not answer: Connection refused"
