"""One firing of a timer, as a handler gets it."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from timer_client import wire
from timer_client.once import handled_once


@dataclass(frozen=True, slots=True)
class Firing:
    """A timer is due: what the event says, and how often it was delivered."""

    id: str
    """The same however often this firing is published or delivered."""
    tenant_id: str
    service_call_id: str
    due_at: datetime
    reached_at: datetime
    generation: int
    correlation_id: str | None
    consumer: str
    """The name under which it is handled; two consumers handle one firing each."""
    deliveries: int = 1

    @property
    def lateness(self) -> timedelta:
        """Return how long after its due time the service fired it, by the service's clock."""
        return self.reached_at - self.due_at

    def once(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """Handle this firing in one transaction of your database that also remembers it.

        `connection` is of sqlite3, aiosqlite or asyncpg, or an asyncpg pool; the block gets the one that has
        the transaction. If the firing was handled before, AlreadyHandled is raised in place of the block,
        which a consumer counts as done. The table is that of `create_firings_table`.
        """
        return handled_once(
            connection, self.consumer, self.id, self.tenant_id, self.service_call_id, self.generation
        )


def read_firing(body: bytes, *, tenant: str, consumer: str, deliveries: int = 1) -> Firing:
    """Read an event; raise WireError for what the service did not write for this tenant."""
    envelope = wire.read_envelope(body)
    payload = wire.read_payload(envelope)
    if not isinstance(payload, wire.DueTimeReachedPayload):
        raise wire.unknown_type(envelope.type)
    if payload.tenant_id != tenant:
        raise wire.WireError("tenant_mismatch", f"tenantId must be {tenant!r} (got {payload.tenant_id!r})")
    return Firing(
        id=envelope.id,
        tenant_id=payload.tenant_id,
        service_call_id=payload.service_call_id,
        due_at=payload.due_at,
        reached_at=payload.reached_at,
        generation=payload.generation,
        correlation_id=envelope.correlation_id,
        consumer=consumer,
        deliveries=deliveries,
    )
