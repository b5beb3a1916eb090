"""The NATS client of the simulated process: as much of nats-py's as the service uses."""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

from nats.aio.msg import Msg
from nats.errors import (
    ConnectionClosedError,
    Error,
    FlushTimeoutError,
    MaxPayloadError,
    NoServersError,
)
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import StreamInfo, StreamState
from nats.js.errors import NotFoundError, ServiceUnavailableError
from nats.nuid import NUID

from tests.simulation.broker import COMMANDS, Broker, Link, Message, Stream, matches
from tests.simulation.loop import PROCESS, Lively
from timer_service.adapters.nats.client import Arrived, Outgoing

MAX_PAYLOAD = 1_048_576
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_URL = urlparse("nats://simulated:4222")
_AWAY = object()
_VERSION = SimpleNamespace(major=2, minor=15, patch=1)

OnSend = Callable[[Lively, Message], None]
OnConfirmation = Callable[[str, bytes], None]


class SimulatedNats:
    """Makes clients for one broker; stands where the service takes nats-py's client class."""

    def __init__(self, broker: Broker, on_send: OnSend, on_confirmation: OnConfirmation) -> None:
        self.broker = broker
        self.on_send = on_send
        self.on_confirmation = on_confirmation
        self.suspends = 0.3
        """The share of publications that give way to other tasks."""
        self.clients: list[SimulatedClient] = []
        self._numbers = itertools.count(1)

    def __call__(self) -> "SimulatedClient":
        client = SimulatedClient(self, next(self._numbers))
        self.clients.append(client)
        return client

    def process_died(self, process: Lively) -> None:
        for client in self.clients:
            if client.process is process:
                client.process_died()
        self.clients = [client for client in self.clients if client.process is not process]


class SimulatedClient:
    """A client without reconnection, as the service uses it."""

    max_payload = MAX_PAYLOAD

    def __init__(self, nats: SimulatedNats, number: int) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process = process
        self.is_closed = False
        self.told_servers: tuple[str, ...] = ()
        self.connected_url = _URL
        self.connected_server_version = _VERSION
        self._nuid = NUID()
        self._nats = nats
        self._number = number
        self._inboxes = itertools.count(1)
        self._context = copy_context()
        self._link: Link | None = None
        self._subscriptions: list[_Subscription] = []
        self._closed_cb: Callable[[], Awaitable[None]] | None = None
        self._error_cb: Callable[[Exception], Awaitable[None]] | None = None

    async def connect(self, **options: Any) -> None:
        broker = self._nats.broker
        self._closed_cb, self._error_cb = options["closed_cb"], options["error_cb"]
        await asyncio.sleep(broker.random.random() * 3 * (broker.latency_s + broker.faults.slow_s))
        if not broker.up or self.process.dead:
            raise NoServersError
        self._link = Link(broker, self)

    def new_inbox(self) -> str:
        return f"_INBOX.c{self._number}.{next(self._inboxes)}"

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        link = self._open_link()
        if len(payload) > self.max_payload:
            raise MaxPayloadError
        message = Message(subject, payload, reply, headers)
        self._nats.on_send(self.process, message)
        link.send(message)
        if self._nats.broker.random.random() < self._nats.suspends:
            await asyncio.sleep(0)

    async def publish_all(
        self, messages: Iterable[Outgoing], replies: Sequence[str] | None = None
    ) -> list[int]:
        for number, message in enumerate(messages):
            reply = replies[number] if replies else ""
            await self.publish(message.subject, message.body, reply, _headers(message.head))
        return []

    def deliver_at_once(self, subscription: "_Subscription") -> None:
        """Messages are handed over one by one in any case."""

    async def take_together(
        self, subject: str, take: Callable[[Sequence[Arrived]], Awaitable[None]]
    ) -> "_Subscription":
        async def take_one(message: Msg) -> None:
            await take([Arrived(message.subject, message.reply, message.data, message.headers)])

        return await self.subscribe(subject, cb=take_one)

    async def send_no_more(self, subscription: "_Subscription") -> None:
        self._open_link()
        subscription.is_open = False
        if self._nats.broker.random.random() < self._nats.suspends:
            await asyncio.sleep(0)

    async def subscribe(
        self, subject: str, queue: str = "", cb: Callable[[Msg], Awaitable[None]] | None = None
    ) -> "_Subscription":
        self._open_link()
        assert cb is not None
        subscription = _Subscription(self, subject, cb)
        self._subscriptions.append(subscription)
        if self._nats.broker.random.random() < self._nats.suspends:
            await asyncio.sleep(0)
        return subscription

    async def flush(self, timeout: float = 10) -> None:
        link = self._open_link()
        pong = asyncio.get_running_loop().create_future()
        link.up(lambda: link.back(lambda: _settle(pong, None)))
        try:
            await asyncio.wait_for(pong, timeout)
        except TimeoutError:
            raise FlushTimeoutError from None

    async def close(self) -> None:
        if not self.is_closed:
            self._shut()
            await asyncio.sleep(0)
            if self._closed_cb is not None:
                await self._closed_cb()

    async def request(self, subject: str, payload: bytes = b"", timeout: float = 5) -> Msg:
        """Ask the broker for a stream, which is all that is asked for in this way."""
        name = subject.removeprefix("$JS.API.STREAM.INFO.")
        answer = await self.ask(lambda broker: _described(broker.stream_info(name)), timeout, name)
        return Msg(self, subject, "", answer)  # type: ignore[arg-type]

    def jetstream(self, timeout: float = 5, **_: Any) -> "_JetStream":
        return _JetStream(self, timeout)

    async def ask(self, question: Callable[[Broker], Any], timeout_s: float, about: str = "") -> Any:
        """Have something asked at the broker, or about a stream, and wait for the answer."""
        link = self._open_link()
        broker = self._nats.broker
        answer = asyncio.get_running_loop().create_future()

        def work() -> None:
            if broker.faults.commands_silent and about == COMMANDS:
                return
            result = _AWAY if broker.faults.jetstream_away else question(broker)
            link.back(lambda: _settle(answer, result))

        link.up(work)
        try:
            result = await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise NatsTimeoutError from None
        if result is _AWAY:
            raise ServiceUnavailableError(code=503, description="no responders")
        return result

    def forget(self, subscription: "_Subscription") -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def process_died(self) -> None:
        self.is_closed = True
        if self._link is not None:
            self._link.process_died()

    # What the link tells.

    def arrived(self, message: Message, inbox: str) -> None:
        if self.is_closed:
            return
        words = inbox.split(".")
        for subscription in self._subscriptions:
            if matches(subscription.words, words):
                if not message.reply and inbox.startswith("_INBOX."):
                    self._nats.on_confirmation(inbox, message.data)
                subscription.take(
                    Msg(
                        _client=self,  # type: ignore[arg-type]
                        subject=message.subject,
                        reply=message.reply,
                        data=message.data,
                        headers=message.headers,
                    )
                )
                return

    def failed(self, text: str) -> None:
        if self._error_cb is not None and not self.is_closed:
            self.start(self._error_cb(Error(text)))

    def closed(self) -> None:
        if not self.is_closed and not self.process.dead:
            self.start(self.close())

    def listens(self, subject: str) -> bool:
        words = subject.split(".")
        return not self.is_closed and any(s.is_open and matches(s.words, words) for s in self._subscriptions)

    def start(self, work: Any) -> "asyncio.Task[Any]":
        """Run something in the process, as the client's own reading task would."""
        return self._nats.broker.loop.create_task(work, context=self._context)

    @property
    def link(self) -> Link | None:
        return self._link

    async def report(self, error: Exception) -> None:
        if self._error_cb is not None:
            await self._error_cb(error)

    def _open_link(self) -> Link:
        if self.is_closed or self._link is None or self.process.dead:
            raise ConnectionClosedError
        return self._link

    def _shut(self) -> None:
        self.is_closed = True
        for subscription in self._subscriptions:
            subscription.stop()
        self._subscriptions.clear()
        if self._link is not None:
            self._link.close()


