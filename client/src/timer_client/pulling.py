"""Ask the broker for messages, as many as there is room for; nats-py itself has no such loop."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

MAX_EXPIRES_S: Final = 5.0
LOST_S: Final = 2.0
"""So long after a request has run out, its answer does not come any more: the broker was away."""
STOP_TIMEOUT_S: Final = 5.0

_ENDED: Final = ("batch completed", "leadership change", "server shutdown", "message size exceeds")


class Pulls:
    """The requests for messages that are open at the broker, and what they bring."""

    def __init__(
        self,
        connection: Client,
        next_subject: str,
        take: Callable[[Msg, float], Awaitable[None]],
        max_expires_s: float,
    ) -> None:
        """`take` is given each message, and a moment at which it was certainly not delivered yet."""
        self._connection = connection
        self._next_subject = next_subject
        self._take = take
        self._expires_s = min(MAX_EXPIRES_S, max_expires_s)
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._open: dict[int, _Pull] = {}
        self._count = 0
        self.ended = asyncio.Event()
        """Set whenever a request has ended: there may be room for another."""
        self.trouble = ""
        """What the broker said, if it can no longer serve requests."""

    async def start(self) -> None:
        """Listen for messages; nothing is asked for yet."""
        if not self.is_over:
            self._inbox = self._connection.new_inbox()
            self._subscription = await self._connection.subscribe(f"{self._inbox}.*", cb=self._on_message)

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed for good."""
        return self._connection.is_closed

    async def ask(self, room: int) -> None:
        """Ask for as many messages as there is room for, beyond those that were asked for before."""
        now = asyncio.get_running_loop().time()
        self._open = {number: pull for number, pull in self._open.items() if pull.lost_at > now}
        owed = sum(pull.remaining for pull in self._open.values())
        # Many small requests cost more than they gain: while some are open, wait until half of it is free.
        if not self._connection.is_connected or room - owed < (1 if owed == 0 else room / 2):
            return
        self._count += 1
        self._open[self._count] = _Pull(room - owed, time.monotonic(), now + self._expires_s + LOST_S)
        request = {"batch": room - owed, "expires": int(self._expires_s * 1_000_000_000)}
        await self._connection.publish(
            self._next_subject, json.dumps(request).encode(), reply=f"{self._inbox}.{self._count}"
        )

    async def stop(self) -> None:
        """Have nothing more delivered; whatever the broker has sent by then is taken."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(NatsError, OSError, TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    # Twice, because nats-py may send the ping of the drain ahead of what was said before.
                    await self._connection.flush()
                    await subscription.drain()  # type: ignore[no-untyped-call]

    async def _on_message(self, message: Msg) -> None:
        if message.headers and "Status" in message.headers and not message.reply:
            self._on_status(message.subject, message.headers)
            return
        # Requests are served in their order, so that this one is of the oldest.
        since = min((pull.asked_at for pull in self._open.values()), default=time.monotonic())
        for number, pull in self._open.items():
            pull.remaining -= 1
            if pull.remaining == 0:
                del self._open[number]
                self.ended.set()
            break
        await self._take(message, since)

    def _on_status(self, subject: str, headers: dict[str, str]) -> None:
        status, description = headers["Status"], headers.get("Description", "")
        self._open.pop(int(subject.rpartition(".")[2]), None)
        if status not in ("404", "408") and not description.lower().startswith(_ENDED):
            self.trouble = f"{status} {description}".strip()
        self.ended.set()


class _Pull:
    """One request under way."""

    __slots__ = ("asked_at", "lost_at", "remaining")

    def __init__(self, remaining: int, asked_at: float, lost_at: float) -> None:
        self.remaining = remaining
        self.asked_at = asked_at
        self.lost_at = lost_at
