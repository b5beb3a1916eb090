"""A program that handles firings as a user's would: `python -m tests.support.worker`, killed by tests."""

import argparse
import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import nats

from timer_client import Firing, Timers, create_firings_table

EFFECTS = "CREATE TABLE IF NOT EXISTS effects (service_call_id TEXT NOT NULL, worker INTEGER NOT NULL)"
ROOT = Path(__file__).parents[2]


def start_worker(
    url: str, prefix: str, tenant: str, database: str, **options: object
) -> "subprocess.Popen[str]":
    """Start a worker; it says what it does, line by line, on its standard output."""
    return start_program("tests.support.worker", url, prefix, tenant, database, **options)


def start_program(module: str, *arguments: str, **options: object) -> "subprocess.Popen[str]":
    """Start a module as a program whose standard output the test reads."""
    named = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments, *named],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


async def prepare(database: str) -> None:
    """Create what the workers write to."""
    async with open_database(database) as connection:
        await connection.execute(EFFECTS)
        await create_firings_table(connection)


async def effects(database: str) -> list[str]:
    """Return what was done, once for each time it was."""
    return await read_column(database, "SELECT service_call_id FROM effects")


async def read_column(database: str, statement: str) -> list[str]:
    """Return the first column of what a statement finds."""
    async with open_database(database) as connection:
        if isinstance(connection, aiosqlite.Connection):
            return [row[0] for row in await connection.execute_fetchall(statement)]
        return [row[0] for row in await connection.fetch(statement)]


@asynccontextmanager
async def open_database(database: str) -> AsyncIterator[Any]:
    opening: AbstractAsyncContextManager[Any] = (
        asyncpg.create_pool(database, min_size=1, max_size=4)
        if database.startswith("postgresql:")
        else aiosqlite.connect(database, timeout=60, isolation_level=None)
    )
    async with opening as connection:
        if isinstance(connection, aiosqlite.Connection):
            await connection.execute("PRAGMA synchronous = OFF")  # Processes are killed, machines are not.
        yield connection


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[tuple[Timers, asyncio.Event]]:
    """Connect as the tenant; SIGTERM sets the event."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connection = await nats.connect(options.url, max_reconnect_attempts=-1, reconnect_time_wait=0.05)
    yield Timers(connection, tenant=options.tenant, prefix=options.prefix), stop
    await connection.close()


async def work(options: argparse.Namespace) -> None:
    async with connected(options) as (timers, stop), open_database(options.database) as database:
        commits = itertools.count(1)

        async def handle(firing: Firing) -> None:
            print("begun", firing.service_call_id, flush=True)
            async with firing.once(database) as transaction:
                await _write(transaction, firing.service_call_id)
                await asyncio.sleep(options.pause_ms / 1000)
            if next(commits) == options.die_at:
                os.kill(os.getpid(), signal.SIGKILL)  # Committed, and not acknowledged.
            print("done", firing.service_call_id, flush=True)

        async with timers.consume(
            "workers",
            handle,
            concurrency=options.concurrency,
            prefetch=options.prefetch,
            ack_wait=timedelta(milliseconds=options.ack_wait_ms),
        ):
            print("ready", flush=True)
            await stop.wait()


async def _write(transaction: Any, service_call_id: str) -> None:
    if isinstance(transaction, aiosqlite.Connection):
        await transaction.execute("INSERT INTO effects VALUES (?, ?)", (service_call_id, os.getpid()))
    else:
        await transaction.execute("INSERT INTO effects VALUES ($1, $2)", service_call_id, os.getpid())


def read_options(*more: str, **usual: int) -> argparse.Namespace:
    """Read where to work, and numbers that have a usual value."""
    parser = argparse.ArgumentParser()
    for name in ("url", "prefix", "tenant", "database", *more):
        parser.add_argument(name)
    for name, number in usual.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=number)
    return parser.parse_args()


def main() -> None:
    asyncio.run(work(read_options(concurrency=4, prefetch=0, ack_wait_ms=2_000, pause_ms=1, die_at=0)))


if __name__ == "__main__":
    main()
