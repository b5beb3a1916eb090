"""Callbacks over real sockets: what goes out, what comes back, and what never goes out."""

import asyncio
import gzip
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from tests.support.callbacks import FIRING, keyring_of, request_to, sending
from tests.support.patience import PATIENCE_S
from tests.support.receiver import OK, Received, receiving
from tests.support.timers import ACME
from timer_service import __version__
from timer_service.adapters.webhook.link import MAX_RESPONSE_BYTES
from timer_service.adapters.webhook.message import Message, wire_bytes
from timer_service.adapters.webhook.signature import read_verifier, signed_content
from timer_service.domain.callback import Method, Signing
from timer_service.domain.delivery import Answered, Blocked, TimedOut, Trouble, Unreachable
from timer_service.domain.errors import StoreBusy
from timer_service.domain.messages import TenantId, Trace
from timer_service.ports.secret_store import StoredSecret
from timer_service.right_of_way import RightOfWay, in_turns
from timer_service.testing.secrets import MemorySecretStore

SHORT = timedelta(milliseconds=300)
ENDLESS = timedelta(seconds=5)
"""How long an answer without an end is read; its beginning has come by then."""
"""The limit of a callback to a receiver that does not answer: what is tested, not how long."""


async def test_what_arrives_is_what_was_given_with_our_headers_and_a_valid_signature() -> None:
    keyring = keyring_of()
    body = b'{"total": 12.50}'

    async with receiving() as receiver, sending(keyring=keyring) as sender:
        request = request_to(
            receiver.url("/a/b?c=%2F"),
            method=Method.PUT,
            headers={"Authorization": "Bearer t", "X-Own": "1"},
            body=body,
            attempt=3,
        )
        assert await sender.send(request) == Answered(200)

    [received] = receiver.requests
    kept = await keyring.read(ACME)
    verifier = read_verifier(str(kept.signing[0].key.public_text))
    content = signed_content(str(FIRING), int(received.headers["webhook-timestamp"]), received.body)
    assert received.line == "PUT /a/b?c=%2F HTTP/1.1"
    assert received.body == body
    assert verifier.verifies(received.headers.pop("webhook-signature"), content)
    assert received.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "accept": "*/*",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "authorization": "Bearer t",
        "x-own": "1",
        "user-agent": f"timer-service/{__version__}",
        "idempotency-key": str(FIRING),
        "timer-id": "order-1",
        "timer-due-at": "2026-01-01T12:00:00.000Z",
        "timer-generation": "1",
        "timer-attempt": "3",
        "timer-lateness-ms": "1250",
        "webhook-id": str(FIRING),
        "webhook-timestamp": "1767268801",
    }


async def test_a_callback_without_a_body_brings_the_event_and_one_with_an_empty_body_none() -> None:
    async with receiving() as receiver, sending() as sender:
        await sender.send(request_to(receiver.url(), body=None))
        await sender.send(request_to(receiver.url(), body=b""))

    event, nothing = (each.body for each in receiver.requests)
    assert nothing == b""
    assert event == (
        b'{"type":"timer.reached","timestamp":"2026-01-01T12:00:00.002Z","data":{"tenantId":"acme",'
        b'"serviceCallId":"order-1","dueAt":"2026-01-01T12:00:00.000Z",'
        b'"reachedAt":"2026-01-01T12:00:00.002Z","generation":1}}'
    )
    assert "content-type" not in receiver.requests[1].headers


async def test_hmac_signs_where_it_is_chosen() -> None:
    keyring = keyring_of()

    async with receiving() as receiver, sending(keyring=keyring) as sender:
        await sender.send(request_to(receiver.url(), signing=Signing.HMAC))

    assert receiver.requests[0].headers["webhook-signature"].startswith("v1,")
    assert [each.key.kind for each in (await keyring.read(ACME)).signing] == [Signing.HMAC]


async def test_the_trace_goes_along_unless_it_would_break_a_header() -> None:
    async with receiving() as receiver, sending() as sender:
        plain = request_to(receiver.url())
        for trace in (Trace("00-aa-bb-01", "k=v"), Trace("00\r\nX: y", None), Trace("00-aa-bb-01", "ä")):
            assert await sender.send(replace(plain, trace=trace)) == Answered(200)

    carried = [(e.headers.get("traceparent"), e.headers.get("tracestate")) for e in receiver.requests]
    assert carried == [("00-aa-bb-01", "k=v"), (None, None), ("00-aa-bb-01", None)]


