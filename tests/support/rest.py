"""The REST API in process: memory adapters, a clock that the test moves, and a client without a network."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.support.callbacks import VAULT, keyring_of
from tests.support.explanations import explanations
from tests.support.timers import ACME, GLOBEX
from timer_service.adapters.http.api import ApiApp
from timer_service.adapters.http.auth import Doorkeeper
from timer_service.adapters.http.builder import CommandBuilder
from timer_service.adapters.http.callbacks import MAX_PAYLOAD_BYTES, CallbackDesk
from timer_service.adapters.http.compact import HEALTH_TIMEOUT_S, CompactHandlers
from timer_service.adapters.http.deliveries import DeliveryHandlers
from timer_service.adapters.http.dry_run import DryRunHandlers
from timer_service.adapters.http.openapi import documents
from timer_service.adapters.http.pending import PendingLimit
from timer_service.adapters.http.refusals import Refusals
from timer_service.adapters.http.rest import compact_routes, delivery_routes, dry_run_routes, v1_routes
from timer_service.adapters.http.v1 import TimerHandlers
from timer_service.adapters.no_broker import NoCommandSource
from timer_service.adapters.webhook.preparing import HttpCallbackPreview, Preparer
from timer_service.adapters.webhook.resolver import LookUp
from timer_service.deliveries import Deliveries
from timer_service.domain.admission import RateLimit
from timer_service.domain.api_keys import ALL_SCOPES, ApiKey, Scope, digest_of
from timer_service.domain.errors import BusUnavailable, CriticalError
from timer_service.domain.messages import Position, TenantId
from timer_service.ports.callback_preview import CallbackPreview
from timer_service.ports.health import Health, Recent
from timer_service.targets import AddressRules, read_allowed
from timer_service.testing import ManualClock, MemoryApiKeys, MemoryTimerStore
from timer_service.timers import Timers

KEYS = {ACME: "tmr_acme_secret", GLOBEX: "tmr_globex_secret"}
JSON = {"content-type": "application/json"}


async def _no_keys(_: TenantId) -> list[dict[str, Any]]:
    return []


def everywhere(_: str, port: int) -> list[Any]:
    """Find one public address for every name."""
    return [(2, 1, 6, "", ("93.184.216.34", port))]


class _SourceAway(NoCommandSource):
    """The commands of a broker that is away."""

    async def last_position(self) -> Position:
        raise BusUnavailable("the broker is away")

    async def last_seen_position(self) -> Position:
        return await super().last_position()


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """A service that is asked over HTTP alone."""

    clock: ManualClock = field(default_factory=ManualClock)
    store: Any = field(default_factory=MemoryTimerStore)
    keys: MemoryApiKeys = field(default_factory=MemoryApiKeys)
    rate: int = 0
    burst: int = 500
    max_pending: int = 0
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    min_lead: timedelta = timedelta()
    health_timeout_s: float = HEALTH_TIMEOUT_S
    has_broker: bool = True
    has_proxy: bool = False
    allow: str = ""
    is_broker_away: bool = False
    look_up: LookUp = everywhere
    preview: CallbackPreview | None = None
    woken: list[Any] = field(default_factory=list)
    failures: list[CriticalError] = field(default_factory=list)
    receive_timeout_s: float = 10.0
    too_many_after_s: float = 0.0

    async def open(self) -> "Site":
        for tenant, text in KEYS.items():
            await self.add_key(text, tenant, ALL_SCOPES)
        source = _SourceAway(self.store) if self.is_broker_away else NoCommandSource(self.store)
        self.timers = Timers(
            instance="one",
            store=self.store,
            source=source,
            clock=self.clock,
            wake_for=lambda due_at, _: self.woken.append(due_at),
            accept_clock_step=lambda: 0.0,
            broker=lambda: None,
            health=lambda: Health(None, {}),
            recent=lambda: Recent(0, 0, None, None),
            counted=lambda _: None,
            explain=explanations(self.store, self.clock).explain,
        )
        told = self.woken.append, self.failures.append
        self.deliveries = Deliveries(self.store.deliveries, self.store.callback_list, self.clock, *told)
        self.preparer = Preparer(keyring_of(), VAULT, AddressRules(read_allowed(self.allow)))
        desk = CallbackDesk(self.preparer.vault, self.preparer.rules, self.max_payload_bytes)
        builder = CommandBuilder(desk, self.clock.delays_from, has_broker=self.has_broker)
        elapsed_s = lambda: self.clock.elapsed_s  # noqa: E731 - as the service passes it on
        pending = PendingLimit(self.max_pending, self.timers, self.store.insight, elapsed_s)
        handlers = TimerHandlers(self.timers, self.deliveries, desk, builder, pending)
        preview = self.preview or HttpCallbackPreview(
            self.preparer, has_proxy=self.has_proxy, look_up=self.look_up
        )
        routes = (
            *v1_routes(handlers),
            *dry_run_routes(DryRunHandlers(builder, preview, self.clock.now)),
            *delivery_routes(DeliveryHandlers(self.deliveries, _no_keys)),
            *compact_routes(
                CompactHandlers(
                    *(self.timers, self.deliveries, desk, pending, self.clock.now),
                    min_lead=self.min_lead,
                    health_timeout_s=self.health_timeout_s,
                )
            ),
        )
        self.app = ApiApp(
            (*routes, *documents(routes)),
            Doorkeeper(self.keys, now=self.clock.now, elapsed_s=lambda: self.clock.elapsed_s),
            RateLimit(self.rate, self.burst),
            rate=self.rate,
            burst=self.burst,
            receive_timeout_s=self.receive_timeout_s,
            max_body_bytes=2 * self.max_payload_bytes,
            refusals=Refusals(self.too_many_after_s, apart_s=0.0),
        )
        return self

    async def add_key(self, text: str, tenant: TenantId, scopes: frozenset[Scope]) -> None:
        key_id = text.split("_")[1]
        await self.keys.add(ApiKey(key_id, tenant, scopes, digest_of(text), self.clock.now()))

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        tenant: str | None = ACME,
        chunks: Iterable[bytes] | None = None,
        **headers: Any,
    ) -> Reply:
        """Send a request; header names are given with _ for -, a list of values has as many lines."""
        sent = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        if tenant is not None:
            sent.setdefault("x-api-key", KEYS[TenantId(tenant)])
        if body is not None or chunks is not None:
            sent.setdefault("content-type", "application/json")
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await call(self.app, method, path, sent, [raw] if chunks is None else chunks)


async def call(app: Any, method: str, path: str, headers: dict[str, Any], chunks: Iterable[bytes]) -> Reply:
    """Send one request to an application."""
    raw_path, _, query = path.partition("?")
    parts = list(chunks) or [b""]
    sent: list[dict[str, Any]] = []
    waiting = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, start=1)
    ]

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": raw_path,
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "headers": [
            (name.encode(), line.encode("latin-1"))
            for name, value in headers.items()
            for line in ([value] if isinstance(value, str) else value)
        ],
    }
    await app(scope, receive, send)
    start, *rest = sent
    return Reply(
        start["status"],
        {name.decode(): value.decode("latin-1") for name, value in start["headers"]},
        b"".join(part["body"] for part in rest),
    )


@asynccontextmanager
async def open_site(**values: Any) -> AsyncIterator[Site]:
    """Open the API on memory adapters."""
    yield await Site(**values).open()
