"""How to reach the broker and what to call things on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nats.js import JetStreamContext

from timer_client.subjects import StreamNames, Subjects
from timer_service.adapters.nats.client import TolerantClient

JETSTREAM_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """What an operator decides."""

    connect: Mapping[str, Any]
    """Arguments of `nats.connect`: servers and credentials."""
    prefix: str = "timer"
    domain: str | None = None
    replicas: int = 1
    batch_size: int = 500
    ack_wait_s: float = 10.0

    @property
    def subjects(self) -> Subjects:
        """The names of subjects."""
        return Subjects(self.prefix)

    @property
    def streams(self) -> StreamNames:
        """The names of streams."""
        return StreamNames.of(self.prefix)

    @property
    def api_prefix(self) -> str:
        """Where requests to JetStream go."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    def jetstream(self, client: TolerantClient) -> JetStreamContext:
        """Return what manages streams and consumers over a connection."""
        domain = {"domain": self.domain} if self.domain else {}
        return client.jetstream(timeout=JETSTREAM_TIMEOUT_S, **domain)
