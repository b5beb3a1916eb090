"""Health and metrics over HTTP."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST

from timer_service.ports.health import Health

STOP_TIMEOUT_S: Final = 2

App = Callable[..., Awaitable[None]]


class _Page(NamedTuple):
    status: int
    body: bytes
    media_type: str = "application/json"


_NOT_FOUND: Final = _Page(404, b'{"detail":"Not Found"}')
_NOT_ALLOWED: Final = _Page(405, b'{"detail":"Method Not Allowed"}')


def create_app(
    *,
    observe: Callable[[], Awaitable[None]],
    health: Callable[[], Health],
    metrics: Callable[[], bytes],
) -> App:
    """Return the application: what it shows is observed at each request.

    Without a framework: to load one for three pages took a fifth of the whole start.
    """

    async def livez() -> _Page:
        """Say whether the worker runs; if not, a restart is needed."""
        return _report({} if (stuck := health().stuck) is None else {"worker": stuck})

    async def readyz() -> _Page:
        """Say whether commands are accepted and timers fire, and what is in the way."""
        await observe()
        now = health()
        return _report(now.problems, now.warnings)

    async def show_metrics() -> _Page:
        """Return the metrics in the Prometheus text format."""
        await observe()
        return _Page(200, metrics(), CONTENT_TYPE_LATEST)

    pages = {"/livez": livez, "/readyz": readyz, "/metrics": show_metrics}

    async def app(scope: dict[str, Any], _receive: object, send: Callable[..., Awaitable[None]]) -> None:
        page = pages.get(scope["path"])
        if page is None:
            shown = _NOT_FOUND
        else:
            shown = await page() if scope["method"] in {"GET", "HEAD"} else _NOT_ALLOWED
        headers = {"content-type": shown.media_type, "content-length": str(len(shown.body))}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": shown.status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else shown.body})

    return app


def _report(problems: dict[str, str], warnings: dict[str, str] | None = None) -> _Page:
    report: dict[str, object] = {"status": "failing" if problems else "ok"}
    if problems:
        report["problems"] = problems
    if warnings:
        report["warnings"] = warnings
    return _Page(503 if problems else 200, json.dumps(report, ensure_ascii=False).encode())


@asynccontextmanager
async def serving(app: App, listener: socket.socket, **settings: Any) -> AsyncIterator[None]:
    """Serve the application for as long as the context lasts, and close the socket with it.

    `settings` are further ones of uvicorn.
    """
    # A stranger who sends what is not HTTP is answered with 400. A warning each would let him fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    server = _QuietServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            **settings,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]), name="http")
        try:
            yield
        finally:
            server.should_exit = True


class _QuietServer(uvicorn.Server):
    """A server that leaves the signals to us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
