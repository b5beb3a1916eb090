"""The pages of health and metrics as an application that knows no port."""

from typing import Any

import pytest

from timer_service.adapters.http.server import create_app
from timer_service.ports.health import Health


async def ask(method: str, path: str, health: Health) -> tuple[int, dict[str, str], bytes]:
    sent: list[dict[str, Any]] = []

    async def observe() -> None:
        pass

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    app = create_app(observe=observe, health=lambda: health, metrics=lambda: b"timer_pending 1\n")
    await app({"type": "http", "method": method, "path": path}, None, send)
    start, body = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, body["body"]


WELL = Health(stuck=None, problems={}, warnings={})


@pytest.mark.parametrize(
    ("path", "health", "status", "body"),
    [
        ("/livez", WELL, 200, b'{"status": "ok"}'),
        ("/readyz", WELL, 200, b'{"status": "ok"}'),
        ("/metrics", WELL, 200, b"timer_pending 1\n"),
        ("/livez", Health("silent", {}, {}), 503, b'{"status": "failing", "problems": {"worker": "silent"}}'),
        ("/livez", Health(None, {"store": "busy"}, {}), 200, b'{"status": "ok"}'),
        (
            "/readyz",
            Health(None, {"store": "busy"}, {"streams": "unsafe"}),
            503,
            b'{"status": "failing", "problems": {"store": "busy"}, "warnings": {"streams": "unsafe"}}',
        ),
        ("/", WELL, 404, b'{"detail":"Not Found"}'),
    ],
)
async def test_each_page_says_how_the_service_is(path: str, health: Health, status: int, body: bytes) -> None:
    found, headers, shown = await ask("GET", path, health)

    assert (found, shown) == (status, body)
    assert headers["content-length"] == str(len(body))


async def test_a_head_has_no_body_and_nothing_can_be_posted() -> None:
    head, posted = await ask("HEAD", "/readyz", WELL), await ask("POST", "/readyz", WELL)

    assert (head[0], head[1]["content-length"], head[2]) == (200, "16", b"")
    assert posted[0] == 405
