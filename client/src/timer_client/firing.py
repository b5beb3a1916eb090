"""One firing of a timer, as a handler gets it."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from timer_client import wire
from timer_client.once import handled_once


@dataclass(frozen=True, slots=True)
class Firing:
    """A timer is due, or has expired: what the event says, and how often it was delivered."""

    id: str
    """The same however often this firing is published or delivered."""
    tenant_id: str
    service_call_id: str
    due_at: datetime
    reached_at: datetime
    """When the service fired it, or gave it up as expired, by its own clock."""
    generation: int
    correlation_id: str | None
    consumer: str
    """The name under which it is handled; two consumers handle one firing each."""
    deliveries: int = 1
    expired: bool = False
    """Whether it came too late to be of use, by `expires_after`: TimerExpired in place of DueTimeReached."""

    @property
    def lateness(self) -> timedelta:
        """Return how long after its due time that was."""
        return self.reached_at - self.due_at

    @classmethod
    def read(cls, body: bytes, *, consumer: str, deliveries: int = 1) -> "Firing":
        """Read an event as it came from the broker; raise ValueError for what the service did not write.

        For those who receive events by other means than `timers.consume`.
        """
        envelope = wire.read_envelope(body)
        payload = wire.read_payload(envelope)
        expired = isinstance(payload, wire.TimerExpiredPayload)
        if isinstance(payload, wire.TimerExpiredPayload):
            reached_at = payload.expired_at
        elif isinstance(payload, wire.DueTimeReachedPayload):
            reached_at = payload.reached_at
        else:
            raise wire.unknown_type(envelope.type)
        return cls(
            id=envelope.id,
            tenant_id=payload.tenant_id,
            service_call_id=payload.service_call_id,
            due_at=payload.due_at,
            reached_at=reached_at,
            generation=payload.generation,
            correlation_id=envelope.correlation_id,
            consumer=consumer,
            deliveries=deliveries,
            expired=expired,
        )

    def once(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """Handle this firing in one transaction of your database that also remembers it.

        `connection` is of sqlite3, aiosqlite or asyncpg, or an asyncpg pool; the block gets the one that has
        the transaction. If the firing was handled before, AlreadyHandled is raised in place of the block,
        which a consumer counts as done. The table is that of `create_firings_table`.
        """
        return handled_once(
            connection, self.consumer, self.id, self.tenant_id, self.service_call_id, self.generation
        )
