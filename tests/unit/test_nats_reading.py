"""What a server sends becomes the same messages, however the network cuts it."""

from typing import Any, cast

import pytest
from nats.errors import ProtocolError

from timer_service.adapters.nats.reading import MessageParser

HEAD = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
SENT = (
    b"MSG a.b 1 reply.to 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG a.\x0bc 2 0\r\n\r\n"
    b"HMSG a.b 3 reply.to %d %d\r\n%s" % (len(HEAD), len(HEAD) + 8, HEAD) + b"MSG a \r\n\r\n"
    b"HMSG d 4 %d %d\r\n%s\r\n" % (len(HEAD), len(HEAD), HEAD) + b"PONG\r\n+OK\r\n"
    b"MSG last 5 6\r\n\r\nPING\r\n"
)
READ = [
    (1, b"a.b", b"reply.to", b"hello", None),
    "ping",
    (2, b"a.\x0bc", b"", b"", None),
    (3, b"a.b", b"reply.to", b"MSG a \r\n", HEAD),
    (4, b"d", b"", b"", HEAD),
    "pong",
    (5, b"last", b"", b"\r\nPING", None),
]


class Client:
    """Keeps what the parser hands over."""

    def __init__(self, taken_together: int = 0) -> None:
        self.read: list[object] = []
        self.taken_together = taken_together

    async def deliver_together(self, messages: list[object]) -> None:
        if messages:
            self.read.append(list(messages))
            messages.clear()

    async def _process_msg(self, *message: object) -> None:
        self.read.append(message)

    async def _process_ping(self) -> None:
        self.read.append("ping")

    async def _process_pong(self) -> None:
        self.read.append("pong")


def new_parser() -> tuple[Any, Client]:
    client = Client()
    return MessageParser(cast("Any", client)), client


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(SENT)])
async def test_messages_are_the_same_wherever_the_bytes_are_cut(size: int) -> None:
    parser, client = new_parser()

    for start in range(0, len(SENT), size):
        await parser.parse(SENT[start : start + size])

    assert client.read == READ


async def test_what_was_begun_on_a_connection_that_is_gone_is_forgotten() -> None:
    parser, client = new_parser()
    await parser.parse(SENT[:25])

    parser.reset()
    await parser.parse(SENT)

    assert client.read == READ


@pytest.mark.parametrize("line", [b"MSG\r\n", b"MSG a\r\n", b"MSG a b 3\r\n", b"HMSG a 1 x 3\r\n"])
async def test_a_line_that_no_server_sends_ends_the_connection(line: bytes) -> None:
    parser, _ = new_parser()

    with pytest.raises(ProtocolError):
        await parser.parse(line)


async def test_messages_of_one_subscription_are_handed_over_together_and_in_their_order_among_others() -> (
    None
):
    client = Client(taken_together=7)
    parser = MessageParser(cast("Any", client))

    await parser.parse(
        b"MSG a 7 r.1 1\r\n1\r\nMSG b 7 r.2 1\r\n2\r\nMSG other 1 1\r\n3\r\n"
        b"MSG c 7 1\r\n4\r\nPING\r\nMSG d 7 1\r\n5\r\n"
    )

    assert client.read == [
        [(b"a", b"r.1", b"1", None), (b"b", b"r.2", b"2", None)],
        (1, b"other", b"", b"3", None),
        [(b"c", b"", b"4", None)],
        "ping",
        [(b"d", b"", b"5", None)],
    ]
