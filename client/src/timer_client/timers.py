"""What a tenant does: schedule and cancel timers, look at them, watch them fire.

Every other language does the same by docs/messages.md.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

from timer_client import wire
from timer_client.connection import (
    ANSWER_TIMEOUT_S,
    Answer,
    BrokerClient,
    as_model,
    check_ids,
    new_id,
    now_ms,
    read_answer,
)


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


class TimerClient(BrokerClient):
    """Schedule, cancel and watch timers over a NATS connection that the caller owns."""

    async def schedule(
        self,
        tenant_id: str,
        service_call_id: str,
        due_at: datetime,
        *,
        correlation_id: str | None = None,
    ) -> Accepted:
        """Ask for a DueTimeReached at this time; asking again moves the time."""
        return await self._publish(tenant_id, service_call_id, _in_utc("due_at", due_at), correlation_id)

    async def cancel(self, tenant_id: str, service_call_id: str) -> Accepted:
        """Say that the timer is no longer wanted."""
        return await self._publish(tenant_id, service_call_id, None, None)

    async def watch(
        self, tenant_id: str | None = None, *, subscribed: Callable[[], None] = lambda: None
    ) -> AsyncIterator[Reached]:
        """Yield each event as it is published; earlier ones are in the stream.

        `subscribed` is called from when no event can be missed.
        """
        subscription = await self._connection.subscribe(self._subjects.event(tenant_id or "*"))
        # Twice, because nats-py may send the first ping ahead of the subscription.
        await self._connection.flush()
        await self._connection.flush()
        subscribed()
        async for message in subscription.messages:
            received_ms = now_ms()
            try:
                envelope = wire.read_envelope(message.data)
                payload = wire.read_payload(envelope)
            except wire.WireError:
                continue  # Not one of the service's: anybody with the permission can publish here.
            if isinstance(payload, wire.DueTimeReachedPayload):
                yield Reached(envelope, payload, message.data, received_ms)

    async def get(self, tenant_id: str, service_call_id: str) -> wire.TimerView:
        """Return one timer, or raise RequestRefused with code 404."""
        check_ids(tenant_id, service_call_id)
        request = wire.GetRequest(serviceCallId=service_call_id)
        return (await self._request(tenant_id, "get", request, wire.GetAnswer)).timer

    async def list_timers(
        self,
        tenant_id: str,
        limit: int,
        *,
        state: wire.StateText | None = None,
        correlation_id: str | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
    ) -> AsyncIterator[wire.TimerView]:
        """Yield a tenant's timers by due time, at most `limit`; each argument narrows the list."""
        check_ids(tenant_id, correlation_id=correlation_id)
        request = wire.ListRequest.model_construct(
            state=state,
            correlation_id=correlation_id,
            due_from=None if due_from is None else _in_utc("due_from", due_from),
            due_before=None if due_before is None else _in_utc("due_before", due_before),
        )
        while limit > 0:
            request = request.model_copy(update={"limit": min(limit, wire.MAX_PAGE)})
            page = await self._request(tenant_id, "list", request, wire.ListAnswer)
            for timer in page.timers:
                yield timer
            limit -= len(page.timers)
            if page.cursor is None:
                return
            request = request.model_copy(update={"cursor": page.cursor})

    async def _request(
        self, tenant_id: str, endpoint: str, request: wire.Model, model: type[Answer]
    ) -> Answer:
        subject = self._subjects.api(tenant_id, endpoint)
        message = await self._connection.request(subject, wire.write_model(request), timeout=ANSWER_TIMEOUT_S)
        return as_model(model, read_answer(message))

    async def _publish(
        self, tenant_id: str, service_call_id: str, due_at: datetime | None, correlation_id: str | None
    ) -> Accepted:
        check_ids(tenant_id, service_call_id, correlation_id)
        command_id = new_id()
        body = wire.write_command(
            message_id=command_id,
            timestamp_ms=now_ms(),
            tenant_id=tenant_id,
            service_call_id=service_call_id,
            due_at=due_at,
            correlation_id=correlation_id,
        )
        command_type = wire.CANCEL_TIMER if due_at is None else wire.SCHEDULE_TIMER
        acknowledgement = await self._jetstream.publish(
            self._subjects.command(tenant_id, command_type),
            body,
            headers={"Nats-Msg-Id": str(command_id)},
        )
        return Accepted(str(command_id), acknowledgement.stream, acknowledgement.seq)


def _in_utc(name: str, moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{name} must have a time zone: a guess would fire at the wrong time")
    # The wire form is the strict reader's own, so that rounding up happens in one place.
    return wire.parse_time(moment.isoformat())
