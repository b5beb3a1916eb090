"""Pull messages from the durable consumer, always one request ahead of the work."""

import json
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from timer_service.adapters.nats.tolerant_client import TolerantClient

PULLS_AHEAD: Final = 2
PULL_EXPIRES_S: Final = 5.0
PULL_LOST_AFTER_S: Final = PULL_EXPIRES_S + 2.0
PULL_MAX_BYTES: Final = 4 * 1024 * 1024
"""Bounds memory where messages are large: a batch is so many messages or so many bytes."""

_PULL_ENDED: Final = (
    "message size exceeds maxbytes",
    "batch completed",
    "leadership change",
    "server shutdown",
)
_ACK_PREFIX: Final = "$JS.ACK."


class Delivery(NamedTuple):
    """What the broker says about a delivered message."""

    sequence: int
    times_delivered: int
    stored_us: int
    """When the broker stored it, in microseconds since 1970."""


def read_delivery(reply: str) -> Delivery:
    """Read the numbers out of an acknowledgement subject, in its old or its new form."""
    tokens = reply.split(".")
    # $JS.ACK.<stream>.<consumer>.… or $JS.ACK.<domain>.<account>.<stream>.<consumer>.…
    first = 4 if len(tokens) == 9 else 6
    return Delivery(
        sequence=int(tokens[first + 1]),
        times_delivered=int(tokens[first]),
        stored_us=int(tokens[first + 3]) // 1000,
    )


class CommandPull:
    """The outstanding pull requests of one session with the broker.

    nats-py's own `fetch` waits for one request at a time; with two under way the broker is never idle.
    """

    def __init__(
        self,
        client: TolerantClient,
        request_subject: str,
        *,
        batch_size: int,
        deliver: Callable[[Msg], None],
        has_room: Callable[[], bool],
        consumer_lost: Callable[[str], None],
    ) -> None:
        self._client = client
        self._request_subject = request_subject
        self._deliver = deliver
        self._has_room = has_room
        self._consumer_lost = consumer_lost
        self._batch_size = batch_size
        self._inbox = client.new_inbox()
        self._pulls = 0
        self._open: dict[int, _Pull] = {}
        self._request = json.dumps(
            {
                "batch": batch_size,
                "max_bytes": max(PULL_MAX_BYTES, 2 * client.max_payload),
                "expires": int(PULL_EXPIRES_S * 1_000_000_000),
            }
        ).encode()

    async def start(self) -> None:
        """Listen for messages and ask for the first."""
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._on_message)
        self._client.deliver_at_once(self._subscription)
        await self.top_up()

    async def stop(self) -> None:
        """Listen no more; what the broker still sends is delivered again later."""
        await self._subscription.unsubscribe()

    async def top_up(self) -> None:
        """Ask for more, as long as there is room for it."""
        now = time.monotonic()
        for number in [n for n, pull in self._open.items() if pull.lost_at < now]:
            del self._open[number]
        while len(self._open) < PULLS_AHEAD and self._has_room():
            self._pulls += 1
            self._open[self._pulls] = _Pull(self._batch_size, now + PULL_LOST_AFTER_S)
            await self._client.publish(
                self._request_subject, self._request, reply=f"{self._inbox}.{self._pulls}"
            )

    async def _on_message(self, message: Msg) -> None:
        if message.reply.startswith(_ACK_PREFIX):
            self._deliver(message)
            if self._ends_a_pull():
                await self.top_up()
        elif message.headers and "Status" in message.headers:
            self._on_status(message, message.headers)
            await self.top_up()

    def _ends_a_pull(self) -> bool:
        # The broker serves pulls in order; where that is not so, the expiry sets the count right.
        for number, pull in self._open.items():
            pull.remaining -= 1
            if pull.remaining == 0:
                del self._open[number]
                return True
            break
        return False

    def _on_status(self, message: Msg, headers: dict[str, str]) -> None:
        status, description = headers["Status"], headers.get("Description", "")
        self._open.pop(int(message.subject.rpartition(".")[2]), None)
        ended = status in ("404", "408") or description.lower().startswith(_PULL_ENDED)
        if not ended:
            self._consumer_lost(f"{status} {description}".strip())


class _Pull:
    """One request under way."""

    __slots__ = ("lost_at", "remaining")

    def __init__(self, remaining: int, lost_at: float) -> None:
        self.remaining = remaining
        self.lost_at = lost_at
