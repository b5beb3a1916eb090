"""A connection whose other end is the test: it keeps what is sent and hands in what the test makes up."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from nats.aio.msg import Msg

from timer_service.adapters.nats.client import Outgoing, TolerantClient


class FakeClient:
    """As much of a client as one that publishes batches and listens on an inbox needs."""

    def __init__(self, react: Callable[["FakeClient", str], Awaitable[None]]) -> None:
        self.sent: list[Outgoing] = []
        self._react = react
        self._callback: Any = None

    @property
    def client(self) -> TolerantClient:
        return cast("TolerantClient", self)

    def new_inbox(self) -> str:
        return "_INBOX.1.2"

    async def subscribe(self, subject: str, cb: Any) -> None:
        if not subject.endswith(".$FI"):  # Of batches, which nobody sends here.
            self._callback = cb

    def deliver_at_once(self, subscription: None) -> None:
        pass

    async def publish_all(self, messages: Sequence[Outgoing], replies: Sequence[str]) -> list[int]:
        self.sent += messages
        await self._react(self, replies[0].rpartition(".")[0])
        return []

    async def answer(self, subject: str, data: bytes, **headers: str) -> None:
        """Hand a message in, as the broker would."""
        await self._callback(
            Msg(_client=cast("Any", self), subject=subject, data=data, headers=headers or None)
        )
