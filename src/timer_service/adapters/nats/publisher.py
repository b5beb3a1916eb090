"""Pipelined publishing: all of a batch goes out before the first confirmation comes in."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Final

from nats.aio.msg import Msg

from timer_service.adapters.nats.answers import Answers
from timer_service.adapters.nats.batches import Batches
from timer_service.adapters.nats.client import Outgoing, TolerantClient
from timer_service.adapters.nats.rejections import NO_STREAM, blame_the_stream, rejection
from timer_service.ports.event_sink import Published, PublishResult

CONFIRM_TIMEOUT_S: Final = 5.0
LOOK_ALIKE_GRACE_S: Final = 0.1
MIN_BATCHED: Final = 16
"""Fewer gain nothing from a batch."""
SINGLY_FOR_S: Final = 10.0
"""After a batch that the stream did not take whole, because the next one may meet the same."""

_CONFIRMED: Final = PublishResult(Published.CONFIRMED)
_DISCONNECTED: Final = PublishResult(Published.DISCONNECTED, "the connection was lost")
_TOO_LARGE: Final = PublishResult(Published.REJECTED, "larger than the broker's max_payload")
_FORBIDDEN: Final = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)


class Publisher:
    """Publish to streams over whichever connection there is; every wait has an end."""

    def __init__(
        self,
        streams: frozenset[str],
        stream_missing: Callable[[], None],
        confirm_timeout_s: float = CONFIRM_TIMEOUT_S,
        *,
        look_alike_grace_s: float = LOOK_ALIKE_GRACE_S,
        min_batched: int = MIN_BATCHED,
    ) -> None:
        self._stream_missing = stream_missing
        self._streams = streams
        self._confirm_timeout_s = confirm_timeout_s
        self._look_alike_grace_s = look_alike_grace_s
        # How the broker begins a confirmation; whatever begins in another way is looked at closely.
        self._stored = tuple(f'{{"stream":"{stream}",'.encode() for stream in streams)
        unanswered = PublishResult(Published.UNANSWERED, f"no confirmation within {confirm_timeout_s:g} s")
        self._answers = Answers(self._read, unanswered=unanswered, lost=_DISCONNECTED, too_large=_TOO_LARGE)
        self._batches = Batches(streams, confirmed=_CONFIRMED, unanswered=unanswered, lost=_DISCONNECTED)
        self._min_batched = min_batched
        self._singly_until = 0.0

    async def start(self, client: TolerantClient) -> None:
        """Listen for confirmations."""
        await self._answers.start(client)
        await self._batches.start(client)

    def lost(self) -> None:
        """Stop waiting for confirmations that can no longer come."""
        self._answers.lost()
        self._batches.lost()

    async def publish(self, messages: Sequence[Outgoing], *, batched: bool = False) -> list[PublishResult]:
        """Send all messages, each with its Nats-Msg-Id, and wait for what becomes of each.

        Where the stream takes batches, it confirms many at once.
        """
        if not messages:
            return []
        if batched and (result := await self._publish_batch(messages)) is not None:
            return [result] * len(messages)
        results = await self._answers.to(messages, self._confirm_timeout_s)
        return blame_the_stream([message.subject for message in messages], results)

    async def _publish_batch(self, messages: Sequence[Outgoing]) -> PublishResult | None:
        """Return what became of all messages; None if each has to be sent and answered by itself."""
        now_s = asyncio.get_running_loop().time
        if len(messages) < self._min_batched or now_s() < self._singly_until:
            return None
        result = await self._batches.publish(messages, self._confirm_timeout_s)
        if result is None:
            self._singly_until = now_s() + SINGLY_FOR_S
        return result

    def error_reported(self, error: Exception) -> None:
        """Fail soon what the broker says we may not publish; it sends no other answer.

        Not at once: nats-py tells of errors in lower case, and the confirmation of a subject that differs
        in case only must be given the time to come in.
        """
        match = _FORBIDDEN.search(str(error))
        if match:
            self._batches.leave_open(match[1])
            result = PublishResult(Published.REJECTED, str(error))
            asyncio.get_running_loop().call_later(
                self._look_alike_grace_s, self._answers.settle, result, match[1], self._answers.sent
            )

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
