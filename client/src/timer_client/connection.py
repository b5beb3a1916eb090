"""What the clients share: a connection that the caller owns, the names on it, and how an answer is read."""

import json
import secrets
import time
from typing import Any, Final, TypeVar
from uuid import UUID

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from timer_client import wire
from timer_client.subjects import StreamNames, Subjects

ANSWER_TIMEOUT_S: Final = 5.0

Answer = TypeVar("Answer", bound=wire.Model)


class RequestRefused(Exception):
    """The service answered a request with an error."""

    def __init__(self, code: str, description: str, retry_after_s: int | None = None) -> None:
        super().__init__(f"{code}: {description}")
        self.code = code
        self.description = description
        self.retry_after_s = retry_after_s
        """How long to wait before asking again, if the service says so."""


class BrokerClient:
    """A NATS connection that the caller owns, and the names of the service on it."""

    def __init__(self, connection: Client, *, prefix: str = "timer", domain: str | None = None) -> None:
        self._connection = connection
        self._jetstream: JetStreamContext = connection.jetstream(**({"domain": domain} if domain else {}))
        self._subjects = Subjects(prefix)
        self._streams = StreamNames.of(prefix)


def read_answer(message: Msg) -> dict[str, Any]:
    """Return what the service answered, or raise RequestRefused."""
    headers = message.headers or {}
    if "Nats-Service-Error" in headers:
        wait = headers.get("Retry-After", "")
        raise RequestRefused(
            headers.get("Nats-Service-Error-Code", ""),
            headers["Nats-Service-Error"],
            int(wait) if wait.isdigit() else None,
        )
    result: dict[str, Any] = json.loads(message.data)
    return result


def as_model(model: type[Answer], answer: dict[str, Any]) -> Answer:
    """Return an answer by its model; raise RequestRefused for one that the service never gives."""
    try:
        return wire.read_value(model, answer)
    except wire.WireError as error:
        raise RequestRefused("500", f"the answer cannot be read: {error.detail}") from error


def check_ids(tenant_id: str, service_call_id: str | None = None, correlation_id: str | None = None) -> None:
    """Refuse here what the service would refuse: the caller learns of it at once."""
    if not wire.is_tenant_id(tenant_id):
        raise ValueError(f"tenant must be {wire.TENANT_RULE} (got {tenant_id!r})")
    if service_call_id is not None and not wire.is_service_call_id(service_call_id):
        raise ValueError(f"id must be {wire.SERVICE_CALL_RULE} (got {service_call_id!r})")
    if correlation_id is not None and not wire.is_correlation_id(correlation_id):
        raise ValueError(f"correlation id must be {wire.CORRELATION_RULE} (got {correlation_id!r})")


def new_id() -> UUID:
    """Return a UUIDv7: 48 bits of milliseconds, then random bits."""
    moment = now_ms() << 80
    version_and_variant = 0x7 << 76 | 0b10 << 62
    return UUID(int=moment | version_and_variant | secrets.randbits(12) << 64 | secrets.randbits(62))


def now_ms() -> int:
    """Return this machine's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
