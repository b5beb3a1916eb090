"""A small client for other Python services: publish commands, watch events.

Needs nothing of this package but `wire`. Every other language does the same by docs/messages.md.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import uuid6
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from timer_service import wire

ANSWER_TIMEOUT_S: Final = 5.0
QUIET_S: Final = 0.15
"""After so long without another answer, every instance has been heard that can be."""
LETTER_FIELDS: Final = ("reason", "detail", "subject", "receivedAt", "body", "bodyEncoding")
"""What every dead letter has, as text."""


class CallRefused(Exception):
    """The service answered a call with an error."""

    def __init__(self, code: str, description: str, retry_after_s: int | None = None) -> None:
        super().__init__(f"{code}: {description}")
        self.code = code
        self.description = description
        self.retry_after_s = retry_after_s
        """How long to wait before asking again, where the service says so."""


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
        self._letters_stream = f"{prefix.upper().replace('.', '_')}_DEADLETTER"

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

    async def watch(
        self, tenant_id: str | None = None, *, subscribed: Callable[[], None] = lambda: None
    ) -> AsyncIterator[Reached]:
        """Yield each event as it is published; those from before the call are in the stream.

        `subscribed` is called once no event can be missed any more.
        """
        subject = f"{self._prefix}.events.{tenant_id or '*'}.{wire.DUE_TIME_REACHED}"
        subscription = await self._connection.subscribe(subject)
        # Twice, because nats-py may send the first ping ahead of the subscription.
        await self._connection.flush()
        await self._connection.flush()
        subscribed()
        async for message in subscription.messages:
            received_ms = time.time_ns() // 1_000_000
            try:
                envelope = wire.read_envelope(message.data)
                payload = wire.read_payload(envelope)
            except wire.WireError:
                continue  # Not one of the service's: anybody with the permission can publish here.
            if isinstance(payload, wire.DueTimeReachedPayload):
                yield Reached(envelope, payload, message.data, received_ms)

    async def get(self, tenant_id: str, service_call_id: str) -> dict[str, Any]:
        """Return one timer, or raise CallRefused with code 404."""
        _check(tenant_id, service_call_id)
        answer = await self._call(f"api.{tenant_id}.get", {"serviceCallId": service_call_id})
        timer: dict[str, Any] = answer["timer"]
        return timer

    async def list_timers(
        self, tenant_id: str, limit: int, **request: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield a tenant's timers by due time, at most so many; `request` narrows them as the API does."""
        _check(tenant_id)
        page: dict[str, Any] = {name: value for name, value in request.items() if value is not None}
        while limit > 0:
            page["limit"] = min(limit, wire.MAX_PAGE)
            answer = await self._call(f"api.{tenant_id}.list", page)
            for timer in answer["timers"]:
                yield timer
            limit -= len(answer["timers"])
            if "cursor" not in answer:
                return
            page["cursor"] = answer["cursor"]

    async def status(self) -> list[dict[str, Any]]:
        """Return how each instance of the service is."""
        return await self._ask_all("status")

    async def accept_clock_step(self) -> list[dict[str, Any]]:
        """Take a leap of each instance's wall clock for right; return its seconds for each."""
        return await self._ask_all("clock.accept")

    async def dead_letters(self, tenant_id: str | None, since: datetime, limit: int) -> list[dict[str, Any]]:
        """Return the newest dead letters since a moment, the newest last; `letter` is the number of each."""
        if tenant_id is not None:
            _check(tenant_id)
        letters: deque[dict[str, Any]] = deque(maxlen=limit)
        subscription = await self._jetstream.subscribe(
            f"{self._prefix}.deadletter.{tenant_id or '>'}",
            stream=self._letters_stream,
            ordered_consumer=True,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_TIME,
                opt_start_time=since.isoformat(),  # type: ignore[arg-type]
            ),
        )
        try:
            if (await subscription.consumer_info()).num_pending == 0 and subscription.pending_msgs == 0:
                return []
            while True:
                message = await subscription.next_msg(timeout=ANSWER_TIMEOUT_S)
                stored = message.metadata
                letters.append(
                    _read_letter(stored.sequence.stream, stored.timestamp, message.subject, message.data)
                )
                if message.metadata.num_pending == 0:
                    return list(letters)
        finally:
            await subscription.unsubscribe()

    async def dead_letter(self, sequence: int) -> dict[str, Any] | None:
        """Return one dead letter by its number."""
        try:
            message = await self._jetstream.get_msg(self._letters_stream, sequence)
        except NotFoundError:
            return None
        return _read_letter(sequence, message.time, message.subject or "", message.data or b"")

    async def publish_again(self, subject: str, body: bytes, *, letter_sequence: int) -> int:
        """Publish a refused message again and return its new sequence."""
        headers = {"Nats-Msg-Id": f"replay-{letter_sequence}-{sha256(body).hexdigest()[:16]}"}
        acknowledgement = await self._jetstream.publish(subject, body, headers=headers)
        return acknowledgement.seq

    async def _call(self, endpoint: str, request: dict[str, Any]) -> dict[str, Any]:
        answer = await self._connection.request(
            f"{self._prefix}.{endpoint}", json.dumps(request).encode(), timeout=ANSWER_TIMEOUT_S
        )
        return _read(answer)

    async def _ask_all(self, endpoint: str) -> list[dict[str, Any]]:
        """Ask every instance; return once those that answer a ping have answered, or nobody does any more."""
        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(f"{inbox}.*")
        roll = _RollCall(self._prefix)
        try:
            await self._connection.publish("$SRV.PING.timer", b"", reply=f"{inbox}.ping")
            await self._connection.publish(f"{self._prefix}.{endpoint}", b"{}", reply=f"{inbox}.answer")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while True:
                    try:
                        roll.take(await subscription.next_msg(timeout=QUIET_S))
                    except TimeoutError:
                        if roll.is_complete:
                            break
        except TimeoutError:
            if not roll.answers and roll.refusal is None:
                raise
        finally:
            await subscription.unsubscribe()
        return roll.result()

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


