"""Health and metrics over HTTP."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST

from timer_service import __version__
from timer_service.ports.health import Health

STOP_TIMEOUT_S: Final = 2


def create_app(
    *,
    observe: Callable[[], Awaitable[None]],
    health: Callable[[], Health],
    metrics: Callable[[], bytes],
) -> FastAPI:
    """Return the application: what it shows is observed at each request."""
    app = FastAPI(title="timer-service", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/livez")
    async def livez(response: Response) -> dict[str, object]:
        """Say whether the worker runs; if not, a restart is needed."""
        return _report(response, {} if (stuck := health().stuck) is None else {"worker": stuck})

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, object]:
        """Say whether commands are accepted and timers fire, and what is in the way."""
        await observe()
        now = health()
        return _report(response, now.problems, now.warnings)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        """Return the metrics in the Prometheus text format."""
        await observe()
        return Response(metrics(), media_type=CONTENT_TYPE_LATEST)

    return app


def _report(
    response: Response, problems: dict[str, str], warnings: dict[str, str] | None = None
) -> dict[str, object]:
    response.status_code = 503 if problems else 200
    report: dict[str, object] = {"status": "failing" if problems else "ok"}
    if problems:
        report["problems"] = problems
    if warnings:
        report["warnings"] = warnings
    return report


@asynccontextmanager
async def serving(app: Callable[..., Any], listener: socket.socket, **settings: Any) -> AsyncIterator[None]:
    """Serve the application for as long as the context lasts, and close the socket with it.

    `settings` are further ones of uvicorn.
    """
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