async def test_a_named_secret_is_filled_in_when_sending_so_one_update_changes_all() -> None:
    keyring = keyring_of()
    await keyring.set_named(ACME, "token", "first")

    async with receiving() as receiver, sending(keyring=keyring) as sender:
        request = request_to(receiver.url(), headers={"Authorization": "Bearer ${secret:token}"})
        await sender.send(request)
        await keyring.set_named(ACME, "token", "second")
        await sender.send(request)
        await keyring.remove_named(ACME, "token")
        result = await sender.send(request)

    assert [each.headers["authorization"] for each in receiver.requests] == ["Bearer first", "Bearer second"]
    assert result == Unreachable(Trouble.SECRET, "there is no secret named token")


class _BusySecrets(MemorySecretStore):
    """Secrets that cannot be read for now."""

    async def secrets_of(self, tenant_id: TenantId) -> list[StoredSecret]:
        raise StoreBusy("postgres://host: another query runs")


async def test_secrets_that_cannot_be_read_for_now_are_trouble_of_our_own() -> None:
    async with receiving() as receiver, sending(keyring=keyring_of(_BusySecrets())) as sender:
        result = await sender.send(request_to(receiver.url()))

    assert result == Unreachable(Trouble.STORE, "the store is busy")
    assert receiver.connections == 0


class _SlowSecrets(MemorySecretStore):
    """Secrets that are read too slowly."""

    async def secrets_of(self, tenant_id: TenantId) -> list[StoredSecret]:
        await asyncio.sleep(2 * SHORT.total_seconds())
        return await super().secrets_of(tenant_id)


async def test_secrets_that_come_too_late_are_trouble_of_our_own() -> None:
    async with receiving() as receiver, sending(keyring=keyring_of(_SlowSecrets())) as sender:
        result = await sender.send(request_to(receiver.url(), timeout=SHORT))

    assert result == Unreachable(Trouble.STORE, "the store is busy")
    assert receiver.connections == 0


async def test_a_redirect_is_not_followed_and_says_where_it_pointed() -> None:
    async with receiving() as other, receiving() as receiver, sending() as sender:
        receiver.answer = f"HTTP/1.1 307 X\r\nlocation: {other.url()}\r\ncontent-length: 0\r\n\r\n".encode()
        result = await sender.send(request_to(receiver.url()))

    assert result == Answered(307, location=other.url())
    assert other.connections == 0


async def test_a_redirect_that_repeats_our_secrets_is_told_without_them() -> None:
    location = "https://shop.example/login?token=s3cr3t-t0ken&back=Bearer%20s3cr3t-t0ken"
    answer = f"HTTP/1.1 302 X\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()
    async with receiving(answer=answer) as receiver, sending() as sender:
        headers = {"Authorization": "Bearer s3cr3t-t0ken"}
        result = await sender.send(request_to(receiver.url(), headers=headers))

    blanked = location.replace("s3cr3t-t0ken", "*" * len("s3cr3t-t0ken"))
    assert result == Answered(302, location=blanked)


async def test_what_the_receiver_asks_for_is_passed_on() -> None:
    answer = b"HTTP/1.1 503 X\r\nretry-after: 120\r\nwebhook-retry: no\r\ncontent-length: 0\r\n\r\n"
    async with receiving(answer=answer) as receiver, sending() as sender:
        assert await sender.send(request_to(receiver.url())) == Answered(503, retry_after="120", final=True)


