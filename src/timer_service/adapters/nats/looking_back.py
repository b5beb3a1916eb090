"""Read what lies in a stream, for somebody who asks: a few messages, within a limit of time."""

import asyncio
import json
import re
import secrets
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from timer_client.wire import format_time
from timer_service.adapters.nats.client import TolerantClient, new_hidden_inbox
from timer_service.adapters.nats.complaints import reason
from timer_service.adapters.nats.options import NatsOptions
from timer_service.domain.errors import BusUnavailable, RightMissing
from timer_service.waiting import Over, unless

T = TypeVar("T")

MAX_AT_ONCE: Final = 2
"""Looks at the same time; more of them would only take time from commands and events."""
ANSWER_TIMEOUT_S: Final = 2.0
LOOK_TIMEOUT_S: Final = 5.0
IDLE_NS: Final = 5_000_000_000
"""After this long without a question the broker forgets a look by itself: no right to delete is needed."""
MAX_PAGES: Final = 20
"""Pages of consumers; the broker gives 256 at a time."""
MAX_LOOK_BYTES: Final = 8 * 1024 * 1024
"""As much as one look reads."""
LOOK_PREFIX: Final = "timer-look-"
"""How the names of our own consumers begin, which are gone after a moment."""
QUIET_S: Final = 0.25
"""After this long without another answer, everybody has been heard that can be."""
MAX_ANSWERS: Final = 1_000
_LOOK: Final = re.compile(re.escape(LOOK_PREFIX) + "[0-9a-f]+")


class Stored(NamedTuple):
    """A message in a stream."""

    sequence: int
    stored_at: datetime
    subject: str
    headers: dict[str, str]
    body: bytes


