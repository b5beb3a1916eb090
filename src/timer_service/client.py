"""A small client for other Python services: publish commands, watch events.

Needs nothing of this package but `wire`. Every other language does the same by docs/messages.md.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

import uuid6
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from timer_service import wire


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has the command; the service will keep it."""

    command_id: str
    stream: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Reached:
    """A DueTimeReached event as it came in."""

    envelope: wire.Envelope
    payload: wire.DueTimeReachedPayload
    body: bytes
    received_ms: int

    @property
    def lateness_ms(self) -> int:
        """Return how long after its due time the event arrived here, by this machine's clock."""
        return self.received_ms - round(self.payload.due_at.timestamp() * 1000)


class TimerClient:
    """Schedule, cancel and watch timers over a NATS connection that the caller owns."""

    def __init__(self, connection: Client, *, prefix: str = "timer", domain: str | None = None) -> None:
        self._connection = connection
        self._jetstream: JetStreamContext = connection.jetstream(**({"domain": domain} if domain else {}))
        self._prefix = prefix

    async def schedule(
        self,
        tenant_id: str,
        service_call_id: str,
        due_at: datetime,
        *,
        correlation_id: str | None = None,
    ) -> Accepted:
        """Ask for a DueTimeReached at this time; asking again moves the time."""
        if due_at.tzinfo is None:
            raise ValueError("due_at must have a time zone: a guess would fire at the wrong time")
        # The wire form is the strict reader's own, so that rounding up happens in one place.
        due = wire.parse_time(due_at.isoformat())
        return await self._publish(tenant_id, service_call_id, due, correlation_id)

    async def cancel(self, tenant_id: str, service_call_id: str) -> Accepted:
        """Say that the timer is no longer wanted."""
        return await self._publish(tenant_id, service_call_id, None, None)

    async def watch(self, tenant_id: str | None = None) -> AsyncIterator[Reached]:
        """Yield each event as it is published; those from before the call are in the stream."""
        subject = f"{self._prefix}.events.{tenant_id or '*'}.{wire.DUE_TIME_REACHED}"
        subscription = await self._connection.subscribe(subject)
        await self._connection.flush()
        async for message in subscription.messages:
            received_ms = time.time_ns() // 1_000_000
            envelope = wire.read_envelope(message.data)
            payload = wire.read_payload(envelope)
            if isinstance(payload, wire.DueTimeReachedPayload):
                yield Reached(envelope, payload, message.data, received_ms)

    async def _publish(
        self, tenant_id: str, service_call_id: str, due_at: datetime | None, correlation_id: str | None
    ) -> Accepted:
        _check(tenant_id, service_call_id, correlation_id)
        command_id = uuid6.uuid7()
        body = wire.write_command(
            message_id=command_id,
            timestamp_ms=time.time_ns() // 1_000_000,
            tenant_id=tenant_id,
            service_call_id=service_call_id,
            due_at=due_at,
            correlation_id=correlation_id,
        )
        command_type = wire.CANCEL_TIMER if due_at is None else wire.SCHEDULE_TIMER
        acknowledgement = await self._jetstream.publish(
            f"{self._prefix}.commands.{tenant_id}.{command_type}",
            body,
            headers={"Nats-Msg-Id": str(command_id)},
        )
        return Accepted(str(command_id), acknowledgement.stream, acknowledgement.seq)


def _check(tenant_id: str, service_call_id: str, correlation_id: str | None) -> None:
    """Refuse here what the service would refuse: the caller learns of it at once."""
    if not wire.is_tenant_id(tenant_id):
        raise ValueError(f"tenant must be {wire.TENANT_RULE} (got {tenant_id!r})")
    if not wire.is_service_call_id(service_call_id):
        raise ValueError(f"id must be {wire.SERVICE_CALL_RULE} (got {service_call_id!r})")
    if correlation_id is not None and not wire.is_correlation_id(correlation_id):
        raise ValueError(f"correlation id must be {wire.CORRELATION_RULE} (got {correlation_id!r})")
