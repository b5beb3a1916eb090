"""TLS handshakes begin a few at a time: each takes a millisecond of the event loop that everything shares."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tests.support.timers import ACME
from timer_service.adapters.webhook.connections import MAX_IN_A_ROW, PAUSE_S, Connections, Routing
from timer_service.adapters.webhook.link import Link
from timer_service.targets import AddressRules, read_allowed, read_target

MANY = 3 * MAX_IN_A_ROW
ROUNDS = 100
"""Of the event loop: what need not wait for the time has begun by then."""


class _StillLoop(asyncio.SelectorEventLoop):
    """Time passes only when a test says so, however slow the machine is."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__()

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("scheme", "begun"), [("https", MAX_IN_A_ROW), ("http", MANY)])
def test_handshakes_begin_a_few_at_a_time_and_plain_connections_all_at_once(scheme: str, begun: int) -> None:
    async def check(loop: _StillLoop) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=MANY) as silent:
            dialled, connecting = _dial(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/")
            seen = []
            for _ in range(2):
                await _rounds()
                seen.append(len(dialled))
                loop.now_s += PAUSE_S
            await _end(connecting)

        assert seen == [begun, min(2 * begun, MANY)]

    _run(check)


def test_a_handshake_after_a_pause_does_not_wait() -> None:
    async def check(loop: _StillLoop) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=MANY) as silent:
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            connections, dialled = _connections()
            for number in range(1, MANY + 1):
                connecting = [asyncio.ensure_future(connections.new(read_target(url), ACME))]
                await _rounds()
                assert len(dialled) == number
                loop.now_s += 2 * PAUSE_S
                await _end(connecting)

    _run(check)


def _connections() -> tuple[Connections, list[socket.socket]]:
    """Return connections, and the sockets that they have begun to use."""
    dialled: list[socket.socket] = []

    def make_socket(*kind: int) -> socket.socket:
        dialled.append(socket.socket(*kind))
        return dialled[-1]

    routing = Routing(AddressRules(read_allowed("127.0.0.0/8")), make_socket=make_socket)
    return Connections(routing, ssl.create_default_context()), dialled


def _dial(url: str) -> tuple[list[socket.socket], list["asyncio.Future[Link]"]]:
    connections, dialled = _connections()
    return dialled, [asyncio.ensure_future(connections.new(read_target(url), ACME)) for _ in range(MANY)]


async def _rounds() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


async def _end(connecting: Sequence["asyncio.Future[Link]"]) -> None:
    for each in connecting:
        each.cancel()
    for link in await asyncio.gather(*connecting, return_exceptions=True):
        if not isinstance(link, BaseException):
            link.abort()


def _run(check: Callable[[_StillLoop], Coroutine[Any, Any, None]]) -> None:
    loop = _StillLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(check(loop))