class StreamReader:
    """Reads streams over whichever connection there is; a part of the session that never fails it."""

    def __init__(self, options: NatsOptions) -> None:
        self._api = options.api_prefix
        self._client: TolerantClient | None = None
        self._forbidden: dict[str, asyncio.Event] = {}
        """The questions that wait for an answer, by subject, in lower case as nats-py reports it."""
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def start(self, client: TolerantClient) -> None:
        """Use a connection."""
        self._client = client

    def lost(self) -> None:
        """Let go of a connection that is gone."""
        self._client = None

    def error_reported(self, error: Exception) -> None:
        """End questions that the broker forbids: it sends no other answer."""
        told = str(error).lower()
        if "permissions violation" in told:
            for subject, forbidden in self._forbidden.items():
                if f'"{subject}"' in told:
                    forbidden.set()

    async def ends(self, stream: str) -> tuple[int, int]:
        """Return the first and the last sequence of a stream; the last is smaller if it is empty."""
        state = await self.state(stream)
        return int(state.get("first_seq", 1)), int(state.get("last_seq", 0))

    async def state(self, stream: str) -> dict[str, Any]:
        """Return what the broker tells of the messages of a stream."""
        state: dict[str, Any] = (await self._ask(f"STREAM.INFO.{stream}", {})).get("state", {})
        return state

    async def ask_all(self, subject: str, question: bytes) -> list[bytes]:
        """Return the answers of all who hear a question, as far as they come soon after one another."""
        client = self._connected()
        inbox = new_hidden_inbox(client)
        try:
            subscription = await client.subscribe(inbox, max_msgs=MAX_ANSWERS)
            try:
                await client.publish(subject, question, reply=inbox)
                return await self._guarded(subject, _answers(subscription))
            finally:
                await subscription.unsubscribe()
        except (NatsError, OSError, TimeoutError) as error:
            raise BusUnavailable(f"{subject}: {reason(error)}") from error

    async def consumers(self, stream: str) -> list[dict[str, Any]]:
        """Return what the broker tells of all consumers of a stream."""
        found: list[dict[str, Any]] = []
        for _ in range(MAX_PAGES):
            answer = await self._ask(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
            page = answer.get("consumers") or []
            found += page
            if not page or len(found) >= answer.get("total", 0):
                break
        return found

    async def read(
        self,
        stream: str,
        subject: str,
        *,
        first: int | datetime,
        limit: int,
        headers_only: bool = False,
    ) -> tuple[list[Stored], int]:
        """Return up to `limit` messages from a sequence or a moment on, and how many more there are."""
        async with self._turns:
            name = f"{LOOK_PREFIX}{secrets.token_hex(6)}"
            config = {
                "name": name,
                "ack_policy": "none",
                "filter_subject": subject,
                "headers_only": headers_only,
                "inactive_threshold": IDLE_NS,
                "mem_storage": True,
                "num_replicas": 1,
                **_begin(first),
            }
            made = await self._ask(
                f"CONSUMER.CREATE.{stream}.{name}.{subject}", {"stream_name": stream, "config": config}
            )
            pending = int(made.get("num_pending", 0))
            wanted = min(pending, limit)
            found = await self._pull(f"CONSUMER.MSG.NEXT.{stream}.{name}", wanted) if wanted else []
            return found, pending - len(found)

    async def _pull(self, subject: str, count: int) -> list[Stored]:
        client = self._connected()
        inbox = new_hidden_inbox(client)
        subject = f"{self._api}.{subject}"
        request = json.dumps({"batch": count, "no_wait": True, "max_bytes": MAX_LOOK_BYTES}).encode()
        try:
            subscription = await client.subscribe(inbox, max_msgs=count + 1)
            try:
                await client.publish(subject, request, reply=inbox)
                return await self._guarded(subject, _gather(subscription, count))
            finally:
                await subscription.unsubscribe()
        except (NatsError, OSError, TimeoutError) as error:
            raise BusUnavailable(f"{subject}: {reason(error)}") from error

    async def _ask(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        client = self._connected()
        subject = f"{self._api}.{subject}"
        body = json.dumps(question).encode()
        try:
            asked = client.request(subject, body, timeout=ANSWER_TIMEOUT_S)
            answer = json.loads((await self._guarded(subject, asked)).data)
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            raise BusUnavailable(f"{subject}: {reason(error)}") from error
        if not isinstance(answer, dict) or "error" in answer:
            told = answer["error"].get("description", "an error") if isinstance(answer, dict) else "no answer"
            raise BusUnavailable(f"{subject}: {told}")
        return answer

    async def _guarded(self, subject: str, step: Coroutine[Any, Any, T]) -> T:
        forbidden = self._forbidden.setdefault(subject.lower(), asyncio.Event())
        try:
            return await unless(forbidden, step)
        except Over:
            grant = _LOOK.sub("*", subject)
            raise RightMissing(
                f"the broker does not let the service look: grant it the right to publish to {grant}, "
                "as deploy/nats/page.conf does"
            ) from None
        finally:
            self._forbidden.pop(subject.lower(), None)

    def _connected(self) -> TolerantClient:
        if self._client is None:
            raise BusUnavailable("not connected to the broker")
        return self._client


async def _gather(subscription: Any, count: int) -> list[Stored]:
    """Return what arrives, until the broker says that this was all."""
    found: list[Stored] = []
    async with asyncio.timeout(LOOK_TIMEOUT_S):
        while len(found) < count:
            message: Msg = await subscription.next_msg(timeout=ANSWER_TIMEOUT_S)
            headers = dict(message.headers or {})
            if not message.reply:
                break  # Not a message of the stream: nothing more is sent.
            stored = message.metadata
            place = stored.sequence.stream
            found.append(Stored(place, stored.timestamp, message.subject, headers, message.data))
    return found


async def _answers(subscription: Any) -> list[bytes]:
    found: list[bytes] = []
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while len(found) < MAX_ANSWERS:
                found.append((await subscription.next_msg(timeout=QUIET_S)).data)
    except TimeoutError:
        pass  # These were all, or enough.
    return found


def _begin(first: int | datetime) -> dict[str, Any]:
    if isinstance(first, datetime):
        return {"deliver_policy": "by_start_time", "opt_start_time": format_time(first)}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, first)}


def subjects_overlap(pattern: str, subject: str) -> bool:
    """Return whether a consumer with this filter is given a message on a subject."""
    wanted, named = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(named) > index
        if index >= len(named) or part not in ("*", named[index]):
            return False
    return len(wanted) == len(named)


def filters_of(consumer: dict[str, Any]) -> Sequence[str]:
    """Return what a consumer asks for; everything if it says nothing."""
    config = consumer.get("config", {})
    return config.get("filter_subjects") or [config.get("filter_subject") or ">"]
