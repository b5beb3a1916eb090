"""What an operator asks: how the service is, what was refused, whether a clock is right."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from timer_client import wire
from timer_client.connection import (
    ANSWER_TIMEOUT_S,
    BrokerClient,
    as_model,
    check_ids,
    read_answer,
)
from timer_client.errors import RequestRefused
from timer_client.events import Expired, Reached, watch_events, watch_reached
from timer_client.subjects import SERVICE_NAME

QUIET_S: Final = 0.15
"""After this long without another answer, every instance has been heard that can be."""


class OperatorClient(BrokerClient):
    """Ask every instance of the service, and read dead letters."""

    async def status(self) -> list[wire.StatusAnswer]:
        """Return the state of each instance of the service."""
        answers = await self._ask_all(self._subjects.status)
        return [as_model(wire.StatusAnswer, answer) for answer in answers]

    async def accept_clock_step(self) -> list[wire.ClockAnswer]:
        """Accept a leap of each instance's wall clock; return the seconds of each."""
        answers = await self._ask_all(self._subjects.clock_accept)
        return [as_model(wire.ClockAnswer, answer) for answer in answers]

    def watch(
        self, tenant_id: str | None = None, *, subscribed: Callable[[], None] = lambda: None
    ) -> AsyncIterator[Reached]:
        """Yield each DueTimeReached of one tenant, or of all, as it is published.

        `subscribed` is called from when no event can be missed.
        """
        return watch_reached(self._connection, self._subjects.event(tenant_id or "*"), subscribed)

    def watch_all(
        self, tenant_id: str | None = None, *, subscribed: Callable[[], None] = lambda: None
    ) -> AsyncIterator[Reached | Expired]:
        """Yield the same, and each TimerExpired."""
        return watch_events(self._connection, self._subjects.events_of(tenant_id or "*"), subscribed)

    async def dead_letters(self, tenant_id: str | None, since: datetime, limit: int) -> list[dict[str, Any]]:
        """Return the newest dead letters since a moment, the newest last; `letter` is the number of each."""
        if tenant_id is not None:
            check_ids(tenant_id)
        letters: deque[dict[str, Any]] = deque(maxlen=limit)
        subscription = await self._jetstream.subscribe(
            self._subjects.dead_letter(tenant_id) if tenant_id else self._subjects.all_dead_letters,
            stream=self._streams.dead_letters,
            ordered_consumer=True,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_TIME,
                opt_start_time=since.isoformat(),  # type: ignore[arg-type]
            ),
        )
        try:
            info = await subscription.consumer_info()
            # Not by what has come in: the answer may overtake a letter that was sent before it.
            if info.num_pending == 0 and (info.delivered is None or info.delivered.consumer_seq == 0):
                return []
            while True:
                message = await subscription.next_msg(timeout=ANSWER_TIMEOUT_S)
                stored = message.metadata
                letters.append(
                    wire.read_letter(stored.sequence.stream, stored.timestamp, message.subject, message.data)
                )
                if stored.num_pending == 0:
                    return list(letters)
        finally:
            await subscription.unsubscribe()

    async def dead_letter(self, sequence: int) -> dict[str, Any] | None:
        """Return one dead letter by its number."""
        try:
            message = await self._jetstream.get_msg(self._streams.dead_letters, sequence)
        except NotFoundError:
            return None
        return wire.read_letter(sequence, message.time, message.subject or "", message.data or b"")

    async def publish_again(self, subject: str, body: bytes, *, letter_sequence: int) -> int:
        """Publish a refused message again and return its new sequence."""
        headers = {"Nats-Msg-Id": f"replay-{letter_sequence}-{sha256(body).hexdigest()[:16]}"}
        acknowledgement = await self._jetstream.publish(subject, body, headers=headers)
        return acknowledgement.seq

    async def _ask_all(self, subject: str) -> list[dict[str, Any]]:
        """Ask every instance; return once those that answer a ping have answered, or no more answers come."""
        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(f"{inbox}.*")
        roll = _RollCall(self._subjects.prefix)
        try:
            await self._connection.publish(f"$SRV.PING.{SERVICE_NAME}", b"", reply=f"{inbox}.ping")
            await self._connection.publish(subject, b"{}", reply=f"{inbox}.answer")
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


class _RollCall:
    """Who is there, and who has answered."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._there: set[str] = set()
        self.answers: dict[str, dict[str, Any]] = {}
        self.refusal: RequestRefused | None = None

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
            answer = read_answer(message)
            self.answers[answer.setdefault("instance", "unknown")] = answer  # Of an older version.
        except RequestRefused as refusal:
            self.refusal = refusal

    def result(self) -> list[dict[str, Any]]:
        if not self.answers and self.refusal is not None:
            raise self.refusal
        return [self.answers[instance] for instance in sorted(self.answers)]
