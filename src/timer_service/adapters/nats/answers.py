"""Messages that go out together, each with an answer of its own: all are sent before the first comes in."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from timer_service.adapters.nats.client import Outgoing, TolerantClient, new_hidden_inbox

T = TypeVar("T")


class Answers(Generic[T]):
    """Sends groups of messages over one connection at a time and gathers what is answered; every wait ends.

    nats-py's own requests take a way with several queues and checks, one message at a time.
    """

    def __init__(self, read: Callable[[Msg], T | None], *, unanswered: T, lost: T, too_large: T) -> None:
        self._read = read
        self._unanswered = unanswered
        self._lost = lost
        self._too_large = too_large
        self._client: TolerantClient | None = None
        self._inbox = ""
        self._groups: dict[int, _Group[T]] = {}
        self.sent = 0
        """How many groups were sent so far."""

    async def start(self, client: TolerantClient) -> None:
        """Listen for answers on a connection, unless we do already."""
        if client is self._client:
            return
        # Every subscriber to an event sees it.
        self._inbox = new_hidden_inbox(client)
        subscription = await client.subscribe(f"{self._inbox}.*.*", cb=self._on_answer)
        client.deliver_at_once(subscription)
        self._client = client

    def lost(self) -> None:
        """Stop waiting for answers that can no longer come."""
        self._client = None
        self.settle(self._lost)

    def settle(self, answer: T, subject: str | None = None, up_to: int | None = None) -> None:
        """Take this for the answer to all that waits, or only to what went to a subject, in whatever case.

        And only of the groups up to one, if it is given: what was sent later has answers of its own.
        """
        for number, group in self._groups.items():
            if up_to is None or number <= up_to:
                group.settle_rest(answer, subject)

    async def to(self, messages: Sequence[Outgoing], timeout_s: float) -> list[T]:
        """Send all messages and return what became of each."""
        if self._client is None:
            return [self._lost] * len(messages)
        self.sent += 1
        number, group = self.sent, _Group[T](messages)
        self._groups[number] = group
        try:
            # A wait without a limit would hold the group forever once the broker is gone.
            async with asyncio.timeout(timeout_s):
                replies = [f"{self._inbox}.{number}.{index}" for index in range(len(messages))]
                for index in await self._client.publish_all(messages, replies):
                    group.settle(index, self._too_large)
                await group.settled
        except TimeoutError:
            group.settle_rest(self._unanswered)
        except (NatsError, OSError):
            group.settle_rest(self._lost)
        finally:
            del self._groups[number]
        return [self._lost if answer is None else answer for answer in group.answers]

    async def _on_answer(self, message: Msg) -> None:
        _, number, index = message.subject.rsplit(".", 2)
        group, answer = self._groups.get(int(number)), self._read(message)
        if group is not None and answer is not None:
            group.settle(int(index), answer)


class _Group(Generic[T]):
    """Messages that went out together and wait for their answers."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self._messages = messages
        self.answers: list[T | None] = [None] * len(messages)
        self._missing = len(messages)
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, answer: T) -> None:
        if self.answers[index] is None:
            self.answers[index] = answer
            self._missing -= 1
            if self._missing == 0 and not self.settled.done():
                self.settled.set_result(None)

    def settle_rest(self, answer: T, subject: str | None = None) -> None:
        for index, message in enumerate(self._messages):
            if subject is None or message.subject.lower() == subject.lower():
                self.settle(index, answer)
