"""As much of a broker, in memory, as this client uses: subjects, an event stream, durable consumers."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, ConsumerInfo, PubAck
from nats.js.errors import NotFoundError

NEXT: Final = "$JS.API.CONSUMER.MSG.NEXT."
_ACK: Final = "$JS.ACK."
_CONSUMER_NOT_FOUND: Final = 10014

OnMessage = Callable[[Msg], Awaitable[None]]
Answer = tuple[bytes, dict[str, str] | None]


@dataclass(slots=True, eq=False)
class Subscription:
    """Somebody who listens on a subject."""

    broker: "MemoryBroker"
    subject: str
    cb: OnMessage | None
    queue: "asyncio.Queue[Msg]" = field(default_factory=asyncio.Queue)

    @property
    async def messages(self) -> AsyncIterator[Msg]:
        """Yield what comes."""
        while True:
            yield await self.queue.get()

    async def unsubscribe(self) -> None:
        """Listen no longer."""
        self.broker.subscriptions.discard(self)

    async def drain(self) -> None:
        """Take what is on its way, then listen no longer."""
        await self.broker.flush()
        await self.unsubscribe()


@dataclass(slots=True)
class Durable:
    """What a durable consumer has in store, and who has asked for it."""

    config: ConsumerConfig
    pending: deque[int] = field(default_factory=deque)
    """Places in the stream of what is to be delivered."""
    unanswered: set[int] = field(default_factory=set)
    later: list[tuple[datetime, int]] = field(default_factory=list)
    """What was given back for a while."""
    deliveries: dict[int, int] = field(default_factory=dict)
    pulls: deque[list[Any]] = field(default_factory=deque)
    """Requests under way: where to, how many, until when."""
    inboxes: set[str] = field(default_factory=set)


class MemoryBroker:
    """The broker, and at the same time the connection to it and its JetStream."""

    def __init__(self, now: Callable[[], datetime], serve: Callable[[str, bytes], Answer]) -> None:
        self._now = now
        self._serve = serve
        self.subscriptions: set[Subscription] = set()
        self.durables: dict[str, Durable] = {}
        self._stream: list[tuple[str, bytes]] = []
        self._out: deque[tuple[Subscription, Msg]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._inboxes = 0
        self._commands = 0

    is_connected = True
    is_closed = False
    last_error = None

    def jetstream(self, **_: object) -> "MemoryBroker":
        """Return where to publish commands and find consumers."""
        return self

    def new_inbox(self) -> str:
        """Return a subject that nobody else has."""
        self._inboxes += 1
        return f"_INBOX.{self._inboxes}"

    async def flush(self, _: float = 0) -> None:
        """Return once what was published is delivered."""
        if self._pump is not None and self._pump is not asyncio.current_task():
            await asyncio.shield(self._pump)

    async def subscribe(self, subject: str, cb: OnMessage | None = None) -> Subscription:
        """Listen on a subject."""
        subscription = Subscription(self, subject, cb)
        self.subscriptions.add(subscription)
        return subscription

    async def request(self, subject: str, body: bytes, **_: object) -> Msg:
        """Ask the service."""
        await asyncio.sleep(0)
        data, headers = self._serve(subject, body)
        return _message(subject, data, headers=headers)

    async def publish(self, subject: str, body: bytes, *, reply: str = "", **_: object) -> PubAck:
        """Publish a command, ask for events, or answer for one."""
        await asyncio.sleep(0)
        if subject.startswith(NEXT):
            self._asked(subject.rpartition(".")[2], body, reply)
        elif subject.startswith(_ACK):
            self._answered(subject.split("."), body)
        else:
            self._commands += 1
            self._serve(subject, body)
        return PubAck("COMMANDS", self._commands)

    def store(self, subject: str, body: bytes) -> None:
        """Put an event into the stream, and deliver it to all who want it."""
        self._stream.append((subject, body))
        for subscription in self.subscriptions:
            if matches(subscription.subject, subject):
                self._send(subscription, _message(subject, body))
        for name, durable in self.durables.items():
            if matches(durable.config.filter_subject or ">", subject):
                durable.pending.append(len(self._stream))
                self._deliver(name)

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """Return a durable consumer, or raise NotFoundError."""
        if name not in self.durables:
            raise NotFoundError(code=404, err_code=_CONSUMER_NOT_FOUND, description="consumer not found")
        return ConsumerInfo(name, stream, self.durables[name].config, created=self._now())

    async def add_consumer(self, _: str, config: ConsumerConfig) -> None:
        """Create a durable consumer, or change it; what it has passed over does not come any more."""
        name = config.durable_name or ""
        if name in self.durables:
            self.durables[name].config = config
            return
        numbered = enumerate(self._stream, 1)
        wanted = (n for n, (subject, _) in numbered if matches(config.filter_subject or ">", subject))
        self.durables[name] = Durable(config, deque(wanted))

    def next_at(self) -> datetime | None:
        """Return when something comes again that was given back for a while."""
        return min((at for durable in self.durables.values() for at, _ in durable.later), default=None)

    def lose_workers(self) -> None:
        """Deliver again whatever was delivered and not answered, as the broker does after a while."""
        for durable in self.durables.values():
            durable.pending.extendleft(sorted(durable.unanswered, reverse=True))
            durable.unanswered.clear()
            durable.pulls.clear()

    def at_work(self) -> list[str]:
        """Return the durable consumers whose workers have not finished."""
        for name in self.durables:
            self._deliver(name)
        return [
            name
            for name, durable in self.durables.items()
            if durable.unanswered or (durable.pending and any(map(self._listener, durable.inboxes)))
        ]

    def _asked(self, name: str, body: bytes, reply: str) -> None:
        asked = json.loads(body)
        until = asyncio.get_running_loop().time() + asked["expires"] / 1e9
        self.durables[name].pulls.append([reply, asked["batch"], until])
        self.durables[name].inboxes.add(reply)
        self._deliver(name)

    def _answered(self, tokens: list[str], answer: bytes) -> None:
        durable, number = self.durables[tokens[3]], int(tokens[5])
        if answer == b"+WPI" or number not in durable.unanswered:
            return
        durable.unanswered.discard(number)
        if answer.startswith(b"-NAK"):
            delay = timedelta(microseconds=json.loads(answer[4:] or b"{}").get("delay", 0) / 1000)
            durable.later.append((self._now() + delay, number))
        self._deliver(tokens[3])

    def _deliver(self, name: str) -> None:
        """Serve the oldest requests with what is there."""
        durable, time_s = self.durables[name], asyncio.get_running_loop().time()
        for at, number in [each for each in durable.later if each[0] <= self._now()]:
            durable.later.remove((at, number))
            durable.pending.append(number)
        while durable.pending and durable.pulls:
            reply, left, until = pull = durable.pulls[0]
            subscription = self._listener(reply)
            if left == 0 or until < time_s or subscription is None:
                durable.pulls.popleft()
                continue
            pull[1] -= 1
            number = durable.pending.popleft()
            durable.unanswered.add(number)
            times = durable.deliveries[number] = durable.deliveries.get(number, 0) + 1
            subject, body = self._stream[number - 1]
            ack = f"{_ACK}EVENTS.{name}.{times}.{number}.{number}.0.{len(durable.pending)}"
            self._send(subscription, _message(subject, body, ack))

    def _listener(self, subject: str) -> Subscription | None:
        return next((each for each in self.subscriptions if matches(each.subject, subject)), None)

    def _send(self, subscription: Subscription, message: Msg) -> None:
        self._out.append((subscription, message))
        if self._pump is None:
            self._pump = asyncio.ensure_future(self._send_all())

    async def _send_all(self) -> None:
        """Deliver one message after another, as a connection does."""
        try:
            while self._out:
                subscription, message = self._out.popleft()
                if subscription.cb is None:
                    subscription.queue.put_nowait(message)
                else:
                    await subscription.cb(message)
        finally:
            self._pump = None


def as_connection(broker: MemoryBroker) -> Client:
    """Pass a broker for the connection to one."""
    return cast(Client, broker)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject is among those that a pattern stands for."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">" and len(tokens) >= len(wanted):
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


def _message(subject: str, body: bytes, reply: str = "", headers: dict[str, str] | None = None) -> Msg:
    return Msg(cast(Client, None), subject, reply, body, headers)