def _read_letter(number: int, stored_at: datetime | None, subject: str, body: bytes) -> dict[str, Any]:
    """Return a dead letter with its number; whatever else lies in the stream is marked with `notALetter`.

    NATS does not check reply subjects: a tenant can have the broker's acknowledgement stored here.
    """
    try:
        letter = json.loads(body)
    except (ValueError, RecursionError):
        letter = None
    if isinstance(letter, dict) and all(isinstance(letter.get(name), str) for name in LETTER_FIELDS):
        return {"letter": number, **{name: value for name, value in letter.items() if name != "letter"}}
    return {
        "letter": number,
        "notALetter": True,
        "storedOn": subject,
        "storedAt": "" if stored_at is None else wire.format_time(stored_at),
        "body": body.decode("utf-8", "backslashreplace"),
    }


class _RollCall:
    """Who is there, and who has answered."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._there: set[str] = set()
        self.answers: dict[str, dict[str, Any]] = {}
        self.refusal: CallRefused | None = None

    @property
    def is_complete(self) -> bool:
        return bool(self.answers or self.refusal) and self._there <= self.answers.keys()

    def take(self, message: Msg) -> None:
        is_ping = message.subject.endswith(".ping")
        if (message.headers or {}).get("Status") == "503":
            if not is_ping:
                raise NoRespondersError
            return
        if is_ping:
            found = json.loads(message.data).get("metadata", {})
            if found.get("prefix") == self._prefix:
                self._there.add(found["instance"])
            return
        try:
            answer = _read(message)
            self.answers[answer.setdefault("instance", "unknown")] = answer  # Of an older version.
        except CallRefused as refusal:
            self.refusal = refusal

    def result(self) -> list[dict[str, Any]]:
        if not self.answers and self.refusal is not None:
            raise self.refusal
        return [self.answers[instance] for instance in sorted(self.answers)]


def _read(answer: Msg) -> dict[str, Any]:
    headers = answer.headers or {}
    if "Nats-Service-Error" in headers:
        wait = headers.get("Retry-After", "")
        raise CallRefused(
            headers.get("Nats-Service-Error-Code", ""),
            headers["Nats-Service-Error"],
            int(wait) if wait.isdigit() else None,
        )
    result: dict[str, Any] = json.loads(answer.data)
    return result


def _check(tenant_id: str, service_call_id: str | None = None, correlation_id: str | None = None) -> None:
    """Refuse here what the service would refuse: the caller learns of it at once."""
    if not wire.is_tenant_id(tenant_id):
        raise ValueError(f"tenant must be {wire.TENANT_RULE} (got {tenant_id!r})")
    if service_call_id is not None and not wire.is_service_call_id(service_call_id):
        raise ValueError(f"id must be {wire.SERVICE_CALL_RULE} (got {service_call_id!r})")
    if correlation_id is not None and not wire.is_correlation_id(correlation_id):
        raise ValueError(f"correlation id must be {wire.CORRELATION_RULE} (got {correlation_id!r})")