class _Subscription:
    """Hands over one message at a time, as nats-py does."""

    def __init__(self, client: SimulatedClient, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> None:
        self.words = subject.split(".")
        self.is_open = True
        self._client = client
        self._cb = cb
        self._waiting: deque[Msg] = deque()
        self._worker: asyncio.Task[Any] | None = None

    def take(self, message: Msg) -> None:
        self._waiting.append(message)
        if self._worker is None:
            self._worker = self._client.start(self._work())

    async def unsubscribe(self, limit: int = 0) -> None:
        if self._client.is_closed:
            raise ConnectionClosedError
        self.stop()
        self._client.forget(self)
        await asyncio.sleep(0)

    def stop(self) -> None:
        self._waiting.clear()
        if self._worker is not None and self._worker is not asyncio.current_task():
            self._worker.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._cb(self._waiting.popleft())
                except Exception as error:
                    await self._client.report(error)
        finally:
            self._worker = None


class _JetStream:
    """The management requests that the service makes."""

    def __init__(self, client: SimulatedClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def stream_info(self, name: str) -> StreamInfo:
        found = await self._client.ask(lambda broker: _info(broker.stream_info(name)), self._timeout_s, name)
        if found is None:
            raise NotFoundError(code=404, err_code=10059, description="stream not found")
        assert isinstance(found, StreamInfo)
        return found

    async def add_stream(self, config: Any) -> StreamInfo:
        info = await self._client.ask(
            lambda broker: _info(broker.add_stream(config.name, config, config.duplicate_window)),
            self._timeout_s,
        )
        assert isinstance(info, StreamInfo)
        return info

    async def add_consumer(self, stream: str, config: Any) -> SimpleNamespace:
        def add(broker: Broker) -> int | None:
            if COMMANDS in broker.streams:
                broker.add_consumer(config.ack_wait, config.max_ack_pending)
            return broker.consumer.ended if COMMANDS in broker.streams and broker.consumer else None

        ended = await self._client.ask(add, self._timeout_s)
        if ended is not None:
            return SimpleNamespace(ack_floor=SimpleNamespace(consumer_seq=ended))
        raise NotFoundError(code=404, err_code=10059, description="stream not found")


def _headers(head: bytes) -> dict[str, str] | None:
    lines = head.decode().split("\r\n")[1:-2]
    return dict(line.split(": ", 1) for line in lines) or None


def _described(stream: Stream | None) -> bytes:
    if stream is None:
        return b'{"error": {"code": 404, "description": "stream not found"}}'
    state = {"last_seq": stream.last_sequence, "last_ts": _iso(stream.last_stored_ns // 1000)}
    return json.dumps({"created": _iso(stream.created_us), "state": state}).encode()


def _iso(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


def _info(stream: Stream | None) -> StreamInfo | None:
    if stream is None:
        return None
    state = StreamState(
        messages=len(stream.messages), bytes=0, first_seq=0, last_seq=stream.last_sequence, consumer_count=0
    )
    created = _EPOCH + timedelta(microseconds=stream.created_us)
    return StreamInfo(config=stream.config, state=state, created=created)


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)
