"""The REST API as the settings ask for it: its paths, its keys, its port."""

import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

from timer_client.wire import format_time
from timer_service.adapters.callback_headers import HeaderVault
from timer_service.adapters.http.api import MAX_BODY_BYTES, ApiApp
from timer_service.adapters.http.auth import Doorkeeper
from timer_service.adapters.http.builder import CommandBuilder
from timer_service.adapters.http.callbacks import CallbackDesk
from timer_service.adapters.http.compact import CompactHandlers
from timer_service.adapters.http.deliveries import DeliveryHandlers
from timer_service.adapters.http.dry_run import DryRunHandlers
from timer_service.adapters.http.listening import listen
from timer_service.adapters.http.openapi import documents
from timer_service.adapters.http.pending import PendingLimit
from timer_service.adapters.http.rest import (
    compact_routes,
    delivery_routes,
    dry_run_routes,
    serving_api,
    v1_routes,
)
from timer_service.adapters.http.v1 import TimerHandlers
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.adapters.webhook.preparing import HttpCallbackPreview, Preparer
from timer_service.config import Settings
from timer_service.deliveries import Deliveries
from timer_service.domain.admission import RateLimit
from timer_service.domain.callback import Signing
from timer_service.domain.messages import TenantId
from timer_service.ports.clock import Clock
from timer_service.timers import Timers
from timer_service.wiring.senders import address_rules, sealing_keys
from timer_service.wiring.stores import OpenedStore

REMEDY: Final = "set TIMER_API_HOST and TIMER_API_PORT, or TIMER_API_PORT=0 to disable it"
REMEDY_WITHOUT_BROKER: Final = "set TIMER_API_HOST or TIMER_API_PORT to another one"
"""There is no other way in, so it cannot be disabled."""


@dataclass(frozen=True, slots=True)
class RestParts:
    """What the REST API is built from."""

    opened: OpenedStore
    timers: Timers
    deliveries: Deliveries
    clock: Clock
    elapsed_s: Callable[[], float]
    rate_limit: RateLimit
    answered: Callable[[str, str, float], None]
    listener: socket.socket | None = None


def rest_api(settings: Settings, parts: RestParts) -> AbstractAsyncContextManager[None]:
    """Serve the REST API for as long as the context lasts."""
    remedy = REMEDY if settings.has_broker else REMEDY_WITHOUT_BROKER
    listener = parts.listener or listen(settings.api_host, settings.api_port, remedy=remedy)
    return serving_api(build_app(settings, parts), listener)


def build_app(settings: Settings, parts: RestParts) -> ApiApp:
    """Return the application, which knows no port."""
    sealing = sealing_keys(settings)
    keyring = Keyring(parts.opened.secrets, sealing, parts.clock.now, parts.elapsed_s)
    preparer = Preparer(keyring, HeaderVault(sealing), address_rules(settings))
    desk = CallbackDesk(preparer.vault, preparer.rules, settings.callback_max_body)
    builder = CommandBuilder(desk, parts.clock.delays_from, has_broker=settings.has_broker)
    insight = parts.opened.store.insight
    pending = PendingLimit(settings.max_pending, parts.timers, insight, parts.elapsed_s)
    handlers = TimerHandlers(parts.timers, parts.deliveries, desk, builder, pending)
    preview = HttpCallbackPreview(preparer, has_proxy=settings.callback_proxy is not None)
    dry_run = DryRunHandlers(builder, preview, parts.clock.now)
    deliveries = DeliveryHandlers(parts.deliveries, lambda tenant_id: _public_keys(keyring, tenant_id))
    compact = CompactHandlers(
        *(parts.timers, parts.deliveries, desk, pending, parts.clock.now), min_lead=settings.api_min_lead_span
    )
    doorkeeper = Doorkeeper(
        parts.opened.api_keys,
        now=parts.clock.now,
        elapsed_s=parts.elapsed_s,
        single_key=None if settings.api_key is None else settings.api_key.get_secret_value(),
        single_tenant=settings.api_tenant,
    )
    routes = (
        *v1_routes(handlers),
        *dry_run_routes(dry_run),
        *delivery_routes(deliveries),
        *compact_routes(compact),
    )
    return ApiApp(
        (*routes, *documents(routes)),
        doorkeeper,
        parts.rate_limit,
        rate=settings.request_rate,
        burst=settings.request_burst,
        answered=parts.answered,
        max_body_bytes=max(MAX_BODY_BYTES, 2 * settings.callback_max_body),
    )


async def _public_keys(keyring: Keyring, tenant_id: TenantId) -> list[dict[str, Any]]:
    """Return the public halves of a tenant's keys; the first one is made if there is none."""
    found = await keyring.secrets_for(tenant_id, Signing.ED25519)
    return [
        {
            "name": kept.name,
            "kind": kept.key.kind.value,
            "publicKey": kept.key.public_text,
            "createdAt": format_time(kept.created_at),
            **({} if kept.ends_at is None else {"endsAt": format_time(kept.ends_at)}),
        }
        for kept in found.signing
        if kept.key.public_text is not None
    ]
