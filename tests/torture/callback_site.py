"""Services that send callbacks, a receiver and a tenant: what is answered, and what arrives."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.process import TimerServiceProcess
from timer_service.secret_keys import new_secret_key

KEY = "torture-" + "k" * 32
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Call:
    """One request at the receiver."""

    id: str
    attempt: int
    due_s: float
    arrived_s: float
    """Both by the wall clock."""


@dataclass
class Receiver:
    """Answers every callback after a while, and remembers it."""

    delay_s: float = 0.0
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """By the name of the timer."""
    unanswered: dict[str, asyncio.Transport] = field(default_factory=dict)
    """Ids of requests that are under way, and where each came in."""
    watched: dict[str, "asyncio.Future[float]"] = field(default_factory=dict)
    """Ids of which the next request is waited for."""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def arrived(self, headers: dict[str, str], transport: asyncio.Transport) -> None:
        """Note a request and answer it in time."""
        now_s, firing = time.time(), headers["webhook-id"]
        due_s = datetime.fromisoformat(headers["timer-due-at"]).timestamp()
        call = Call(firing, int(headers["timer-attempt"]), due_s, now_s)
        self.calls[headers["timer-id"]].append(call)
        if (waited := self.watched.pop(firing, None)) is not None and not waited.done():
            waited.set_result(now_s)
        self.unanswered[firing] = transport
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, self._answer, firing, transport)
        else:
            self._answer(firing, transport)

    def cut_off(self) -> set[str]:
        """Return the ids of requests under way whose sender is gone."""
        return {firing for firing, transport in self.unanswered.items() if transport.is_closing()}

    def _answer(self, firing: str, transport: asyncio.Transport) -> None:
        if self.unanswered.get(firing) is transport:
            del self.unanswered[firing]
        if not transport.is_closing():
            transport.write(ANSWER)

    @asynccontextmanager
    async def receiving(self, host: str = "127.0.0.1") -> AsyncIterator["Receiver"]:
        """Receive for as long as the context lasts."""
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), host, 0, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


class _Connection(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            lines = self._rest[:end].decode("latin-1").split("\r\n")[1:]
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            length = int(headers.get("content-length", 0))
            if len(self._rest) < end + 4 + length:
                return
            self._rest = self._rest[end + 4 + length :]
            self._receiver.arrived(headers, self._transport)


class Away(Exception):
    """Nobody answered."""


class Site:
    """One service on SQLite, or several on PostgreSQL, without a broker."""

    def __init__(
        self,
        folder: Path,
        receiver: Receiver,
        database: str | None = None,
        instances: int = 1,
        allow: str = "127.0.0.1",
    ) -> None:
        self.receiver = receiver
        self.ports = [free_port() for _ in range(instances)]
        shared = {} if database is None else {"store_url": database, "secret_keys": new_secret_key()}
        self.services = [
            TimerServiceProcess(
                folder / f"service-{number}",
                broker_url="none",
                db_path="timers.db",
                api_port=port,
                api_key=KEY,
                api_tenant="acme",
                request_rate=0,
                callback_allow=allow,
                **shared,
            )
            for number, port in enumerate(self.ports)
        ]
        self._client: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Site"]:
        """Run all instances, each ready to answer."""
        async with aiohttp.ClientSession(headers={"x-api-key": KEY}) as client:
            self._client = client
            try:
                for service in self.services:
                    service.start()
                    await asyncio.to_thread(service.wait_for_log, "service.started")
                yield self
            finally:
                for service in self.services:
                    await asyncio.to_thread(service.close)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        instance: int = 0,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Ask one instance. Raises Away if no whole answer comes."""
        assert self._client is not None
        url = f"http://127.0.0.1:{self.ports[instance]}{path}"
        try:
            async with self._client.request(method, url, json=body, headers=headers) as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, OSError) as error:
            raise Away from error

    def callback(self) -> dict[str, Any]:
        return {"url": self.receiver.url, "body": {"order": 42}}

    async def until(self, is_so: Any, what: str) -> None:
        """Wait until something is so, as long as callbacks still come from time to time."""
        seen, deadline = -1, time.monotonic() + PATIENCE_S
        while not is_so():
            count = sum(map(len, self.receiver.calls.values()))
            if count > seen:
                seen, deadline = count, time.monotonic() + PATIENCE_S
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            await asyncio.sleep(0.02)
