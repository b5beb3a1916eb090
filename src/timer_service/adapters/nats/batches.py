"""Fast-ingest batches: nats-server from 2.14 on confirms many events with one answer.

The stream numbers the events of a batch and stops at the first that it does not take. So its last answer,
for as many events as were sent, says that it has all of them; any other leaves open which it has.
"""

import asyncio
import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from timer_service.adapters.nats.client import Outgoing, TolerantClient, new_hidden_inbox
from timer_service.ports.event_sink import PublishResult

ACKNOWLEDGED_EVERY: Final = 1_000
"""The stream tells of its progress at most so often; we wait for the end."""

_BEGIN, _GO_ON, _END = 0, 1, 2
_PROGRESS: Final = b'{"type":"ack"'


class Batches:
    """Sends batches over one connection at a time; every wait ends."""

    def __init__(
        self,
        streams: frozenset[str],
        *,
        confirmed: PublishResult,
        unanswered: PublishResult,
        lost: PublishResult,
    ) -> None:
        self._streams = streams
        self._confirmed = confirmed
        self._unanswered = unanswered
        self._lost = lost
        self._client: TolerantClient | None = None
        self._inbox = self._name = ""
        self._open: dict[str, _Batch] = {}
        self._sent = 0

    async def start(self, client: TolerantClient) -> None:
        """Listen for answers on a connection, unless we do already."""
        if client is self._client:
            return
        # Unlike any other publisher's: the stream knows a batch by its name alone. Hashed, because every
        # subscriber to an event sees it, and could guess the client's next inboxes from one of them.
        self._name = sha256(client.new_inbox().encode()).hexdigest()[:22]
        self._inbox = new_hidden_inbox(client)
        subscription = await client.subscribe(f"{self._inbox}.*.*.*.*.*.$FI", cb=self._on_answer)
        client.deliver_at_once(subscription)
        self._client = client

    def lost(self) -> None:
        """Stop waiting for answers that can no longer come."""
        self._client = None
        for batch in self._open.values():
            batch.settle(self._lost)

    def leave_open(self, subject: str) -> None:
        """Wait no longer for a batch with a message to a subject, in whatever case: the broker refused it."""
        for batch in self._open.values():
            if any(message.subject.lower() == subject.lower() for message in batch.messages):
                batch.settle(None)

    async def publish(self, messages: Sequence[Outgoing], timeout_s: float) -> PublishResult | None:
        """Send messages as one batch; return the result they all share, or None.

        After None the caller sends them again, one by one: the stream drops, by id, what it already has.
        """
        if self._client is None:
            return self._lost
        self._sent += 1
        batch = _Batch(f"{self._name}-{self._sent}", messages)
        self._open[batch.id] = batch
        try:
            # A wait without a limit would hold the batch forever once the broker is gone.
            async with asyncio.timeout(timeout_s):
                if await self._client.publish_all(messages, batch.replies(self._inbox)):
                    return None  # One is too large to be sent, and the stream stops at the gap.
                return await batch.result
        except TimeoutError:
            return self._unanswered
        except (NatsError, OSError):
            return self._lost
        finally:
            del self._open[batch.id]

    async def _on_answer(self, message: Msg) -> None:
        _, name, _, _, number, _, _ = message.subject.rsplit(".", 6)
        batch = self._open.get(name)
        if batch is None or message.data.startswith(_PROGRESS):
            return
        if message.headers and message.headers.get("Status") == "503":
            batch.settle(None)
            return
        try:
            answer = json.loads(message.data)
        except ValueError:
            return
        if not isinstance(answer, dict):
            return
        # An error outweighs the last answer, which counts what the stream has seen, not what it has taken.
        if "error" in answer or answer.get("type") == "gap":
            batch.settle(None)
        elif answer.get("stream") in self._streams and answer.get("batch") == name:
            is_whole = answer.get("count") == batch.size and number == str(batch.size)
            batch.settle(self._confirmed if is_whole else None)


class _Batch:
    """One batch on its way."""

    def __init__(self, name: str, messages: Sequence[Outgoing]) -> None:
        self.id = name
        self.messages = messages
        self.size = len(messages)
        self.result: asyncio.Future[PublishResult | None] = asyncio.get_running_loop().create_future()

    def replies(self, inbox: str) -> list[str]:
        """Return where each message is answered: the subject tells the stream its place in the batch."""
        stem = f"{inbox}.{self.id}.{ACKNOWLEDGED_EVERY}.fail."
        replies = [f"{stem}{number}.{_GO_ON}.$FI" for number in range(1, self.size + 1)]
        replies[0] = f"{stem}1.{_BEGIN}.$FI"
        replies[-1] = f"{stem}{self.size}.{_END}.$FI"
        return replies

    def settle(self, result: PublishResult | None) -> None:
        if not self.result.done():
            self.result.set_result(result)
