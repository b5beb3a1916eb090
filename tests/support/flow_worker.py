"""A program with durable functions, killed by tests: `python -m tests.support.flow_worker`."""

import argparse
import asyncio
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
from pydantic import BaseModel

from tests.support.worker import connected, open_database, read_column, read_options, start_program
from timer_client.flows import Flows, Journal, PostgresJournal, Run, SqliteJournal

NAME = "torture"
FLOW = "order"
EFFECTS = "CREATE TABLE IF NOT EXISTS transactions (run_id TEXT NOT NULL)"


class Order(BaseModel):
    """How long a run sleeps, twice, and how long its steps take."""

    first_ms: int = 0
    second_ms: int = 0
    step_ms: int = 1


@dataclass(frozen=True, slots=True)
class Note:
    """One line of what workers did: when by the machine's monotonic clock, and in which process."""

    at: float
    pid: int
    word: str
    run_id: str
    step: str


class Notes:
    """A file that all processes append to; a written line survives the death of its writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: list[Note] = []
        self._position = 0

    def write(self, word: str, run_id: str, step: str) -> None:
        line = f"{time.monotonic()} {os.getpid()} {word} {run_id} {step}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)

    def read(self) -> list[Note]:
        """Return all that was written so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    at, pid, word, run_id, step = line.decode().split()
                    self._read.append(Note(float(at), int(pid), word, run_id, step))
                self._position = file.tell()
        return self._read


@asynccontextmanager
async def open_journal(database: str) -> AsyncIterator[Journal]:
    """Open the journal of a file or of a PostgreSQL address."""
    if database.startswith("postgresql:"):
        async with asyncpg.create_pool(database, min_size=1, max_size=4) as pool:
            yield PostgresJournal(pool)
    else:
        with closing(SqliteJournal(database)) as journal:
            yield journal


async def prepare(database: str) -> None:
    """Create the tables of the journal and the one that transactions write to."""
    async with open_journal(database) as journal:
        await journal.migrate()
    async with open_database(database) as connection:
        await connection.execute(EFFECTS)


async def effects(database: str) -> list[str]:
    """Return the runs whose transaction was committed, once for each time it was."""
    return await read_column(database, "SELECT run_id FROM transactions")


def register(flows: Flows, notes: Notes, die_at: int = 0, stop_at: int = 0) -> None:
    """Define the flow of these tests; the process kills or stops itself in the step of that number."""
    steps = itertools.count(1)

    async def effect(step: str, run_id: str, step_ms: int) -> str:
        notes.write("begun", run_id, step)
        await asyncio.sleep(step_ms / 1000)
        number = next(steps)
        if number in (die_at, stop_at):  # The effect is there, and nothing is recorded yet.
            os.kill(os.getpid(), signal.SIGKILL if number == die_at else signal.SIGSTOP)
        notes.write("done", run_id, step)
        return f"{step} by {os.getpid()}"

    async def book(connection: Any, run_id: str, step_ms: int) -> str:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("INSERT INTO transactions VALUES (?)", (run_id,))
        else:
            await connection.execute("INSERT INTO transactions VALUES ($1)", run_id)
        return await effect("book", run_id, step_ms)

    @flows.flow(FLOW, version=1)
    async def order(run: Run, order: Order) -> str:
        charged = await run.step("charge", effect, "charge", run.id, order.step_ms)
        await run.sleep("cooling-off", timedelta(milliseconds=order.first_ms))
        booked = await run.transaction("book", book, run.id, order.step_ms)
        await run.sleep("delivery", timedelta(milliseconds=order.second_ms))
        shipped = await run.step("ship", effect, "ship", run.id, order.step_ms)
        return f"{charged}, {booked}, {shipped}"


async def work(options: argparse.Namespace) -> None:
    """Run flows until told to end."""
    async with connected(options) as (timers, stop), open_journal(options.database) as journal:
        flows = Flows(timers, journal, name=NAME)
        register(flows, Notes(Path(options.notes)), options.die_at, options.stop_at)
        async with flows.worker(
            concurrency=options.concurrency, ack_wait=timedelta(milliseconds=options.ack_wait_ms)
        ):
            print("ready", flush=True)
            await stop.wait()
    print(json.dumps(flows.counts))


def start_worker(
    url: str, prefix: str, tenant: str, database: str, notes: Path, /, **options: object
) -> "subprocess.Popen[str]":
    """Start a worker; on its standard output it says `ready`, and at its end what it has counted."""
    return start_program("tests.support.flow_worker", url, prefix, tenant, database, str(notes), **options)


def end_worker(worker: "subprocess.Popen[str]") -> None:
    """Kill a worker if it still runs."""
    worker.kill()
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()


def main() -> None:
    options = read_options("notes", concurrency=20, ack_wait_ms=2_000, die_at=0, stop_at=0, clock_off_s=0)
    real_time_ns = time.time_ns
    time.time_ns = lambda: real_time_ns() + options.clock_off_s * 1_000_000_000
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
