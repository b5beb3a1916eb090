"""A NATS client that no message can stop, and that is quick with many.

nats-py ends its read loop for good when a message has a subject that is not UTF-8, one with a vertical tab
or form feed, or a header block that it cannot read; the server takes all of these. Such a message would be
delivered again and again, and stop the service each time. Here it arrives, and is refused like any other.

nats-py also spends more time on the way of a message through its queue and its checks than we do on the
message. Bulk messages take a shorter path here: `publish_all` out, `deliver_at_once` in, and for commands
`take_together`.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from nats.aio.client import PING_PROTO, Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError

from timer_client.cancelling import cancellable
from timer_service.adapters.nats.reading import MessageParser, RawMessage

PART_BYTES: Final = 1024 * 1024
"""This much may gather before we wait until the socket has taken it."""
FLUSH_TIMEOUT_S: Final = 5.0
"""For so long a message waits for a socket that is full; then it counts as handed over."""

_NO_STATUS: Final = b"NATS/1.0\r\n"


class Outgoing(Struct, frozen=True, gc=False):
    """One message on its way out; its parts are ours, so nothing in them needs to be checked.

    A structure of msgspec is made in a third of the time that a named tuple takes.
    """

    subject: str
    body: bytes
    head: bytes = b""
    """The headers as they are sent, from `head_of`; nothing if there are none."""


class Arrived(Struct, frozen=True, gc=False):
    """One message on its way in: as much of nats-py's own as we read."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None = None


Take = Callable[[Sequence[Arrived]], Awaitable[None]]


def head_of(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are sent."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def head_of_id(message_id: str) -> bytes:
    """Return headers of nothing but the id of a message, as nearly all events have."""
    return f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n".encode()


class TolerantClient(Client):
    """The stock client, except for how it reads what others have sent and how it treats many messages."""

    flush_timeout_s = FLUSH_TIMEOUT_S

    def __init__(self) -> None:
        super().__init__()
        self._ps = MessageParser(self)
        self._at_once: dict[int, Any] = {}
        self.taken_together = 0
        """The subscription whose messages are handed over together; there is none with this number."""
        self._take: Take | None = None
        self.told_servers: tuple[str, ...] = ()
        """The addresses of the cluster, as the server last announced them."""

    async def publish_all(
        self, messages: Iterable[Outgoing], replies: Sequence[str] | None = None
    ) -> list[int]:
        """Send messages in as few pieces as possible, each to be answered on its own subject.

        Returns which of them are too large: the server would end the connection over them. It
        waits only where there is more than a part, and can be cancelled then: nats-py's own way to the socket
        swallows a cancellation.
        """
        if self.is_closed:
            raise ConnectionClosedError
        commands: list[bytes] = []
        too_large: list[int] = []
        gathered, max_payload = 0, self.max_payload
        for number, message in enumerate(messages):
            subject, body, head = message.subject, message.body, message.head
            reply = replies[number] if replies else ""
            size = len(head) + len(body)
            if size > max_payload:
                too_large.append(number)
                continue
            if gathered and gathered + size > PART_BYTES:
                await self._send_part(commands)
                commands, gathered = [], 0
            gathered += size
            if head:
                start = f"HPUB {subject} {reply} {len(head)} {size}\r\n"
                commands += (start.encode(), head, body, b"\r\n")
            else:
                commands += (f"PUB {subject} {reply} {size}\r\n".encode(), body, b"\r\n")
        self._hand_over(commands)
        return too_large

    def _hand_over(self, commands: list[bytes]) -> None:
        """Let commands go out with the next piece."""
        data = b"".join(commands)
        self._pending.append(data)
        self._pending_data_size += len(data)
        assert self._flush_queue is not None
        with suppress(asyncio.QueueFull):  # Then it goes out with what others have handed over.
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def _send_part(self, commands: list[bytes]) -> None:
        """Send a part and wait until the socket has taken it."""
        self._hand_over(commands)
        taken = asyncio.get_running_loop().create_future()
        assert self._flush_queue is not None
        await self._flush_queue.put(taken)
        await taken
        if self.is_closed:
            raise ConnectionClosedError

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # noqa: FBT001, FBT002 - as in nats-py
        """Let what was handed over go out; where the socket is full, wait for a while only.

        nats-py forgets whoever waits for a full socket when it closes, and a cancellation meanwhile.
        """
        if not force_flush and (self._flush_queue is None or not self._flush_queue.full()):
            await super()._flush_pending()
            return
        with cancellable():
            async with asyncio.timeout(self.flush_timeout_s):
                await super()._flush_pending(force_flush)

    async def _send_ping(self, future: "asyncio.Future[Any] | None" = None) -> None:
        """Let a ping go out behind what was handed over before it; nats-py's own overtakes that.

        So an answer says that the broker knows all of it, for instance that it should send no more.
        """
        self._pongs.append(asyncio.get_running_loop().create_future() if future is None else future)
        self._hand_over([PING_PROTO])

    def deliver_at_once(self, subscription: Subscription) -> None:
        """Call back where a message is read, not later from a queue; the callback must not wait for long."""
        self._at_once[subscription._id] = subscription._cb  # noqa: SLF001 - its only names

    async def take_together(self, subject: str, take: Take) -> Subscription:
        """Subscribe, and be handed all messages that were read from the socket in one go.

        To make a message of nats-py's for each, and to wait for each, takes as long as to read a command.
        """
        subscription = await self.subscribe(subject, cb=_never)
        self._take, self.taken_together = take, subscription._id  # noqa: SLF001 - its only name
        return subscription

    async def deliver_together(self, messages: list[RawMessage]) -> None:
        """Hand messages over to who takes them together, and empty the list."""
        if not messages:
            return
        arrived = []
        for subject, reply, data, headers in messages:
            found = await self._process_headers(headers) if _is_wanted(headers) else None
            arrived.append(Arrived(_text(subject), _text(reply), data, found))
        messages.clear()
        if self._take is not None and self.taken_together in self._subs:
            try:
                await self._take(arrived)
            except Exception as error:
                await self._error_cb(error)

    async def send_no_more(self, subscription: Subscription) -> None:
        """Tell the broker to send no more; what it has sent already is still delivered."""
        await self._send_unsubscribe(subscription._id)  # noqa: SLF001 - its only name

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        callback = self._at_once.get(sid)
        if callback is None or sid not in self._subs:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]
            return
        found = await self._process_headers(headers) if _is_wanted(headers) else None
        try:
            await callback(self._build_message(sid, subject, reply, data, found))
        except Exception as error:
            await self._error_cb(error)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return Msg(
            _client=self,
            subject=_text(subject),
            reply=_text(reply),
            data=data,
            headers=headers,
            _sid=sid,
        )

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - as in nats-py
        await super()._process_info(info, initial_connection)
        if info.get("connect_urls"):
            self.told_servers = tuple(info["connect_urls"])

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        with suppress(Exception):
            found: Mapping[str, str] | None = await super()._process_headers(headers)
            return None if found is None else dict(found)
        return None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _is_wanted(headers: bytes | None) -> bool:
    """Most headers are the sender's own and mean nothing to us: these two kinds are all that we ask for."""
    return headers is not None and (b"raceparent" in headers or not headers.startswith(_NO_STATUS))


async def _never(_: Msg) -> None:
    """Stand where nats-py asks for a callback."""


def new_hidden_inbox(client: Client) -> str:
    """Return an inbox that nobody can guess: the client's own names follow one from another."""
    return f"{client.new_inbox().rpartition('.')[0]}.{secrets.token_hex(11)}"
