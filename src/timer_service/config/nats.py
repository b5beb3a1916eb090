"""How to connect to NATS, from the settings."""

import ssl
from typing import Any

from timer_service.config.settings import Settings
from timer_service.domain.errors import InvalidConfiguration


def nats_connect_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments of `nats.connect` that these settings stand for."""
    if not settings.has_broker:
        raise InvalidConfiguration("TIMER_BROKER_URL=none: there is no broker to talk to; name one")
    options: dict[str, Any] = {
        "servers": settings.broker_url.split(","),
        "inbox_prefix": settings.broker_inbox_prefix,
    }
    if settings.broker_url.startswith("ws"):
        _enable_websockets()
    if settings.broker_user is not None and settings.broker_password is not None:
        options |= {"user": settings.broker_user, "password": settings.broker_password.get_secret_value()}
    if settings.broker_token is not None:
        options["token"] = settings.broker_token.get_secret_value()
    if settings.broker_creds is not None:
        options["user_credentials"] = str(settings.broker_creds)
    if settings.broker_nkey is not None:
        options["nkeys_seed"] = str(settings.broker_nkey)
    if settings.broker_tls_ca or settings.broker_tls_cert:
        options["tls"] = _tls_context(settings)
    return options


def _enable_websockets() -> None:
    """Give nats-py the HTTP client for WebSockets, which `timer_service` has kept it from loading."""
    import aiohttp  # noqa: PLC0415 - most services do not need it
    import multidict  # noqa: PLC0415
    from nats.aio import transport  # noqa: PLC0415

    vars(transport).update(aiohttp=aiohttp, multidict=multidict)


def _tls_context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.broker_tls_ca)
        if settings.broker_tls_cert and settings.broker_tls_key:
            context.load_cert_chain(settings.broker_tls_cert, settings.broker_tls_key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidConfiguration(
            f"TIMER_BROKER_TLS_CA, _CERT and _KEY must be PEM files that belong together: {error}"
        ) from error
    return context
