"""All paths of the REST API, and the server that they are served by."""

import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from timer_service.adapters.endpoints import EXPLAIN_COST
from timer_service.adapters.http.api import Route
from timer_service.adapters.http.compact import CompactHandlers, as_compact
from timer_service.adapters.http.deliveries import DeliveryHandlers
from timer_service.adapters.http.dry_run import DryRunHandlers
from timer_service.adapters.http.punctual import MAX_CONNECTIONS, PunctualProtocol
from timer_service.adapters.http.server import serving
from timer_service.adapters.http.v1 import TimerHandlers
from timer_service.domain.api_keys import Scope

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_JSON: Final = ("application/json",)
_PATCH: Final = ("application/merge-patch+json", "application/json")


def v1_routes(handlers: TimerHandlers) -> Sequence[Route]:
    """Return the paths of /v1."""
    one = "/v1/timers/{id}"
    return (
        Route("POST", "/v1/timers", "rest.create", handlers.create, Scope.WRITE, _JSON),
        Route("GET", "/v1/timers", "rest.list", handlers.list),
        Route(
            "POST",
            "/v1/timers:batch",
            "rest.batch",
            handlers.create_many,
            Scope.WRITE,
            _JSON,
            MAX_BATCH_BYTES,
        ),
        Route("GET", one, "rest.get", handlers.show),
        Route("PUT", one, "rest.put", handlers.replace, Scope.WRITE, _JSON),
        Route("PATCH", one, "rest.patch", handlers.patch, Scope.WRITE, _PATCH),
        Route("DELETE", one, "rest.cancel", handlers.cancel, Scope.WRITE),
        Route("GET", f"{one}/explanation", "rest.explain", handlers.explain, extra_cost=EXPLAIN_COST),
    )


def dry_run_routes(handlers: DryRunHandlers) -> Sequence[Route]:
    """Return the path that sends nothing."""
    return (Route("POST", "/v1/timers:dryRun", "rest.dry_run", handlers.dry_run, Scope.WRITE, _JSON),)


def delivery_routes(handlers: DeliveryHandlers) -> Sequence[Route]:
    """Return the paths about callbacks."""
    one = "/v1/timers/{id}"
    return (
        Route("GET", f"{one}/attempts", "rest.attempts", handlers.attempts),
        Route("POST", f"{one}/retry", "rest.retry", handlers.retry, Scope.REPLAY),
        Route("POST", f"{one}/abandon", "rest.abandon", handlers.abandon, Scope.REPLAY),
        Route("GET", "/v1/deliveries", "rest.deliveries", handlers.list),
        Route("POST", "/v1/deliveries:retry", "rest.retry_all", handlers.retry_all, Scope.REPLAY, _JSON),
        Route("GET", "/v1/signing-keys", "rest.signing_keys", handlers.signing_keys),
    )


def compact_routes(handlers: CompactHandlers) -> Sequence[Route]:
    """Return the paths of the smaller dialect."""
    one = "/timers/{id}"
    routes = (
        Route("POST", "/timers", "timers.create", handlers.create, Scope.WRITE, _JSON),
        Route("GET", "/timers", "timers.list", handlers.list_page),
        Route("GET", one, "timers.get", handlers.show),
        Route("PUT", one, "timers.update", handlers.update, Scope.WRITE, _JSON),
        Route("DELETE", one, "timers.cancel", handlers.cancel, Scope.WRITE),
        Route("GET", "/health", "timers.health", handlers.health, None),
    )
    return [replace(route, failed=as_compact) for route in routes]


def serving_api(
    app: Callable[..., Any], listener: socket.socket, max_connections: int = MAX_CONNECTIONS
) -> AbstractAsyncContextManager[None]:
    """Serve the API, with a bound on its connections and on how long each may take to ask."""
    return serving(
        app,
        listener,
        http=partial(PunctualProtocol, max_connections=max_connections),
        ws="none",
        server_header=False,
        proxy_headers=False,
    )