async def test_a_large_answer_is_not_read_to_its_end_and_nothing_is_decompressed() -> None:
    size = 256 * 1024 * 1024
    written = []

    async def flood(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {size}\r\n\r\n".encode())
        chunk = gzip.compress(bytes(64 * 1024)) * 64
        with suppress(ConnectionError):
            for __ in range(size // len(chunk)):
                writer.write(chunk)
                await writer.drain()
                written.append(len(chunk))
        return False

    async with receiving(answer=flood) as receiver, sending() as sender:
        result = await sender.send(request_to(receiver.url()))

    assert result == Answered(200)
    assert sum(written) < size // 2  # What the sockets held, and no more.
    assert MAX_RESPONSE_BYTES == 16 * 1024


async def test_what_follows_a_small_body_is_not_read_without_an_end() -> None:
    size = 64 * 1024 * 1024
    written = []

    async def flood(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-trailer: ")
        with suppress(ConnectionError):
            for __ in range(64):
                writer.write(b"." * (size // 64))
                await writer.drain()
                written.append(size // 64)
        return False

    async with receiving(answer=flood) as receiver, sending() as sender:
        result = await sender.send(request_to(receiver.url()))

    assert result == Answered(200)
    assert sum(written) < size // 2  # What the sockets held, and no more.


def answer(status: int, body: bytes) -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def test_nothing_of_an_answer_is_kept_unless_that_is_asked_for() -> None:
    async with receiving(answer=answer(500, b"no such order")) as receiver, sending() as sender:
        assert await sender.send(request_to(receiver.url())) == Answered(500)


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"", None),
        ("no such order ♥".encode(), "no such order ♥"),
        (b"\x00\xff.", "\ufffd\ufffd."),
        (b"x" * 5_000, "x" * 1_024),
        ("♥".encode() * 1_000, "♥" * 341),
    ],
)
async def test_the_beginning_of_a_failed_answer_is_kept_where_that_is_asked_for(
    body: bytes, kept: str | None
) -> None:
    async with receiving(answer=answer(500, body)) as receiver, sending(keeps_answers=True) as sender:
        assert await sender.send(request_to(receiver.url())) == Answered(500, said=kept)


async def test_nothing_is_kept_of_an_answer_that_takes_the_callback() -> None:
    async with receiving(answer=answer(200, b"thanks")) as receiver, sending(keeps_answers=True) as sender:
        assert [await sender.send(request_to(receiver.url())) for _ in range(2)] == [Answered(200)] * 2


async def test_of_an_answer_that_repeats_our_secrets_they_are_not_kept() -> None:
    keyring = keyring_of()
    await keyring.set_named(ACME, "token", "named-secret")
    headers = {"Authorization": "Bearer ${secret:token}", "X-Key": "own secret", "Accept": "text/plain"}
    secret = b"named-secret"
    body = b"Bearer " + secret + b"|" + secret + b"|own secret|text/plain|" + b"." * 900 + secret * 20

    async with (
        receiving(answer=answer(401, body)) as receiver,
        sending(keyring=keyring, keeps_answers=True) as sender,
    ):
        whole = await sender.send(request_to(receiver.url(), headers=headers))
        receiver.answer = answer(401, b"you sent named-sec").replace(b"length: 18", b"length: 90")
        cut_off = await sender.send(request_to(receiver.url(), headers=headers, timeout=ENDLESS))

    masked = "*" * 19 + "|" + "*" * 12 + "|" + "*" * 10 + "|text/plain|" + "." * 900
    assert whole == Answered(401, said=masked + "*" * (1_024 - len(masked)))
    assert cut_off == Answered(401, said="you sent " + "*" * 9)


async def test_a_status_counts_although_its_body_never_ends() -> None:
    async def trickle(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.01)
        return False

    async with receiving(answer=trickle) as receiver, sending() as sender:
        assert await sender.send(request_to(receiver.url(), timeout=ENDLESS)) == Answered(200)


async def test_one_limit_holds_for_a_head_that_trickles() -> None:
    async def trickle(_: Received, writer: asyncio.StreamWriter) -> bool:
        with suppress(ConnectionError):
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.01)
        return False

    async with receiving(answer=trickle) as receiver, sending() as sender:
        assert await sender.send(request_to(receiver.url(), timeout=SHORT)) == TimedOut(SHORT)


async def test_a_name_server_that_does_not_answer_counts_within_the_limit() -> None:
    release = threading.Event()

    def never(host: str, port: int) -> list[Any]:
        release.wait()
        return []

    try:
        async with sending(look_up=never) as sender:
            assert await sender.send(request_to("http://dead.example/", timeout=SHORT)) == TimedOut(SHORT)
    finally:
        release.set()


async def test_a_kept_connection_is_used_again() -> None:
    async with receiving() as receiver, sending() as sender:
        for _ in range(5):
            await sender.send(request_to(receiver.url()))

    assert [each.connection for each in receiver.requests] == [1] * 5


async def test_connections_to_many_receivers_are_not_all_kept() -> None:
    async with AsyncExitStack() as stack:
        receivers = [await stack.enter_async_context(receiving()) for _ in range(10)]
        sender = await stack.enter_async_context(sending(max_kept=3))

        for receiver in receivers * 2:
            assert await sender.send(request_to(receiver.url())) == Answered(200)

        assert [receiver.connections for receiver in receivers] == [1] * 3 + [2] * 7


async def test_connections_that_are_closed_at_once_do_not_count_as_open() -> None:
    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    way = RightOfWay()
    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, receiving() as receiver, sending(max_kept=1) as sender:
        for _ in range(3):
            with way.taken():  # The sender goes on when the connection has been closed.
                send = sender.send(request_to(f"http://127.0.0.1:{port}/"))
                result = await in_turns(send, way, patience_s=0.1, one_of_many=True)
            assert result == Unreachable(Trouble.RESET, "the connection was closed before an answer")
        for _ in range(2):
            await sender.send(request_to(receiver.url()))

    assert receiver.connections == 1


@pytest.mark.parametrize("method", list(Method))
async def test_a_receiver_that_closes_a_kept_connection_gets_the_same_attempt_once_more(
    method: Method,
) -> None:
    async def close_at_second(request: Received, writer: asyncio.StreamWriter) -> bool:
        first = sum(each.connection == request.connection for each in receiver.requests) == 1
        if first:
            writer.write(OK)
            await writer.drain()
        return first

    async with receiving(answer=close_at_second) as receiver, sending() as sender:
        for number in (1, 2):
            request = request_to(receiver.url(), attempt=number, method=method)
            assert await sender.send(request) == Answered(200)

    assert [(each.connection, each.headers["timer-attempt"]) for each in receiver.requests] == [
        (1, "1"),
        (1, "2"),
        (2, "2"),
    ]


async def test_a_new_connection_that_is_closed_is_a_failed_attempt() -> None:
    async def close(*_: object) -> bool:
        return False

    async with receiving(answer=close) as receiver, sending() as sender:
        result = await sender.send(request_to(receiver.url()))

    assert result == Unreachable(Trouble.RESET, "the connection was closed before an answer")
    assert len(receiver.requests) == 1


async def test_an_answer_that_is_not_http_is_a_failed_attempt() -> None:
    async with receiving(answer=b"220 smtp.example ESMTP\r\n\r\n") as receiver, sending() as sender:
        result = await sender.send(request_to(receiver.url()))

    assert result == Unreachable(Trouble.RESET, "the answer is not valid HTTP")


async def test_an_answer_is_the_one_that_comes_after_an_early_hint() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nretry-after: 120\r\n\r\n"
    async with receiving(answer=hint + answer(503, b"later")) as receiver, sending() as sender:
        assert await sender.send(request_to(receiver.url())) == Answered(503)


async def test_a_head_without_an_end_is_not_an_answer() -> None:
    async with receiving(answer=b"HTTP/1.1 200 OK\r\nx: " + b"." * 100_000) as receiver, sending() as sender:
        result = await sender.send(request_to(receiver.url()))

    assert result == Unreachable(Trouble.RESET, "the answer is not valid HTTP")


async def test_a_second_answer_is_not_taken_for_that_of_the_next_request() -> None:
    async with receiving(answer=OK + answer(500, b"no")) as receiver, sending(keeps_answers=True) as sender:
        assert [await sender.send(request_to(receiver.url())) for _ in range(3)] == [Answered(200)] * 3

    assert [each.connection for each in receiver.requests] == [1, 2, 3]


async def test_what_comes_unasked_on_a_kept_connection_ends_it() -> None:
    gone = asyncio.Event()

    async def say_more(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(OK)
        await writer.drain()
        await answered.wait()
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(OK)
                await writer.drain()
                await asyncio.sleep(0)
        gone.set()
        return False

    answered = asyncio.Event()
    async with receiving(answer=say_more) as receiver, sending() as sender, asyncio.timeout(PATIENCE_S):
        assert await sender.send(request_to(receiver.url())) == Answered(200)
        answered.set()
        await gone.wait()
        receiver.answer = answer(201, b"")
        assert await sender.send(request_to(receiver.url())) == Answered(201)

    assert [each.connection for each in receiver.requests] == [1, 2]


async def test_an_answer_that_breaks_off_on_a_kept_connection_is_not_asked_for_again() -> None:
    async def break_off(request: Received, writer: asyncio.StreamWriter) -> bool:
        is_first = len(receiver.requests) == 1
        writer.write(OK if is_first else b"HTTP/1.1 20")
        await writer.drain()
        return is_first

    async with receiving(answer=break_off) as receiver, sending() as sender:
        results = [await sender.send(request_to(receiver.url())) for _ in range(2)]

    assert results == [
        Answered(200),
        Unreachable(Trouble.RESET, "the connection was closed before an answer"),
    ]
    assert [each.connection for each in receiver.requests] == [1, 1]


def leads_to(*addresses: str) -> Callable[[str, int], list[Any]]:
    return lambda host, port: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses
    ]


async def test_a_name_is_looked_up_once_for_all_who_ask_together_and_then_remembered() -> None:
    asked: list[str] = []

    def look_up(host: str, port: int) -> list[Any]:
        asked.append(host)
        return leads_to("127.0.0.1")(host, port)

    async with receiving() as receiver, sending(look_up=look_up) as sender:
        for _ in range(2):
            calls = [sender.send(request_to(receiver.url(host="shop.example"))) for _ in range(3)]
            assert await asyncio.gather(*calls) == [Answered(200)] * 3
        receiver.answer = answer(200, b"").replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        for _ in range(5):
            assert await sender.send(request_to(receiver.url(host="shop.example"))) == Answered(200)

    assert asked == ["shop.example"]
    assert receiver.connections > 3


@pytest.mark.parametrize(
    ("host", "addresses"), [("10.0.0.1", []), ("inside.example", ["10.0.0.1"]), ("[fd00::1]", [])]
)
async def test_no_socket_is_made_for_an_address_that_is_denied(host: str, addresses: list[str]) -> None:
    made: list[int] = []

    def make(*arguments: int) -> socket.socket:
        made.append(1)
        return socket.socket(*arguments)

    async with sending(look_up=leads_to(*addresses), make_socket=make) as sender:
        result = await sender.send(request_to(f"http://{host}:80/"))

    assert isinstance(result, Blocked)
    assert made == []


async def test_a_name_without_an_address_is_not_found() -> None:
    async with sending(look_up=leads_to()) as sender:
        result = await sender.send(request_to("http://nowhere.example/"))

    assert isinstance(result, Unreachable)
    assert result.trouble is Trouble.DNS


def test_no_header_can_begin_another_line() -> None:
    """Values are checked when they come in; this is the last place at which one could."""
    message = Message("http://shop.example/hook", "POST", {"x-own": "1\r\nx-other: 2"}, b"")

    with pytest.raises(ValueError, match="line break"):
        wire_bytes(message, in_full=False)


async def test_a_closed_port_and_an_unknown_name_are_told_apart() -> None:
    def unknown(host: str, port: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with sending(look_up=unknown) as sender:
            closed = await sender.send(request_to(f"http://127.0.0.1:{taken.getsockname()[1]}/"))
            unknown_name = await sender.send(request_to("http://nowhere.example/"))

    assert closed == Unreachable(Trouble.CONNECT, "connection refused")
    assert unknown_name == Unreachable(Trouble.DNS, "name or service not known")


async def test_no_cookie_is_kept_and_no_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    answer = b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    async with receiving(answer=answer) as receiver, sending() as sender:
        for _ in range(2):
            assert await sender.send(request_to(receiver.url())) == Answered(200)

    assert all("cookie" not in each.headers for each in receiver.requests)


async def test_a_proxy_gets_every_callback_and_the_guard_still_judges_addresses_in_urls() -> None:
    async with receiving() as proxy, sending(allow="", proxy=proxy.url("")) as sender:
        through = await sender.send(request_to("http://receiver.internal/hook"))
        literal = await sender.send(request_to("http://169.254.169.254/latest"))

    assert through == Answered(200)
    assert isinstance(literal, Blocked)
    assert [each.line for each in proxy.requests] == ["POST http://receiver.internal/hook HTTP/1.1"]


async def test_a_proxy_is_told_who_asks() -> None:
    async with receiving() as proxy, sending(proxy=proxy.url(""), proxy_login="me:secret") as sender:
        await sender.send(request_to("http://receiver.internal/hook"))

    assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"


async def test_a_proxy_that_refuses_is_named() -> None:
    answer = b"HTTP/1.1 407 X\r\ncontent-length: 0\r\n\r\n"
    async with receiving(answer=answer) as proxy, sending(proxy=proxy.url("")) as sender:
        result = await sender.send(request_to("https://receiver.internal/hook"))

    assert result == Unreachable(Trouble.CONNECT, "the proxy answered 407")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return authority, path


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def test_tls_is_verified_with_the_authorities_that_are_trusted(
    authority: tuple[trustme.CA, Path],
) -> None:
    ca, path = authority
    async with receiving(certified(ca, "127.0.0.1")) as receiver:
        async with sending(ca_file=path) as trusting:
            trusted = [await trusting.send(request_to(receiver.url())) for _ in range(2)]
        async with sending() as sender:
            unknown = await sender.send(request_to(receiver.url()))

    assert trusted == [Answered(200)] * 2
    assert isinstance(unknown, Unreachable)
    assert (unknown.trouble, len(receiver.requests)) == (Trouble.TLS, 2)
    assert "certificate" in unknown.detail


async def test_a_certificate_for_another_name_is_trouble_with_tls(
    authority: tuple[trustme.CA, Path],
) -> None:
    ca, path = authority
    async with receiving(certified(ca, "other.example")) as other, sending(ca_file=path) as sender:
        result = await sender.send(request_to(other.url()))

    assert isinstance(result, Unreachable)
    assert result.trouble is Trouble.TLS
    assert other.requests == []


@asynccontextmanager
async def tunnelling(port: int) -> AsyncIterator[tuple[str, list[str]]]:
    """Run a proxy that leads every tunnel to a port, and notes what it is asked."""
    heads: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    tasks: list[asyncio.Task[None]] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(tunnel(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_https_goes_through_a_tunnel_of_the_proxy_which_sees_none_of_it(
    authority: tuple[trustme.CA, Path], new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    ca, path = authority
    url = "https://receiver.example/hook"

    async def twice() -> None:
        login = "me:secret"
        async with (
            receiving(certified(ca, "receiver.example")) as receiver,
            tunnelling(receiver.port) as (proxy, heads),
            sending(allow="", proxy=proxy, proxy_login=login, ca_file=path) as sender,
        ):
            results = [await sender.send(request_to(url, attempt=attempt)) for attempt in (1, 2)]

        assert results == [Answered(200)] * 2
        assert [head.split("\r\n")[:3] for head in heads] == [
            [
                "CONNECT receiver.example:443 HTTP/1.1",
                "host: receiver.example:443",
                "proxy-authorization: Basic bWU6c2VjcmV0",
            ]
        ]
        assert [each.line for each in receiver.requests] == ["POST /hook HTTP/1.1"] * 2
        assert all("proxy-authorization" not in each.headers for each in receiver.requests)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(twice())


async def test_through_a_tunnel_the_certificate_must_be_that_of_the_receiver(
    authority: tuple[trustme.CA, Path],
) -> None:
    ca, path = authority
    async with (
        receiving(certified(ca, "other.example")) as receiver,
        tunnelling(receiver.port) as (proxy, _),
        sending(allow="", proxy=proxy, ca_file=path) as sender,
    ):
        result = await sender.send(request_to("https://receiver.example/hook"))

    assert isinstance(result, Unreachable)
    assert (result.trouble, receiver.requests) == (Trouble.TLS, [])


async def test_a_port_that_does_not_speak_tls_is_trouble_with_tls() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 smtp.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, sending() as sender:
        result = await sender.send(request_to(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))

    assert result == Unreachable(Trouble.TLS, "the handshake failed")


async def test_a_hundred_handshakes_at_once_all_come_through(authority: tuple[trustme.CA, Path]) -> None:
    ca, path = authority
    async with receiving(certified(ca, "127.0.0.1")) as receiver, sending(ca_file=path) as sender:
        results = await asyncio.gather(*[sender.send(request_to(receiver.url())) for _ in range(100)])

    assert results == [Answered(200)] * 100
    assert len(receiver.requests) == 100


def test_the_sender_works_under_uvloop_as_the_service_runs() -> None:
    async def one() -> object:
        async with receiving() as receiver, sending() as sender:
            return [await sender.send(request_to(receiver.url())) for _ in range(2)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(one()) == [Answered(200)] * 2
