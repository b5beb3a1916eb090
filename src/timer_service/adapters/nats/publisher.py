"""Pipelined publishing: all of a batch goes out before the first confirmation comes in."""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from timer_service.adapters.nats.rejections import NO_STREAM, blame_the_stream, rejection
from timer_service.adapters.nats.tolerant_client import Outgoing, TolerantClient
from timer_service.ports.event_sink import Published, PublishResult

CONFIRM_TIMEOUT_S: Final = 5.0
LOOK_ALIKE_GRACE_S: Final = 0.1

_CONFIRMED: Final = PublishResult(Published.CONFIRMED)
_UNANSWERED: Final = PublishResult(Published.UNANSWERED, f"no confirmation within {CONFIRM_TIMEOUT_S:g} s")
_DISCONNECTED: Final = PublishResult(Published.DISCONNECTED, "the connection was lost")
_TOO_LARGE: Final = PublishResult(Published.REJECTED, "larger than the broker's max_payload")
_FORBIDDEN: Final = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)


class _Pending:
    """A batch that waits for its confirmations."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        self.results: list[PublishResult | None] = [None] * len(messages)
        self.missing = len(messages)
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, result: PublishResult) -> None:
        if self.results[index] is None:
            self.results[index] = result
            self.missing -= 1
            if self.missing == 0 and not self.settled.done():
                self.settled.set_result(None)

    def settle_rest(self, result: PublishResult, subject: str | None = None) -> None:
        for index, message in enumerate(self.messages):
            if subject is None or message.subject.lower() == subject.lower():
                self.settle(index, result)


class Publisher:
    """Publish to streams over one connection; every wait has an end."""

    def __init__(
        self, client: TolerantClient, streams: frozenset[str], stream_missing: Callable[[], None]
    ) -> None:
        self._client = client
        self._stream_missing = stream_missing
        self._streams = streams
        # How the broker begins a confirmation; whatever begins in another way is looked at closely.
        self._stored = tuple(f'{{"stream":"{stream}",'.encode() for stream in streams)
        # Every subscriber to an event sees it: the client's own names for inboxes follow one from another.
        self._inbox = f"{client.new_inbox().rpartition('.')[0]}.{secrets.token_hex(11)}"
        self._pending: dict[int, _Pending] = {}
        self._batches = 0

    async def start(self) -> None:
        """Listen for confirmations."""
        subscription = await self._client.subscribe(f"{self._inbox}.*.*", cb=self._on_answer)
        self._client.deliver_at_once(subscription)

    async def publish(self, messages: Sequence[Outgoing]) -> list[PublishResult]:
        """Send all messages, each with its Nats-Msg-Id, and wait for what becomes of each."""
        if not messages:
            return []
        self._batches += 1
        number, pending = self._batches, _Pending(messages)
        self._pending[number] = pending
        try:
            # A confirmation without a limit would hold the batch forever once the broker is gone.
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                await self._send(number, pending)
        except TimeoutError:
            pending.settle_rest(_UNANSWERED)
        except (NatsError, OSError):
            pending.settle_rest(_DISCONNECTED)
        finally:
            del self._pending[number]
        results = [result or _DISCONNECTED for result in pending.results]
        return blame_the_stream([message.subject for message in messages], results)

    async def _send(self, number: int, pending: _Pending) -> None:
        for index in await self._client.publish_all(pending.messages, f"{self._inbox}.{number}"):
            pending.settle(index, _TOO_LARGE)
        await pending.settled

    def connection_lost(self) -> None:
        """Stop waiting for answers that cannot come any more."""
        for pending in self._pending.values():
            pending.settle_rest(_DISCONNECTED)

    def error_reported(self, error: Exception) -> None:
        """Fail soon what the broker says we may not publish; it sends no other answer.

        Not at once: nats-py tells of errors in lower case, and the confirmation of a subject that differs
        in case only must be given the time to come in.
        """
        match = _FORBIDDEN.search(str(error))
        if match:
            result = PublishResult(Published.REJECTED, str(error))
            for pending in self._pending.values():
                asyncio.get_running_loop().call_later(
                    LOOK_ALIKE_GRACE_S, pending.settle_rest, result, match[1]
                )

    async def _on_answer(self, message: Msg) -> None:
        _, number, index = message.subject.rsplit(".", 2)
        pending = self._pending.get(int(number))
        result = self._read(message)
        if pending is not None and result is not None:
            pending.settle(int(index), result)

    def _read(self, message: Msg) -> PublishResult | None:
        if message.data.startswith(self._stored) and b'"error"' not in message.data:
            return _CONFIRMED
        if message.headers and message.headers.get("Status") == "503":
            self._stream_missing()
            return NO_STREAM
        try:
            answer = json.loads(message.data)
        except ValueError:
            return None
        if not isinstance(answer, dict) or answer.get("stream") not in self._streams:
            return None  # Forged: who sees our inbox can have the broker answer to it.
        if "error" in answer:
            return rejection(answer["error"])
        return _CONFIRMED
