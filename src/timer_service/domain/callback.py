"""The HTTP request that a timer sends when it fires."""

from dataclasses import field
from datetime import timedelta
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from timer_service.domain.values import value

DEFAULT_DELAYS: Final = (
    timedelta(seconds=5),
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=6),
    timedelta(hours=12),
    timedelta(hours=24),
)
"""From one attempt to the next: ten attempts in 45 hours."""
DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
_PORTS: Final = {"http": 80, "https": 443}


class Sink(IntEnum):
    """Where a timer fires; the number is kept in the store."""

    BUS = 0
    HTTP = 1


class Method(StrEnum):
    """How a receiver is called."""

    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"


class Signing(StrEnum):
    """The kind of key that signs a callback."""

    ED25519 = "ed25519"
    HMAC = "hmac"


@value(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait after each failed attempt; there is none after the last."""

    delays: tuple[timedelta, ...] = DEFAULT_DELAYS

    @property
    def max_attempts(self) -> int:
        """How many attempts there are."""
        return len(self.delays) + 1


@value(frozen=True, slots=True)
class Callback:
    """The HTTP request of a timer, as it was accepted; the store keeps it as it is."""

    url: str
    method: Method = Method.POST
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values, in the caller's order. Secret values are sealed before they get here."""
    body: bytes | None = None
    """The exact bytes to sign and send, none of them if it is empty; None sends the event of the firing."""
    content_type: str = "application/json"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta = DEFAULT_TIMEOUT
    """For one attempt, from looking up the name to the last byte of the answer."""
    expires_after: timedelta | None = None
    """No attempt begins later than this after the due time."""
    signing: Signing = Signing.ED25519
    metadata: str | None = None
    """JSON of the caller, never sent."""
    fingerprint: str = ""
    """Of the request that made the timer: tells a repeat from a different request with the same key."""

    @property
    def origin(self) -> str:
        """The receiver: scheme, host and port of the URL."""
        return origin_of(self.url)


class NoCallback:
    """In a command, removes the callback from a timer: it fires on the bus from then on."""


NO_CALLBACK: Final = NoCallback()


@lru_cache(maxsize=1_024)
def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL that was checked before."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"
