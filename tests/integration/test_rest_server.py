"""The REST API on a real socket: who trickles in is let go, who asks is answered."""

import asyncio
import json
import re
import socket

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.rest import KEYS, Site
from tests.support.timers import ACME
from timer_service.adapters.http.punctual import PunctualProtocol
from timer_service.adapters.http.rest import serving_api
from timer_service.adapters.http.server import serving

CHUNKED = "Transfer-Encoding: chunked\r\n\r\n11\r\n%s\r\n0\r\n\r\n"


class ImpatientProtocol(PunctualProtocol):
    head_timeout_s = 0.05


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def until_closed(place: socket.socket, sent: bytes) -> bytes:
    """Send something, and return all that comes back until the other end closes the connection."""
    reader, writer = await asyncio.open_connection(*place.getsockname())
    writer.write(sent)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_head_that_never_ends_is_not_waited_for() -> None:
    site = await Site().open()

    with listener() as place:
        async with serving(site.app, place, http=ImpatientProtocol, ws="none"):
            rest = await until_closed(place, b"GET /v1/timers HTTP/1.1\r\nX-Slow: ")

    assert rest == b""


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"no HTTP at all\r\n\r\n", b"400"),
        (b"GET /v1/timers HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", b"401"),
    ],
)
async def test_a_stranger_writes_no_line_into_the_log(
    caplog: pytest.LogCaptureFixture, request_head: bytes, status: bytes
) -> None:
    site = await Site().open()

    with listener() as place:
        async with serving_api(site.app, place):
            answer = await until_closed(place, request_head)

    assert (answer.split()[1], caplog.records) == (status, [])


async def test_requests_on_one_connection_are_answered_one_after_the_other() -> None:
    site = await Site().open()
    request = f"GET /v1/timers HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEYS[ACME]}\r\n\r\n".encode()

    with listener() as place:
        async with serving_api(site.app, place):
            reader, writer = await asyncio.open_connection(*place.getsockname())
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(2):
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    body = await reader.readexactly(len(b'{"timers":[]}'))
                    assert (head.startswith(b"HTTP/1.1 200"), body) == (True, b'{"timers":[]}')
            writer.close()


@pytest.mark.parametrize("framing", ["Content-Length: 17\r\n\r\n%s", CHUNKED])
async def test_a_request_that_offers_another_protocol_is_answered_as_any_other(framing: str) -> None:
    site = await Site().open()
    body = '{"delayMs":60000}'
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    head = f"Host: x\r\nX-API-Key: {KEYS[ACME]}\r\n"
    post = f"POST /v1/timers HTTP/1.1\r\n{head}{offer}Content-Type: application/json\r\n{framing % body}"
    get = f"GET /v1/timers HTTP/1.1\r\n{head}Connection: close\r\n\r\n"

    with listener() as place:
        async with serving_api(site.app, place):
            answers = await until_closed(place, (post + get).encode())

    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"201", b"200"]
    assert len(site.store.timers) == 1


async def test_a_body_that_looks_like_an_offer_ends_where_it_ends() -> None:
    site = await Site().open()
    body = "\nUpgrade:" * 20 + "GET /health HTTP/1.1\r\n\r\n"
    head = f"Host: x\r\nX-API-Key: {KEYS[ACME]}\r\n"
    post = (
        f"POST /v1/timers HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    get = f"GET /v1/timers HTTP/1.1\r\n{head}Connection: close\r\n\r\n"

    with listener() as place:
        async with serving_api(site.app, place):
            answers = await until_closed(place, f"{post}\r\n{body}{get}".encode())

    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"400", b"200"]


async def test_an_answer_that_nothing_has_changed_ends_with_its_head() -> None:
    site = await Site().open()
    created = await site.ask("PUT", "/v1/timers/order-1", {"delayMs": 60_000})
    head = f"GET /v1/timers/order-1 HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEYS[ACME]}\r\n"
    again = f"{head}If-None-Match: {created.headers['etag']}\r\n"

    with listener() as place:
        async with serving_api(site.app, place):
            answers = await until_closed(place, f"{again}\r\n{again}Connection: close\r\n\r\n".encode())

    # It has no length: that of the timer is not 0 (RFC 9110, 8.6).
    assert answers.count(b"HTTP/1.1 304") == 2
    assert b"content-length" not in answers
    assert b"transfer-encoding" not in answers


@pytest.mark.parametrize(
    ("key", "content_type", "size", "status"),
    [
        (KEYS[ACME], "application/json", 6_000_000, 413),
        (KEYS[ACME], "text/plain", 6_000_000, 415),
        ("wrong", "application/json", 6_000_000, 401),
    ],
)
async def test_a_client_that_reads_once_it_has_sent_everything_gets_its_refusal(
    key: str, content_type: str, size: int, status: int
) -> None:
    site = await Site().open()
    head = f"POST /v1/timers HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Type: {content_type}\r\n"
    request = f"{head}Content-Length: {size}\r\n\r\n".encode() + bytes(size)

    def send_then_read(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address, PATIENCE_S) as link:
            link.sendall(request)
            return b"".join(iter(lambda: link.recv(65_536), b""))

    with listener() as place:
        async with serving_api(site.app, place):
            answer = await asyncio.to_thread(send_then_read, place.getsockname())

    told, _, body = answer.partition(b"\r\n\r\n")
    assert (int(told.split()[1]), json.loads(body)["status"]) == (status, status)
    assert b"connection: close" in told


async def test_a_stranger_with_a_large_body_is_answered_before_it_is_read() -> None:
    site = await Site().open()
    head = (
        b"POST /v1/timers HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n"
    )

    with listener() as place:
        async with serving_api(site.app, place):
            answer = await until_closed(place, head)

    assert answer.startswith(b"HTTP/1.1 401")


async def test_connections_beyond_the_bound_are_told_to_come_again_and_closed() -> None:
    site = await Site().open()
    request = f"GET /v1/timers HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEYS[ACME]}\r\n\r\n".encode()

    with listener() as place:
        async with serving_api(site.app, place, max_connections=2), asyncio.timeout(PATIENCE_S):
            silent = [await asyncio.open_connection(*place.getsockname()) for _ in range(2)]
            answers = []
            for _ in range(3):  # Refused at once, without waiting for a request.
                reader, writer = await asyncio.open_connection(*place.getsockname())
                answers.append(await reader.read())
                writer.close()
            reader, writer = silent[0]
            writer.write(request)
            served = await reader.readuntil(b"\r\n\r\n")
            for _, writer in silent:
                writer.close()

    assert {answer.partition(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 503 Service Unavailable"}
    assert all(b"retry-after: 1\r\n" in answer for answer in answers)
    assert served.startswith(b"HTTP/1.1 200")
